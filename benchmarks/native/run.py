"""The row store against the machine's limit and other systems: a table of ratios.

    python benchmarks/native/run.py [--only NAME] [--dim D] [--operation NAME] [--rounds N]

For each workload, the store and one peer at a time run the same batches alternately, so
that a machine whose speed drifts slows both; a ratio is the median over the rounds of
the two times of one round. Prints a table and writes build/bench/native.json: a list of
{name, operation, dim, ids, threads, value, unit, against, ratio}. A ratio above 1 means
that the store is faster; against the flat limit it is the share reached. A run of a part
(--only, --dim, --operation) replaces its own lines in the file and leaves the others.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# One thread each, whatever the machine has; read when the libraries are loaded.
os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}

import numpy as np
from peers import PEERS, RATE, FlatLimit
from rich.console import Console
from rich.table import Table

from shoal.native import ids as native_ids
from shoal.native.gradients import sum_by_inverse
from shoal.native.initializers import InitializerSpec
from shoal.native.optimizers import OptimizerSpec
from shoal.native.rowstore import RowStore, use_cores

WORKLOADS = ((16, 10_000_000), (64, 2_000_000))
IDS = 65_536
BATCHES = 24
OPERATIONS = ("lookup", "sgd", "adagrad", "rowwise_adagrad", "adam")
OUTPUT = Path("build/bench/native.json")

Results = list[dict[str, Any]]


def uniform(rows: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Batches of distinct ids."""
    return [rng.choice(rows, IDS, replace=False) for _ in range(BATCHES)]


def zipf(rows: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Batches with repeats, drawn by a power law of exponent 1.05 over all rows."""
    weights = np.arange(1, rows + 1, dtype=np.float64) ** -1.05
    total = np.cumsum(weights)
    order = rng.permutation(rows)  # popular ids lie anywhere
    return [order[np.searchsorted(total, rng.random(IDS) * total[-1])] for _ in range(BATCHES)]


class Store:
    """One row store with one optimizer, filled."""

    def __init__(self, rows: int, dim: int, operation: str) -> None:
        # A lookup is measured on the table it has in training with the cheapest rule.
        kind = "sgd" if operation == "lookup" else operation
        self._store = RowStore(dim, OptimizerSpec(kind), InitializerSpec("uniform"), 0)
        for first in range(0, rows, 1 << 18):
            self._store.insert(np.arange(first, min(first + (1 << 18), rows)))
        self._out = np.empty((IDS, dim), np.float32)
        self._gradients = np.random.default_rng(1).normal(size=(IDS, dim)).astype(np.float32)
        self._operation = operation

    def run(self, ids: np.ndarray) -> None:
        """The operation on distinct ids."""
        if self._operation == "lookup":
            self._store.lookup(ids, self._out)
        else:
            self._store.update(ids, self._gradients, learning_rate=RATE, step=1)

    def many(self, batches: list[np.ndarray]) -> None:
        """The operation on batch after batch, as one of a server's threads has it."""
        out = np.zeros_like(self._out) if self._operation == "lookup" else self._out
        for ids in batches:
            if self._operation == "lookup":
                self._store.lookup(ids, out)
            else:
                self._store.update(ids, self._gradients, learning_rate=RATE, step=1)

    def deduplicated(self, ids: np.ndarray) -> None:
        """The operation on ids with repeats: dedup first, as a worker does."""
        unique, inverse, _ = native_ids.unique(ids)
        if self._operation == "lookup":
            self._store.lookup(unique, self._out[: unique.size])
        else:
            summed = sum_by_inverse(self._gradients, inverse, unique.size)
            self._store.update(unique, summed, learning_rate=RATE, step=1)


def seconds(call: Callable[[np.ndarray], Any], ids: np.ndarray) -> float:
    """Time of one call; a call that prepares returns what is to be timed."""
    if getattr(call, "prepares", False):
        prepared = call(ids)
        began = time.perf_counter()
        prepared()
    else:
        began = time.perf_counter()
        call(ids)
    return time.perf_counter() - began


def paired(
    ours: Callable[[np.ndarray], Any],
    theirs: Callable[[np.ndarray], Any],
    batches: list[np.ndarray],
    rounds: int,
    their_batches: list[np.ndarray] | None = None,
) -> tuple[float, float]:
    """(our median seconds, median of their time by ours) over alternating calls.

    their_batches: the peer's, where they are not ours.
    """
    their_batches = their_batches or batches
    for warm in range(2):
        seconds(ours, batches[warm])
        seconds(theirs, their_batches[warm])
    times, ratios = [], []
    for number in range(rounds):
        place = number % len(batches)
        a, b = seconds(ours, batches[place]), seconds(theirs, their_batches[place])
        times.append(a)
        ratios.append(b / a)
    return float(np.median(times)), float(np.median(ratios))


def compare(
    peer: Any, dim: int, rows: int, rounds: int, operations: tuple[str, ...]
) -> Iterator[dict[str, Any]]:
    """Compare the operations that the peer has, with distinct ids and one thread."""
    batches = uniform(rows, np.random.default_rng(0))
    held = peer(rows, dim, IDS)
    theirs = held.operations()
    for operation in operations:
        if operation not in theirs:
            continue
        store = Store(rows, dim, operation)
        time_, ratio = paired(store.run, theirs[operation], batches, rounds)
        yield row("uniform", operation, dim, 1, time_, peer.name, ratio)
        if peer is FlatLimit:
            skewed = zipf(rows, np.random.default_rng(0))
            time_, ratio = paired(store.deduplicated, theirs[operation], skewed, rounds, batches)
            yield row("zipf", operation, dim, 1, time_, peer.name, ratio)
            time_, ratio = paired(store.deduplicated, theirs[operation], skewed, rounds)
            yield row("zipf", operation, dim, 1, time_, f"{peer.name}, same ids", ratio)
            time_, ratio = two_threads(store.many, batches, rounds)
            yield row("uniform", operation, dim, 2, time_, "one thread", ratio)
            # What the machine's second processor adds, memory being shared.
            time_, ratio = two_threads(held.many(operation), batches, rounds)
            yield row("flat limit itself", operation, dim, 2, time_, "one thread", ratio)
        del store
        gc.collect()


def two_threads(
    many: Callable[[list[np.ndarray]], None], batches: list[np.ndarray], rounds: int
) -> tuple[float, float]:
    """(seconds a batch with two threads, rate by that of one thread). many: runs batches.

    Threads take batch after batch: starting one costs a tenth of what a batch takes.
    """
    half = len(batches) // 2
    both, ratios = [], []
    for _ in range(max(3, rounds // 4)):
        began = time.perf_counter()
        many(batches)
        single = time.perf_counter() - began
        other = threading.Thread(target=many, args=(batches[half:],))
        began = time.perf_counter()
        other.start()
        many(batches[:half])
        other.join()
        both.append((time.perf_counter() - began) / len(batches))
        ratios.append(single / len(batches) / both[-1])
    return float(np.median(both)), float(np.median(ratios))


def row(
    name: str, operation: str, dim: int, threads: int, time_: float, against: str, ratio: float
) -> dict[str, Any]:
    """A line of native.json."""
    return {
        "name": name,
        "operation": operation,
        "dim": dim,
        "ids": IDS,
        "threads": threads,
        "value": round(IDS / time_ / 1e6, 2),
        "unit": "million rows/s",
        "against": against,
        "ratio": round(ratio, 3),
    }


def growth(dim: int, rows: int) -> Results:
    """Inserting new ids: time, memory, and the slowest calls against the median one."""
    rng = np.random.default_rng(0)
    new = rng.permutation(rows).astype(np.int64) * 1_000_003
    store = RowStore(dim, OptimizerSpec("adagrad"), InitializerSpec("uniform"), 0)
    calls = []
    began = time.perf_counter()
    for first in range(0, rows, 1024):
        call = time.perf_counter()
        store.insert(new[first : first + 1024])
        calls.append(time.perf_counter() - call)
    total = time.perf_counter() - began
    times = np.array(calls)
    bare = rows * dim * 4 * 2  # values and one slot
    common = {"dim": dim, "ids": rows, "threads": 1, "operation": "insert"}
    median = float(np.median(times))
    return [
        {"name": name, **common, "value": value, "unit": unit, "against": against, "ratio": ratio}
        for name, value, unit, against, ratio in (
            ("growth", round(rows / total / 1e6, 2), "million rows/s", "", None),
            (
                "growth memory",
                round(store.memory_bytes() / 1e6),
                "MB",
                "bare rows",
                round(store.memory_bytes() / bare, 3),
            ),
            (
                "growth overhead",
                round((store.memory_bytes() - bare) / rows, 1),
                "bytes/row",
                "",
                None,
            ),
            (
                "growth p99.9",
                round(float(np.quantile(times, 0.999)) * 1e3, 3),
                "ms",
                "median call",
                round(float(np.quantile(times, 0.999)) / median, 1),
            ),
            (
                "growth slowest",
                round(float(times.max()) * 1e3, 3),
                "ms",
                "median call",
                round(float(times.max()) / median, 1),
            ),
        )
    ]


def show(results: Results) -> None:
    """Print the table."""
    table = Table(title=f"shoal.native, batches of {IDS} ids")
    for heading in ("workload", "operation", "dim", "threads", "value", "unit", "against"):
        table.add_column(heading)
    table.add_column("ratio", justify="right")
    for each in results:
        ratio = each["ratio"]
        shown = (each[key] for key in ("name", "operation", "dim", "threads", "value", "unit"))
        table.add_row(
            *map(str, shown),
            each["against"],
            "" if ratio is None else f"{ratio:.2f}",
        )
    Console(width=120).print(table)


def line(each: dict[str, Any]) -> tuple[Any, ...]:
    """The key of a line of native.json: the measurement that it describes."""
    return tuple(each[key] for key in ("name", "operation", "dim", "threads", "against"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="a peer by (part of) its name, or 'growth'")
    parser.add_argument("--dim", type=int, choices=[dim for dim, _ in WORKLOADS])
    parser.add_argument("--operation", choices=OPERATIONS)
    parser.add_argument("--rounds", type=int, default=60, help="pairs of calls per figure")
    options = parser.parse_args()
    use_cores(1)  # other numbers of threads are compared as such
    operations = (options.operation,) if options.operation else OPERATIONS
    results: Results = []
    for dim, rows in WORKLOADS:
        if options.dim not in (None, dim):
            continue
        for peer in PEERS:
            if options.only not in peer.name:
                continue
            try:
                results += list(compare(peer, dim, rows, options.rounds, operations))
            except ImportError as error:
                print(f"{peer.name}: skipped, not installed ({error})")
            gc.collect()
        if options.only in "growth" and not options.operation:
            results += growth(dim, rows)
    show(results)
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    if OUTPUT.exists() and (options.only or options.dim or options.operation):
        measured = {line(each) for each in results}
        before = json.loads(OUTPUT.read_text())
        results = [each for each in before if line(each) not in measured] + results
    OUTPUT.write_text(json.dumps(results, indent=1) + "\n")
    print(f"written to {OUTPUT}")


if __name__ == "__main__":
    main()
