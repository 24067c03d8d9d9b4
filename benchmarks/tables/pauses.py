"""Measure how long a push is held up by a sweep of a large table behind it or before it.

    python benchmarks/tables/pauses.py [--rows N]

A server's model in this process, a table of dim 8 whose rows expire: half of them at once, of which
a sweep removes a 16th of the table. Pushes of 196 ids of the other half come one after the other,
until the sweep is over. Measured is the processor time of each with the part of the sweep that its
thread does, which is what others wait for. Prints a line. To compare, run it with the Python of
another checkout of shoal.
"""

from __future__ import annotations

import argparse
import json
import time

import numpy as np

from shoal.native.initializers import InitializerSpec
from shoal.native.optimizers import OptimizerSpec
from shoal.proto import shoal_pb2 as pb
from shoal.ps.model.gradients import Gradients
from shoal.ps.model.tables import ServerModel

DIM, IDS, SPAN, SECOND = 8, 196, 64, 1_000_000
PIECE = 1 << 18
QUIET, MOST = 2_000, 100_000


class Table:
    """A model of one table whose rows expire after 64 seconds."""

    def __init__(self, rows: int) -> None:
        sgd = OptimizerSpec("sgd").to_json()
        table = pb.TableSpec(
            name="t",
            dim=DIM,
            initializer=InitializerSpec("zeros").to_json(),
            optimizer=sgd,
            expire_after=SPAN,
        )
        self.model = ServerModel(pb.ModelSpec(tables=[table], dense_optimizer=sgd), 0, 1, 16384)
        none = np.zeros(0, np.float32)
        self.model.dense.initialize(none, none)
        self.table = self.model.tables[0]
        self.table.reserve(rows)

    def push(self, ids: np.ndarray, seconds: float) -> float:
        """Push ones at an event time; returns the seconds of processor time."""
        ones = np.ones((ids.size, DIM), np.float32)
        time_of = int(seconds * SECOND)
        push = Gradients({0: (ids, ones)}, None, 0.1, 0, 0.0, event_time=time_of)
        began = time.thread_time()
        ticket = self.model.ticket(push)
        self.model.apply(push, ticket)
        self.model.leave(lambda *_: None)
        return time.thread_time() - began

    def fill(self, begin: int, end: int) -> None:
        """Fill in rows that were last used now."""
        for first in range(begin, end, PIECE):
            ids = np.arange(first, min(end, first + PIECE))
            self.table.assign(
                ids,
                np.zeros((ids.size, DIM), np.float32),
                versions=np.full(ids.size, self.model.step),
                use_counts=np.ones(ids.size, np.uint32),
            )


def measure(rows: int) -> dict[str, object]:
    """Milliseconds of pushes, without a sweep and with one."""
    table, draw, one = Table(rows), np.random.default_rng(0), np.array([-1])

    def some() -> np.ndarray:
        return np.unique(draw.integers(rows // 2, rows, IDS))

    table.push(one, 0.0)
    table.fill(0, rows // 2)
    for second in range(8, SPAN, 8):  # no jump, which would have to be confirmed
        table.push(one, second)
    table.fill(rows // 2, rows)
    quiet = [table.push(some(), second) for _ in range(QUIET)]
    removed = table.model.lifecycle.removed[0]  # type: ignore[union-attr]
    swept: list[float] = []
    gone = -1
    # A part may be many pushes behind the one before.
    while len(swept) < MOST and (removed.expired != gone or not gone):
        gone = removed.expired
        swept += [table.push(some(), SPAN + 2.0) for _ in range(100)]
    return {
        "rows": rows,
        "removed": removed.expired,
        "pushes": len(swept),
        "median without": round(1e3 * float(np.median(quiet)), 3),
        "median": round(1e3 * float(np.median(swept)), 3),
        "longest": round(1e3 * max(swept), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=10_000_000)
    print(json.dumps(measure(parser.parse_args().rows)), flush=True)


if __name__ == "__main__":
    main()
