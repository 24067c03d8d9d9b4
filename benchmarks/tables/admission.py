"""Measure admission: memory saved, and the cost of pushes. A part of `make bench-tables`.

    python benchmarks/tables/admission.py [--draws N] [FOLDER]

Real row stores of dim 16 with Adagrad; pushes of 4,096 draws of as many ids as there are draws, by
Zipf 1.05. Memory: the anonymous memory that a process takes on while it applies all pushes to a
store, a process for each threshold; the draws are in a file. Pushes: a store without and one with
`admit_after=3` take turns push by push, on a fifth of the draws and then on rows that all exist;
the ratio is of the sums of their times. Writes admission.json to build/bench/tables.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from run import DIM, EXPONENT, PUSH, push_to, store_of

from shoal.native.rowstore import RowStore

THRESHOLDS = (1, 2, 3, 5)
EXISTING = 1_000_000


def write_draws(path: Path, draws: int) -> None:
    """A file of int64 ids, ranks of Zipf."""
    weights = np.cumsum(np.arange(1, draws + 1) ** -EXPONENT)
    chance = np.random.default_rng(0)
    with path.open("wb") as file:
        for first in range(0, draws, 1 << 20):
            some = chance.random(min(1 << 20, draws - first)) * weights[-1]
            np.searchsorted(weights, some).tofile(file)


def pushes_of(path: Path, draws: int) -> Iterator[np.ndarray]:
    """Distinct ids of one push after the other, int64 [n]."""
    for first in range(0, draws, PUSH):
        yield np.unique(np.fromfile(path, np.int64, min(PUSH, draws - first), offset=8 * first))


def anonymous_memory() -> int:
    """The anonymous memory of this process, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))


def memory(path: Path, draws: int, admit_after: int) -> dict[str, int]:
    """Rows, counted ids and bytes after all draws; in a process of its own."""
    before = anonymous_memory()
    store = store_of(admit_after)
    for step, ids in enumerate(pushes_of(path, draws), 1):
        push_to(store, ids, step)
    return {
        "rows": len(store),
        "counted": store.counting,
        "bytes": anonymous_memory() - before,
        "bytes by the store": store.memory_bytes(),
    }


def ratio(stores: tuple[RowStore, RowStore], pushes: Iterator[np.ndarray], step: int) -> float:
    """The rate of the second store by that of the first, which take turns."""
    spent = [0, 0]
    for number, ids in enumerate(pushes):
        gradients = np.ones((ids.size, DIM), np.float32)
        for each in (number & 1, 1 - (number & 1)):
            began = time.perf_counter_ns()
            stores[each].update(ids, gradients, learning_rate=0.01, step=step + number)
            spent[each] += time.perf_counter_ns() - began
    return spent[0] / spent[1]


def existing() -> Iterator[np.ndarray]:
    """Pushes of ids that all have rows."""
    chance = np.random.default_rng(1)
    for _ in range(2000):
        yield np.unique(chance.integers(0, EXISTING, PUSH))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--draws", type=int, default=100_000_000)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("build/bench/tables"))
    arguments = parser.parse_args()
    draws = arguments.draws
    found: dict[str, Any] = {"draws": draws, "memory": {}}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "draws")
        write_draws(path, draws)
        for admit_after in THRESHOLDS:
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                line = pool.apply(memory, (path, draws, admit_after))
            line["of everything"] = line["bytes"] / found["memory"].get(1, line)["bytes"]
            found["memory"][admit_after] = line
            print(admit_after, line, flush=True)
        stores = store_of(1), store_of(3)
        found["pushes"] = ratio(stores, pushes_of(path, draws // 5), 1)
    stores = store_of(1), store_of(3)
    for step in range(1, 4):
        for store in stores:
            push_to(store, np.arange(EXISTING), step)
    found["pushes of rows that exist"] = ratio(stores, existing(), 4)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    (arguments.folder / "admission.json").write_text(json.dumps(found, indent=2) + "\n")
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
