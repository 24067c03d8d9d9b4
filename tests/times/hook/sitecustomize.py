"""Counts what imports and TensorFlow's tracing cost each process that a test starts.

Python imports this by its name in each process whose PYTHONPATH has this folder. The counts are in
a mapped file, so that those of a killed process stay. tests/times/__main__.py reads them.
"""

import builtins
import mmap
import os
import struct
import sys
import threading
import time

FOLDER = os.environ.get("SHOAL_TEST_TIMES")
COUNTS = struct.Struct("ddd")
"""CPU seconds at the start, of imports, and of tracing."""
NAME = "PYTEST_CURRENT_TEST"


class Counts:
    """The counts of this process, in a file named by its id; a forked child makes its own."""

    def __init__(self):
        self.depth = threading.local()
        self.begin()
        os.register_at_fork(after_in_child=self.begin)

    def begin(self):
        self.values = [time.process_time(), 0.0, 0.0]
        self.test = os.environ.get(NAME, "")
        now = time.clock_gettime_ns(time.CLOCK_BOOTTIME)  # as the starts in /proc
        with open(f"{FOLDER}/{os.getpid()}.{now}", "w+b") as file:
            file.write(COUNTS.pack(*self.values) + self.test.encode()[:900].ljust(1000, b"\0"))
            file.flush()
            self.map = mmap.mmap(file.fileno(), 0)

    def timed(self, place, call):
        """`call`, whose outermost runs are counted at a place."""

        def counted(*args, **kwargs):
            if getattr(self.depth, "inside", False):
                return call(*args, **kwargs)
            self.depth.inside = True
            before = time.thread_time()
            try:
                return call(*args, **kwargs)
            finally:
                self.depth.inside = False
                self.values[place] += time.thread_time() - before
                COUNTS.pack_into(self.map, 0, *self.values)
                if (test := os.environ.get(NAME, "")) != self.test:  # a forked one is told later
                    self.test = test
                    self.map[COUNTS.size :] = test.encode()[:900].ljust(1000, b"\0")

        return counted


def count():
    """Count from here on."""
    counts = Counts()
    imported = counts.timed(1, builtins.__import__)
    graphs = "tensorflow.python.framework.func_graph"

    def importing(name, *args, **kwargs):
        if name in sys.modules and not (args and len(args) > 2 and args[2]):
            return plain(name, *args, **kwargs)
        found = imported(name, *args, **kwargs)
        module = sys.modules.get(graphs)
        if module is not None and hasattr(module, "func_graph_from_py_func"):
            traced = module.func_graph_from_py_func
            if not hasattr(traced, "is_counted"):
                module.func_graph_from_py_func = counts.timed(2, traced)
                module.func_graph_from_py_func.is_counted = True
        return found

    plain, builtins.__import__ = builtins.__import__, importing


if FOLDER:
    count()
