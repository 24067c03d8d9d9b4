"""Measure how long a push is held up by a sweep of a large table behind it or before it.

    python benchmarks/tables/pauses.py [--rows N] [--dim N] [--cap [--new N] [--tables N]]

A server's model in this process and one table, of which half the rows expire at once: a sweep
removes a 16th of the table. Or, with --cap, a table that grows to its max_rows, with rows of all
ages, or several such tables at the same time: each push has N ids without a row (64), and a sweep
removes the rows of least use. Pushes of 196 ids of each table, or of the new ones if they are more,
come one after the other, until the sweep is over. Measured is the processor time of each with the
part of the sweep that its thread does, which is what others wait for. Prints a line. To
compare, run it with the Python of another checkout of shoal.
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

IDS, SPAN, SECOND = 196, 64, 1_000_000
PIECE = 1 << 18
QUIET, MOST = 2_000, 400_000
AGES = 1_000_000
"""Steps within which the rows of a table with a cap were last used."""
ROOM = 16
"""The part of such a table that is free at first."""


class Table:
    """A model of one table with an option by which rows are removed, or of several alike."""

    def __init__(self, rows: int, dim: int, count: int = 1, **option: int) -> None:
        sgd = OptimizerSpec("sgd").to_json()
        tables = [
            pb.TableSpec(
                name=f"t{number}",
                dim=dim,
                initializer=InitializerSpec("zeros").to_json(),
                optimizer=sgd,
                **option,  # type: ignore[arg-type]
            )
            for number in range(count)
        ]
        self.model = ServerModel(pb.ModelSpec(tables=tables, dense_optimizer=sgd), 0, 1, 16384)
        none = np.zeros(0, np.float32)
        self.model.dense.initialize(none, none)
        for table in self.model.tables:
            table.reserve(rows)
        self.dim = dim

    def removed(self) -> list[int]:
        """The rows that sweeps removed of each table."""
        lifecycle = self.model.lifecycle
        assert lifecycle is not None
        return [each.expired + each.evicted for each in lifecycle.removed]

    def push(self, ids: np.ndarray, seconds: float | None) -> float:
        """Push ones at an event time, if given; returns the seconds of processor time."""
        ones = np.ones((ids.size, self.dim), np.float32)
        time_of = None if seconds is None else int(seconds * SECOND)
        rows = dict.fromkeys(range(len(self.model.tables)), (ids, ones))
        push = Gradients(rows, None, 0.1, 0, 0.0, event_time=time_of)
        began = time.thread_time()
        ticket = self.model.ticket(push)
        self.model.apply(push, ticket)
        self.model.leave(lambda *_: None)
        return time.thread_time() - began

    def fill(self, begin: int, end: int, ages: int = 0) -> None:
        """Fill in rows that were last used now, or, the first ones, up to so many steps ago."""
        draw = np.random.default_rng(begin)
        for first in range(begin, end, PIECE):
            ids = np.arange(first, min(end, first + PIECE))
            zeros = np.zeros((ids.size, self.dim), np.float32)
            steps = self.model.step - ages * (end - ids) // (end - begin)
            uses = draw.zipf(1.5, ids.size) if ages else np.ones(ids.size)
            uses = np.minimum(uses, 2048).astype(np.uint32)
            for table in self.model.tables:
                table.assign(ids, zeros, versions=steps, use_counts=uses)


def expiring(rows: int, dim: int) -> tuple[Table, list[float], list[float]]:
    """The table, and seconds of pushes without a sweep and with one."""
    table, draw, one = Table(rows, dim, expire_after=SPAN), np.random.default_rng(0), np.array([-1])

    def some() -> np.ndarray:
        return np.unique(draw.integers(rows // 2, rows, IDS))

    table.push(one, 0.0)
    table.fill(0, rows // 2)
    for second in range(8, SPAN, 8):  # no jump, which would have to be confirmed
        table.push(one, second)
    table.fill(rows // 2, rows)
    quiet = [table.push(some(), second) for _ in range(QUIET)]
    swept: list[float] = []
    gone: list[int] = []
    # A part may be many pushes behind the one before.
    while len(swept) < MOST and (table.removed() != gone or not all(gone)):
        gone = table.removed()
        swept += [table.push(some(), SPAN + 2.0) for _ in range(100)]
    return table, quiet, swept


def growing(rows: int, dim: int, new: int, tables: int) -> tuple[Table, list[float], list[float]]:
    """The same as `expiring`, of tables that grow beyond their caps."""
    table, draw = Table(rows, dim, tables, max_rows=rows), np.random.default_rng(0)
    table.model.moments.reach(AGES)
    following = rows - rows // ROOM
    table.fill(0, following, AGES)

    def some(new: int) -> np.ndarray:
        nonlocal following
        following += new
        known = draw.integers(rows // 2, following - new, max(0, IDS - new))
        return np.unique(np.append(known, np.arange(following - new, following)))

    quiet = [table.push(some(0), None) for _ in range(QUIET)]
    swept: list[float] = []
    gone: list[int] = []
    # Tables that grow fast are near their caps again before all have been swept.
    most = min(MOST, 2 * rows // ROOM // new)
    while len(swept) < most and (table.removed() != gone or not all(gone)):
        gone = table.removed()
        swept += [table.push(some(new), None) for _ in range(100)]
    return table, quiet, swept


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--dim", type=int, default=8)
    parser.add_argument("--cap", action="store_true")
    parser.add_argument("--new", type=int, default=64)
    parser.add_argument("--tables", type=int, default=1)
    options = parser.parse_args()
    if options.cap:
        table, quiet, swept = growing(options.rows, options.dim, options.new, options.tables)
    else:
        table, quiet, swept = expiring(options.rows, options.dim)
    found = {
        "rows": options.rows,
        "removed": sum(table.removed()),
        "pushes": len(swept),
        "median without": round(1e3 * float(np.median(quiet)), 3),
        "median": round(1e3 * float(np.median(swept)), 3),
        "longest without": round(1e3 * max(quiet), 2),
        "longest": round(1e3 * max(swept), 2),
        "seconds of all": round(sum(swept), 2),
    }
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
