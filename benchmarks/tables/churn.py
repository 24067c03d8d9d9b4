"""Measure tables that forget: rows, memory and AUC over a stream of clicks that changes.

    python benchmarks/tables/churn.py [--small] [--days N] [--examples N] [--seeds N] [FOLDER]

SYNTHETIC: days of examples with six ids each, of users, items, an hour, a site, a device and a
session. Each day a share of the items is replaced by new ones, most sessions are seen only once,
and the label is drawn from a logistic model of all six, in which the effects of items walk at
random. So the best AUC that any model can reach is known: that of the true probabilities.

The model is logistic regression over the six ids, in one real row store of the servers (Adagrad),
without anything else of a job. Settings: everything is kept; admission; expiry after a week; a cap
of a fifth of the rows, by the servers' rule, by three others, and by hashing ids to as many rows.
Each example is predicted before it is trained on; AUC is over the last third of the days, in the
first pass. Then one more day is predicted, after one and after two passes over all.

Writes churn.json and churn.svg to build/bench/tables.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from run import carry_out, evict

from shoal.native.initializers import InitializerSpec
from shoal.native.optimizers import OptimizerSpec
from shoal.native.rowstore import RowStore
from shoal.ps.forgetting import caps, sweeps

BATCH = 4096
FIELDS = 6
USER, ITEM, HOUR, SITE, DEVICE, SESSION = range(FIELDS)
EXPONENT = 1.05
RATE = 0.05
TTL_DAYS = 7
REPLACED = 0.03
"""Of the items, each day."""
ONCE = 0.6
"""Of the sessions: those that are seen once."""
CAP = 5
"""The part of the rows of the table that keeps everything, which a cap leaves."""


@dataclass(frozen=True)
class Stream:
    """The examples. scale: of the numbers of users and items."""

    seed: int
    days: int
    examples: int
    users: int
    items: int

    def day_batches(self) -> Iterator[tuple[int, np.ndarray, np.ndarray, np.ndarray]]:
        """Day, ids int64 [n, FIELDS], labels and true probabilities, batch by batch.

        One day more than `days`.
        """
        draw = np.random.default_rng(self.seed)
        sizes = (self.users, self.items, 24, 1000, 100, 10_000)
        tables = [np.cumsum(np.arange(1, size + 1) ** -EXPONENT) for size in sizes]
        order = [draw.permutation(size) for size in sizes]
        effects = [
            draw.normal(0, scale, size)
            for scale, size in zip((0.8, 1, 0.3, 0.5, 0.3, 0.3), sizes, strict=True)
        ]
        born = np.zeros(self.items, np.int64)
        once = 0
        for day in range(self.days + 1):
            renewed = draw.random(self.items) < REPLACED
            born[renewed] += 1
            walk = 0.95 * effects[ITEM] + draw.normal(0, 0.31, self.items)
            effects[ITEM] = np.where(renewed, draw.normal(0, 1, self.items), walk)
            for _ in range(self.examples // BATCH):
                values = [
                    order[k][np.searchsorted(tables[k], draw.random(BATCH) * tables[k][-1])]
                    for k in range(FIELDS)
                ]
                logits = sum(effects[k][values[k]] for k in range(FIELDS)) - 2.0
                chance = 1 / (1 + np.exp(-logits))
                labels = draw.random(BATCH) < chance
                ids = np.stack(values, axis=1).astype(np.int64)
                ids[:, ITEM] += born[ids[:, ITEM]] * self.items
                single = draw.random(BATCH) < ONCE
                ids[single, SESSION] = 1_000_000 + once + np.arange(int(single.sum()))
                once += int(single.sum())
                yield day, ids + (np.arange(FIELDS, dtype=np.int64) << 40), labels, chance


@dataclass
class Setting:
    """The way a table forgets. cap: rows. rule: of a cap; None: the servers'."""

    admit_after: int = 1
    days: int = 0
    cap: int = 0
    rule: Callable[[Kept], np.ndarray] | None = None
    buckets: int = 0


@dataclass
class Kept:
    """The rows that exist, for other rules of a cap. decayed: uses, halved each day."""

    ids: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    last: np.ndarray = field(default_factory=lambda: np.zeros(0))
    uses: np.ndarray = field(default_factory=lambda: np.zeros(0))
    decayed: np.ndarray = field(default_factory=lambda: np.zeros(0))

    def pushed(self, ids: np.ndarray, step: int) -> None:
        """These distinct, sorted ids were pushed."""
        places = np.searchsorted(self.ids, ids)
        known = places < self.ids.size
        known[known] = self.ids[places[known]] == ids[known]
        at = places[known]
        self.last[at] = step
        self.uses[at] += 1
        self.decayed[at] += 1
        new, before = ids[~known], places[~known]
        self.ids = np.insert(self.ids, before, new)
        self.last = np.insert(self.last, before, step)
        self.uses = np.insert(self.uses, before, 1)
        self.decayed = np.insert(self.decayed, before, 1)

    def without(self, places: np.ndarray) -> np.ndarray:
        """Forget those at these places; their ids."""
        gone = self.ids[places]
        for name in ("ids", "last", "uses", "decayed"):
            setattr(self, name, np.delete(getattr(self, name), places))
        return gone


RULES: dict[str, Callable[[Kept], np.ndarray]] = {
    "LRU": lambda kept: kept.last,
    "LFU": lambda kept: kept.uses + kept.last * 1e-9,
    "decayed LFU": lambda kept: kept.decayed + kept.last * 1e-9,
}


class Model:
    """Logistic regression over ids, whose table forgets as a setting says."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.table = RowStore(
            1,
            OptimizerSpec("adagrad"),
            InitializerSpec("zeros"),
            1,
            admit_after=setting.admit_after,
        )
        self.kept = Kept()
        self.step = 0
        self._began: list[int] = []

    def begin_day(self, day: int) -> None:
        """Expire what was last used before the days that are kept."""
        self._began.append(self.step + 1)
        self.kept.decayed *= 0.5
        if self.setting.days and day >= self.setting.days:
            cut = self._began[day - self.setting.days]
            while (found := sweeps.expired(self.table, cut)) and any(each.count for each in found):
                carry_out(self.table, sweeps.planned(0, self.step, *found, eviction=False))

    def predict(self, ids: np.ndarray) -> np.ndarray:
        """The probabilities of examples, float32 [n]. ids: int64 [n, FIELDS]."""
        rows = self.table.lookup(self._named(ids).ravel(), missing="default")
        logits = rows.reshape(ids.shape).sum(axis=1)
        return 1 / (1 + np.exp(-logits))

    def train(self, ids: np.ndarray, errors: np.ndarray) -> None:
        """One push. errors: of the predictions, [n]."""
        self.step += 1
        distinct, inverse = np.unique(self._named(ids), return_inverse=True)
        gradients = np.bincount(inverse.ravel(), np.repeat(errors, FIELDS), distinct.size)
        self.table.update(
            distinct,
            gradients.astype(np.float32)[:, None],
            learning_rate=RATE,
            step=self.step,
        )
        if self.setting.rule is not None:
            self.kept.pushed(distinct, self.step)
        if self.setting.cap and len(self.table) > self.setting.cap:
            self._evict()

    def _named(self, ids: np.ndarray) -> np.ndarray:
        if not self.setting.buckets:
            return ids
        mixed = ids.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        return ((mixed >> np.uint64(20)) % np.uint64(self.setting.buckets)).astype(np.int64)

    def _evict(self) -> None:
        wanted = len(self.table) - self.setting.cap + self.setting.cap // caps.FREE
        if self.setting.rule is None:
            evict(self.table, wanted, self.step)
        else:
            worth = self.setting.rule(self.kept)
            self.table.remove(self.kept.without(np.argpartition(worth, wanted)[:wanted]))


def area(scores: np.ndarray, labels: np.ndarray) -> float:
    """The area under the ROC curve; ties count half."""
    order = np.argsort(scores, kind="stable")
    _, inverse, counts = np.unique(scores[order], return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    positive = labels[order]
    ones = positive.sum()
    return float((ranks[positive].sum() - ones * (ones + 1) / 2) / (ones * (labels.size - ones)))


def run(stream: Stream, setting: Setting, passes: int = 1) -> dict[str, Any]:
    """Rows, bytes and AUC by day, and the AUC of the last third and of the day after."""
    model = Model(setting)
    found: dict[str, Any] = {"rows": [], "bytes": [], "auc": []}
    late: list[tuple[np.ndarray, np.ndarray]] = []
    for turn in range(passes):
        current, scores, labels = -1, [], []
        for day, ids, label, _ in stream.day_batches():
            if day != current and current >= 0:
                _close(found, model, scores, labels)
                scores, labels = [], []
            if day != current and day < stream.days:
                model.begin_day(turn * stream.days + day)
            current = day
            predicted = model.predict(ids)
            scores.append(predicted)
            labels.append(label)
            if day < stream.days:
                model.train(ids, predicted - label)
                if turn == 0 and day >= stream.days * 2 // 3:
                    late.append((predicted, label))
        after = area(np.concatenate(scores), np.concatenate(labels))
    scores, labels = (np.concatenate(each) for each in zip(*late, strict=True))
    return {**found, "last third": area(scores, labels), "day after": after}


def _close(found: dict[str, Any], model: Model, scores: list[Any], labels: list[Any]) -> None:
    found["rows"].append(len(model.table))
    found["bytes"].append(model.table.memory_bytes())
    found["auc"].append(area(np.concatenate(scores), np.concatenate(labels)))


def best(stream: Stream) -> float:
    """The AUC of the true probabilities, over the last third."""
    late = [
        (chance, label)
        for day, _, label, chance in stream.day_batches()
        if stream.days * 2 // 3 <= day < stream.days
    ]
    return area(*(np.concatenate(each) for each in zip(*late, strict=True)))


def settings(cap: int) -> dict[str, Setting]:
    """By name. cap: rows of those that have one."""
    capped = {f"cap, {name}": Setting(cap=cap, rule=rule) for name, rule in RULES.items()}
    return {
        "admit_after 2": Setting(admit_after=2),
        "admit_after 3": Setting(admit_after=3),
        "expire_after 7 days": Setting(days=TTL_DAYS),
        "cap, shoal": Setting(cap=cap),
        **capped,
        "hashed to as many rows": Setting(buckets=cap),
    }


def plot(results: dict[str, dict[str, Any]], path: Path) -> None:
    """Rows, memory and AUC by day, of one seed."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(3, 1, figsize=(7, 9), sharex=True)
    for axis, (key, scale, name) in zip(
        axes, (("rows", 1e6, "million rows"), ("bytes", 1e6, "MB"), ("auc", 1, "AUC")), strict=True
    ):
        for setting, found in results.items():
            values = np.array(found[key]) / scale
            axis.plot(np.arange(1, values.size + 1), values, label=setting)
        axis.set_ylabel(name)
    axes[-1].set_xlabel("day")
    axes[0].legend(fontsize=7)
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", nargs="?", default="build/bench/tables")
    parser.add_argument("--small", action="store_true", help="a try of a few seconds")
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--examples", type=int, default=400_000, help="of a day")
    parser.add_argument("--users", type=int, default=2_000_000)
    parser.add_argument("--items", type=int, default=500_000)
    parser.add_argument("--seeds", type=int, default=1)
    given = parser.parse_args()
    if given.small:
        given.days, given.examples, given.users, given.items = 9, 3 * BATCH, 5000, 2000
    folder = Path(given.folder)
    folder.mkdir(parents=True, exist_ok=True)
    results: dict[str, list[dict[str, Any]]] = {}
    bests = []
    for seed in range(given.seeds):
        stream = Stream(seed, given.days, given.examples, given.users, given.items)
        bests.append(best(stream))
        whole = run(stream, Setting())
        results.setdefault("everything", []).append(whole)
        for name, setting in settings(whole["rows"][-1] // CAP).items():
            results.setdefault(name, []).append(run(stream, setting))
        for name, setting in (("everything", Setting()), ("admit_after 2", Setting(admit_after=2))):
            twice = run(stream, setting, passes=2)
            results.setdefault(f"{name}, two passes", []).append(twice)
        _print(results, bests)
    (folder / "churn.json").write_text(
        json.dumps({"arguments": vars(given), "best": bests, "settings": results}, indent=1) + "\n"
    )
    plot(
        {name: each[0] for name, each in results.items() if "passes" not in name},
        folder / "churn.svg",
    )


def _print(results: dict[str, list[dict[str, Any]]], bests: list[float]) -> None:
    print(f"seed {len(bests) - 1}: best AUC of the last third {bests[-1]:.4f}")
    for name, runs in results.items():
        last = runs[-1]
        print(
            f"  {name:26s} AUC {last['last third']:.4f}, day after {last['day after']:.4f}, "
            f"{last['rows'][-1]:>9,} rows, {last['bytes'][-1] / 1e6:7.1f} MB",
            flush=True,
        )


if __name__ == "__main__":
    main()
