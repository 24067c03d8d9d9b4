"""Admission and the eviction of rows on streams of ids: `make bench-tables`.

For one run: run.py [--small] [FOLDER].

Real row stores in this process. Admission: rows and memory with each threshold. Eviction: a table
with a cap, by the product's rule and by three others, on a stream whose distribution stays and on
one whose frequent ids change. What is compared is the share of pushed ids that have a row. Writes
build/bench/tables/tables.json.
"""

import json
import sys
from pathlib import Path

import numpy as np

from shoal.native.initializers import InitializerSpec
from shoal.native.optimizers import OptimizerSpec
from shoal.native.rowstore import RowStore
from shoal.ps.forgetting import caps, sweeps

PUSH = 4096
DIM = 16
EXPONENT = 1.05
DECAY = 0.98
"""Of a use, by each hundredth of the stream."""


def stream(seed, ids, draws, drift):
    """Pushes of distinct ids, int64 [n]. drift: by so many ids in the whole stream."""
    draw = np.random.default_rng(seed)
    weights = np.cumsum(np.arange(1, ids + 1) ** -EXPONENT)
    names = draw.permutation(ids + drift)
    pushes = draws // PUSH
    for push in range(pushes):
        ranks = np.searchsorted(weights, draw.random(PUSH) * weights[-1])
        yield np.unique(names[ranks + drift * push // pushes])


def store_of(admit_after=1):
    return RowStore(
        DIM, OptimizerSpec("adagrad"), InitializerSpec("zeros"), 1, admit_after=admit_after
    )


def push_to(store, ids, step):
    store.update(ids, np.ones((ids.size, DIM), np.float32), learning_rate=0.01, step=step)


def admission(ids, draws):
    found = {}
    for admit_after in (1, 2, 3, 5):
        store = store_of(admit_after)
        for step, pushed in enumerate(stream(0, ids, draws, 0), 1):
            push_to(store, pushed, step)
        found[admit_after] = {
            "rows": len(store),
            "counted": store.counting,
            "bytes": store.memory_bytes(),
        }
    return found


def carry_out(store, plan):
    """Remove what a plan of ps/forgetting/sweeps.py says."""
    candidates = sweeps.Candidates(store, plan)
    for part in range(plan.parts):
        candidates.remove(part)


def evict(store, wanted, step):
    """Remove so many rows, about, by the rule of ps/forgetting/sweeps.py."""
    chosen = sweeps.least_used(store, wanted, step)
    carry_out(store, sweeps.planned(0, step, chosen, sweeps.Found(None, 0), eviction=True))


def product(pushes, cap):
    """The share of pushed ids that had a row, by the rule of ps/forgetting/sweeps.py."""
    store, hits, seen = store_of(), 0, 0
    for step, pushed in enumerate(pushes, 1):
        before = len(store)
        push_to(store, pushed, step)
        hits += pushed.size - (len(store) - before)
        seen += pushed.size
        if len(store) > cap:
            wanted = len(store) - cap + cap // caps.FREE
            evict(store, wanted, step)
    return hits / seen


def other(pushes, cap, total, count, score):
    """The same by a rule that removes what has the lowest score of (last step, uses, decayed)."""
    last, uses, decayed = np.zeros(total), np.zeros(total), np.zeros(total)
    hits = seen = 0
    for step, pushed in enumerate(pushes, 1):
        if step % max(1, count // 100) == 0:
            decayed *= DECAY
        hits += int((uses[pushed] > 0).sum())
        seen += pushed.size
        last[pushed] = step
        uses[pushed] += 1
        decayed[pushed] += 1
        there = np.flatnonzero(uses)
        if there.size > cap:
            wanted = there.size - cap + cap // caps.FREE
            worth = score((last[there], uses[there], decayed[there]))
            gone = there[np.argpartition(worth, wanted)[:wanted]]
            uses[gone] = decayed[gone] = 0
    return hits / seen


RULES = {
    "LRU": lambda row: row[0],
    "LFU": lambda row: row[1] + row[0] * 1e-9,
    "decayed LFU": lambda row: row[2] + row[0] * 1e-9,
}


def eviction(ids, draws, seeds):
    found = {}
    for name, drift in (("stationary", 0), ("drifting", ids // 4)):
        lines = found[name] = {}
        for seed in range(seeds):
            args = (seed, ids, draws, drift)
            cap, count = ids // 20, draws // PUSH
            lines.setdefault("shoal", []).append(product(stream(*args), cap))
            for rule, score in RULES.items():
                value = other(stream(*args), cap, ids + drift, count, score)
                lines.setdefault(rule, []).append(value)
        found[name] = {rule: float(np.mean(values)) for rule, values in lines.items()}
    return found


def main():
    small = "--small" in sys.argv
    ids, draws, seeds = (100_000, 400_000, 1) if small else (2_000_000, 10_000_000, 3)
    result = {"ids": ids, "draws": draws, "admission": admission(ids, draws)}
    result["share of pushed ids with a row"] = eviction(ids, draws, seeds)
    folders = [each for each in sys.argv[1:] if each != "--small"]
    folder = Path(folders[0] if folders else "build/bench/tables")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tables.json").write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
