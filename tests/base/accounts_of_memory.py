"""Fills one account of memory in this process, which is a fresh one, and prints what it says.

`python -m tests.base.accounts_of_memory CASE` prints two numbers: the bytes that the process uses
more than before, and the bytes that the account says that it holds.
"""

import ctypes
import gc
import sys
from pathlib import Path

FILLED = 24 << 20
"""Bytes, of the pushes or values that an account is filled with at least."""


def used():
    """Bytes of this process that are nobody else's and of no file, without what malloc keeps."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(each.split()[1]) << 10 for each in lines if each.startswith("Anonymous:"))


def log_at_a_peer(sizes, per_group=64):
    """A log that is kept for another server. sizes: of its pushes, bytes, in turn."""
    from shoal.proto import shoal_pb2 as pb
    from shoal.ps.update_log.peer_store import PeerLogs

    held = PeerLogs()
    held.begin(pb.BeginLogRequest(base=pb.LogBase(log="a" * 16, server=0, incarnation=1)))

    def fill(least):
        first = held._logs[0].position + 1
        while len(held) < least:
            lengths = [sizes[place % len(sizes)] for place in range(per_group)]
            group = pb.LogGroup(first=first, sizes=lengths)
            for step in range(first, first + per_group):
                each = group.entries.add(log="a" * 16, incarnation=1, staleness=1)
                each.step, each.journal.number = step + (1 << 33), 5000
            held.append((group, memoryview(b"x" * sum(lengths))))
            first += per_group

    return fill, lambda: len(held), held


def rows(dtype, dim):
    """A table of rows."""
    import numpy as np

    from shoal.native.initializers import InitializerSpec
    from shoal.native.optimizers import OptimizerSpec
    from shoal.native.rowstore import RowStore

    initial = InitializerSpec("uniform", {"minval": -1.0, "maxval": 1.0})
    table = RowStore(dim, OptimizerSpec("adagrad"), initial, 7, value_dtype=dtype)

    def fill(least):
        at = len(table)
        while table.memory_bytes() < least:
            ids = np.arange(at, at + 1000)
            table.update(ids, np.ones((1000, dim), np.float32), learning_rate=0.1, step=1)
            at += 1000

    return fill, table.memory_bytes, table


def spare_buffers():
    """Buffers of requests that are kept for later ones."""
    import numpy as np

    from shoal.proto.plane.server import _Spares

    spares = _Spares()

    def fill(least):
        taken = [spares.take(3 << 18) for _ in range(least >> 20)]
        for each in taken:
            np.frombuffer(each, np.uint8)[:] = 1
            spares.give_back(each)

    return fill, lambda: spares._bytes, spares


CASES = {
    "log of pushes without rows": lambda: log_at_a_peer([48]),
    "log of small pushes": lambda: log_at_a_peer([120, 700]),
    "log of single pushes": lambda: log_at_a_peer([2000], per_group=1),
    "log of large pushes": lambda: log_at_a_peer([300_000]),
    "log of all pushes": lambda: log_at_a_peer([120, 40_000, 9000]),
    "rows": lambda: rows("float32", 16),
    "narrow rows of 16 bits": lambda: rows("bfloat16", 1),
    "wide rows": lambda: rows("float32", 512),
    "spare buffers": spare_buffers,
}


def main():
    """Warm what the first use makes, and measure the rest."""
    fill, said, _account = CASES[sys.argv[1]]()
    fill(1 << 20)
    before, said_before = used(), said()
    fill(FILLED)
    print(used() - before, said() - said_before)


if __name__ == "__main__":
    main()
