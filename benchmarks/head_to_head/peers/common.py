"""The frame of each peer's script: its arguments, its data, its progress and its line of JSON.

Needs NumPy alone, as each peer's environment is its own. A script trains one pass over the
stream in its order and prints one line: {"records", "seconds" (of them, after the warm-up),
"start_seconds" (from the command to the first trained minibatch), "auc", "versions", "note"}.
Meanwhile DIR/progress has the records trained so far (int64), and DIR/roles.json the process ids
of "worker" and "server", for the driver that kills them.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
END_TO_END = HERE.parents[1] / "end_to_end"
sys.path.insert(0, str(END_TO_END))
from network_sizes import DIM, UNITS  # noqa: E402, F401

RATE = float(os.environ.get("HEAD_TO_HEAD_RATE", "0.005"))
"""Adagrad's learning rate."""
EPSILON = 1e-10
"""Of the Adagrads that add it to the sums before they take the root: too small to tell there."""
INITIAL = 0.01
"""Rows of factors begin uniformly between plus and minus this; linear weights at 0."""
ACCUMULATOR = 1e-7
"""Adagrad's sums of squares begin here: as small as the squares of a mean over a minibatch are."""


def options(*more: str) -> argparse.Namespace:
    """The arguments that the driver gives each peer; `more` come first, by position."""
    parser = argparse.ArgumentParser()
    for name in more:
        parser.add_argument(name)
    parser.add_argument("data", type=Path, help="folder that stream.py wrote")
    parser.add_argument("--ids", type=int, required=True)
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--warm", type=int, default=32, help="minibatches that are not timed")
    parser.add_argument("--dir", type=Path, required=True, help="folder for progress and files")
    parser.add_argument("--started", type=float, default=0.0, help="time.time() of the command")
    return parser.parse_args()


class Data:
    """The stream's arrays, mapped: ids [n, 26] int64, dense [n, 13] float32, labels [n] float32."""

    def __init__(self, folder: Path, part: str = "train") -> None:
        self.ids, self.dense, self.labels = (
            np.load(folder / f"{part}-{name}.npy", mmap_mode="r")
            for name in ("ids", "dense", "labels")
        )

    def __len__(self) -> int:
        return len(self.labels)

    def batches(self, size: int) -> Iterator[tuple[Any, Any, Any]]:
        """Whole minibatches in order, copied."""
        for first in range(0, len(self) - size + 1, size):
            at = slice(first, first + size)
            yield np.array(self.ids[at]), np.array(self.dense[at]), np.array(self.labels[at])

    def stacked(self, size: int) -> tuple[Any, Any, Any]:
        """Whole minibatches as arrays [minibatches, size, ...]."""
        count = len(self) // size
        return tuple(  # type: ignore[return-value]
            np.asarray(each[: count * size]).reshape(count, size, *each.shape[1:])
            for each in (self.ids, self.dense, self.labels)
        )


class Progress:
    """The records trained so far, for the driver, and the times of the line at the end."""

    def __init__(self, given: argparse.Namespace) -> None:
        given.dir.mkdir(parents=True, exist_ok=True)
        self._dir = given.dir
        self._file = os.open(given.dir / "progress", os.O_RDWR | os.O_CREAT)
        self._started = given.started or time.time()
        self._warm = given.warm * given.batch
        self._first = self._began = self._ended = 0.0
        self._before = self.records = 0

    def roles(self, **pids: int) -> None:
        """Tell the driver which process is the worker, and which the server."""
        path = self._dir / "roles.json"
        path.with_suffix(".part").write_text(json.dumps(pids))
        path.with_suffix(".part").rename(path)

    def at(self, records: int) -> None:
        """Note that so many records are trained."""
        now = time.time()
        if records and not self._first:
            self._first = now
        if not self._began and records >= self._warm:
            self._began, self._before = now, records
        if records > self.records:
            self._ended, self.records = now, records
            os.pwrite(self._file, struct.pack("<q", records), 0)

    def begin(self) -> None:
        """Begin to time now: something that is not to be timed came between."""
        self._began, self._before = time.time(), self.records

    def add(self, records: int) -> None:
        """Note that so many more records are trained."""
        self.at(self.records + records)

    def tell(self, auc: float, *packages: str, note: str = "", **more: Any) -> None:
        """Print the line."""
        line = {
            "records": self.records - self._before,
            "seconds": self._ended - self._began,
            "start_seconds": self._first - self._started,
            "auc": auc,
            "versions": {name: importlib.metadata.version(name) for name in packages},
            "note": note,
        }
        print(json.dumps(line | more), flush=True)


def area_under_curve(labels: Any, scores: Any) -> float:
    """The exact AUC of `scores` for labels 0 and 1; equal scores share their ranks."""
    found, inverse, counts = np.unique(
        np.asarray(scores, np.float64), return_inverse=True, return_counts=True
    )
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    positive = np.asarray(labels) > 0
    count = int(positive.sum())
    total = ranks[positive].sum() - count * (count + 1) / 2
    return float(total / (count * (len(found[inverse]) - count)))


def sizes(folder: Path) -> list[int]:
    """The ids of each column, which are one range of all ids."""
    return list(json.loads((folder / "sizes.json").read_text()))
