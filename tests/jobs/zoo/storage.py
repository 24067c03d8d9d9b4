"""zoo/counting.py, read by a reader whose storage goes wrong as $SHOAL_TEST_STORAGE says.

exit-N: the reader calls sys.exit() at record N. oserror-N: it raises OSError there until the file
oserror-N.open is in $SHOAL_TEST_GATE. hang-N: it stops there, likewise. Each try at N is a line in
N.tries.
"""

import os
import sys
import time
from pathlib import Path

import numpy as np
from counting import custom_model, eval_metrics_fn, feed, loss, optimizer

__all__ = ["custom_model", "eval_metrics_fn", "feed", "loss", "optimizer"]

STORAGE = frozenset(os.environ.get("SHOAL_TEST_STORAGE", "").split())
CHUNK = 7


class Reader:
    def __init__(self, path):
        self.path = path
        self.ids = np.loadtxt(path, np.int64, skiprows=1)

    def sources(self):
        return [(self.path, len(self.ids))]

    def read(self, source, start, end):
        for first in range(start, end, CHUNK):
            last = min(first + CHUNK, end)
            for record in range(first, last):
                touch(record)
            yield {"id": self.ids[first:last]}


def touch(record):
    for kind in ("exit", "oserror", "hang"):
        name = f"{kind}-{record}"
        if name not in STORAGE:
            continue
        folder = Path(os.environ["SHOAL_TEST_GATE"])
        with (folder / f"{record}.tries").open("a") as tries:
            tries.write(f"{os.getpid()}\n")
        if kind == "exit":
            sys.exit(0)
        if kind == "oserror" and not (folder / f"{name}.open").exists():
            raise OSError(5, "Input/output error", f"bucket/part-{record}")
        while kind == "hang" and not (folder / f"{name}.open").exists():
            time.sleep(0.01)


def custom_data_reader(pattern):
    return Reader(pattern)
