"""Measure what a sweep costs workers that pull meanwhile: a part of `make bench-tables`.

    python benchmarks/tables/sweeping.py [--rows N] [--rounds N] [FOLDER]

A server process with a table near its cap, dim 16, Adagrad. One client pulls 4,096 ids at random,
one call after the other, and pushes 4,096 ids that have rows, 200 times a second. A push of ids
without a row begins a sweep: behind every eighth push there is a slice of its plan, and then a part
of its rows. Pulls during as many pushes as it takes are compared with pulls during as many pushes
before, round by round.
Beside that, in this process: headers of rows scanned a second, and rows removed. Writes
sweeping.json to build/bench/tables.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from run import DIM, PUSH, push_to, store_of

from shoal.native.choices import Choice
from shoal.native.rowstore import MAX_BOUNDS
from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.channels import rpc
from shoal.ps.forgetting import caps, planning, sweeps

sys.path.insert(0, str(Path(__file__).parents[1] / "server"))
from parts import IDS, Server

A_SECOND = 200
NEW = 64
"""Ids without a row in the push that begins a sweep."""


class Filled:
    """A server whose table is near its cap, of ids that are ever newer."""

    def __init__(self, folder: Path, rows: int) -> None:
        self.server = Server(folder, DIM, rows=rows, max_rows=rows * caps.NEAR // (caps.NEAR - 1))
        self._rows, self._next = rows, rows

    def some(self, chance: np.random.Generator) -> np.ndarray:
        """Distinct ids at random, int64 [n], of the newer half: no sweep has removed any."""
        return np.unique(chance.integers(self._next - self._rows // 2, self._next, PUSH))

    def push(self, ids: np.ndarray) -> None:
        """Push zeros."""
        self.server.push(ids, np.zeros((ids.size, DIM), np.float32))

    def push_new(self, count: int) -> None:
        """Push ids that were never there."""
        for first in range(0, count, IDS):
            size = min(IDS, count - first)
            self.push(np.arange(self._next, self._next + size))
            self._next += size

    def push_for(self, pushes: int) -> None:
        """Push ids that have rows, at an even pace."""
        chance = np.random.default_rng(pushes)
        for _ in range(pushes):
            began = time.perf_counter()
            self.push(self.some(chance))
            time.sleep(max(0.0, 1 / A_SECOND - (time.perf_counter() - began)))

    def status(self) -> pb.TableStatus:
        """The status of the table."""
        connection = rpc.Connection(self.server.address)
        try:
            return connection.call(methods.STATUS, pb.ServerStatusRequest()).tables[0]
        finally:
            connection.close()

    def fill(self) -> None:
        """Let a sweep end, and fill the table again until its cap is near."""
        rows = 0
        while rows != (rows := self.status().rows):
            self.push_for(2 * planning.EVERY)
        self.push_new(self._rows - rows)


class Pulls:
    """Pulls of random ids on a thread, whose times in seconds are kept."""

    def __init__(self, table: Filled) -> None:
        self._table = table
        self._ended = threading.Event()
        self.times: list[float] = []
        self._thread = threading.Thread(target=self._work)

    def _work(self) -> None:
        chance = np.random.default_rng(0)
        while not self._ended.is_set():
            ids = self._table.some(chance)
            began = time.perf_counter()
            self._table.server.pull(ids)
            self.times.append(time.perf_counter() - began)

    def __enter__(self) -> Pulls:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()


def one_round(table: Filled, rows: int) -> dict[str, list[float]]:
    """Times of pulls in seconds, without and with a sweep."""
    removed = rows // caps.FREE - rows // caps.NEAR
    slices = 2 * -(-rows // planning.SLICE)
    pushes = planning.EVERY * (slices + removed // sweeps.PART_FILL)
    with Pulls(table) as quiet:
        table.push_for(pushes)
    before = table.status().removed.evicted
    with Pulls(table) as swept:
        table.push_new(NEW)
        table.push_for(pushes)
    gone = table.status().removed.evicted - before
    if gone < 0.9 * removed:
        sys.exit(f"the sweep removed only {gone} rows: nothing was measured")
    table.fill()
    return {"quiet": quiet.times, "sweep": swept.times}


def pulls(rows: int, rounds: int, folder: Path) -> dict[str, Any]:
    """Milliseconds of pulls, medians of the rounds, and the ratios round by round."""
    table = Filled(folder, rows)
    try:
        found = [one_round(table, rows) for _ in range(rounds)]
    finally:
        table.server.close()
    result: dict[str, Any] = {"pulls": sum(len(each["sweep"]) for each in found)}
    for name, part in (("p50", 50), ("p99", 99)):
        times = {
            kind: [float(np.percentile(each[kind], part)) * 1e3 for each in found]
            for kind in ("quiet", "sweep")
        }
        result[name] = {kind: float(np.median(each)) for kind, each in times.items()}
        result[name]["ratios"] = [
            swept / quiet for swept, quiet in zip(times["sweep"], times["quiet"], strict=True)
        ]
    return result


def rates(rows: int) -> dict[str, float]:
    """Headers scanned and rows removed a second, by one thread with no other."""
    store = store_of()
    for step, first in enumerate(range(0, rows, IDS), 1):
        push_to(store, np.arange(first, min(first + IDS, rows)), step)
    bounds = np.linspace(0, step, MAX_BOUNDS - 1).astype(np.int64)
    began = time.perf_counter()
    store.histogram(bounds)
    scanned = time.perf_counter() - began
    chosen = sweeps.Found(Choice.older_than(step // 2), rows // 2)
    plan = sweeps.planned(0, step, chosen, sweeps.Found(None, 0), eviction=False)
    began = time.perf_counter()
    candidates = sweeps.Candidates(store, plan)
    collected = time.perf_counter() - began
    before = len(store)
    began = time.perf_counter()
    for part in range(plan.parts):
        candidates.remove(part)
    spent = time.perf_counter() - began
    began = time.perf_counter()
    store.compact()
    compacted = time.perf_counter() - began
    gone = before - len(store)
    return {
        "headers scanned a second": rows / scanned,
        "ids collected a second": gone / collected,
        "rows removed a second": gone / spent,
        "rows given back a second": gone / compacted,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("build/bench/tables"))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = rates(arguments.rows) | pulls(arguments.rows, arguments.rounds, Path(folder))
    arguments.folder.mkdir(parents=True, exist_ok=True)
    (arguments.folder / "sweeping.json").write_text(json.dumps(found, indent=2) + "\n")
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
