"""Which ranges each epoch of training has, and in which order they are given out.

A pure function of the sources, the seed and the epoch, so that it is the same in every run
and after every restart. Owns cutting, shuffling and --max-steps; which of it is still to be
trained is tasks.py's. Ranges are numbered through all sources, and made when they are asked
for: an epoch of millions of them is an array of their numbers.
"""

from __future__ import annotations

import bisect
import hashlib
import itertools
import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.master.work.units import Source, Span

Numbers = npt.NDArray[np.int64]


class Order:
    """The spans of an epoch, in the order in which they are given out.

    last_end: of the last of them, which --max-steps may have cut; -1 if it has not.
    """

    def __init__(self, epochs: Epochs, epoch: int) -> None:
        self._epochs = epochs
        self._epoch = epoch

    def __getstate__(self) -> dict[str, Any]:
        return {"_epochs": self._epochs, "_epoch": self._epoch}  # the rest follows

    @cached_property
    def _cut(self) -> tuple[npt.NDArray[np.uint32], int]:
        return self._epochs.numbers(self._epoch)

    def __len__(self) -> int:
        return int(self._epochs.size(self._epoch)[0])

    def __getitem__(self, place: int) -> tuple[Span, int]:
        """A span, and how much of its head was trained before: nothing."""
        numbers, last_end = self._cut
        span = self._epochs.span(int(numbers[place]))
        if place == len(numbers) - 1 and last_end >= 0:
            span = Span(span.source, span.start, last_end)
        return span, 0

    def find(self, source: str, record: int) -> int | None:
        """The place of the span with a record; None if none of them has it."""
        number = self._epochs.number_of(source, record)
        places = np.flatnonzero(self._cut[0] == number) if number is not None else ()
        return next((int(p) for p in places if self[int(p)][0].end > record), None)

    def records(self, begin: int) -> int:
        """Records of the spans from a place on."""
        left = len(self) - begin
        if left <= 0:
            return 0
        whole = int(self._epochs.lengths(self._cut[0][begin:-1]).sum())
        return whole + len(self[len(self) - 1][0])


class Spans:
    """Spans as a job that was resumed has left them, in the order in which they are given out."""

    def __init__(self, names: Sequence[str], columns: Numbers) -> None:
        """columns: [4, spans]: source, by its place in `names`, start, end, trained before."""
        self._names = tuple(names)
        self._columns = columns

    def __getstate__(self) -> dict[str, Any]:
        return {"names": self._names, "columns": self._columns.tobytes()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._names = state["names"]
        self._columns = np.frombuffer(state["columns"], np.int64).reshape(4, -1)

    def __len__(self) -> int:
        return int(self._columns.shape[1])

    def __getitem__(self, place: int) -> tuple[Span, int]:
        """A span, and how much of its head was trained before."""
        source, start, end, before = map(int, self._columns[:, place])
        return Span(self._names[source], start, end), before

    def find(self, source: str, record: int) -> int | None:
        """The place of the span with a record; None if none of them has it."""
        sources, starts, ends, _ = self._columns
        there = (starts <= record) & (record < ends) & (sources == self._names.index(source))
        return next(map(int, np.flatnonzero(there)), None)

    def records(self, begin: int) -> int:
        """Records of the spans from a place on."""
        _, starts, ends, _ = self._columns[:, begin:]
        return int((ends - starts).sum())


class Epochs:
    """The spans of every epoch.

    sources: what to train on, in any order that is the same in every run.
    records_per_task: length of a whole span.
    count: passes over the sources; fewer if max_steps ends in an earlier one.
    seed: with the epoch it decides the order of spans; nothing else does.
    max_steps: train no more than this many minibatches of `minibatch_size` records, the first
        of the order that they have anyway; 0 for all.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        *,
        records_per_task: int,
        count: int,
        seed: int,
        max_steps: int,
        minibatch_size: int,
    ) -> None:
        self.names = tuple(source.name for source in sources)
        self._records = tuple(source.records for source in sources)
        self._length = records_per_task
        self._seed = seed
        self._max_steps = max_steps
        self._minibatch_size = minibatch_size
        tasks = [math.ceil(records / records_per_task) for records in self._records]
        # The number of the first span of each source, and that of all spans.
        self._first = tuple(itertools.accumulate(tasks, initial=0))
        self.records_in_each = sum(self._records)
        self.count = count
        if max_steps and (steps := self._steps_per_epoch()):
            self.count = min(count, math.ceil(max_steps / steps))
        self._last = self._first[-1], self.records_in_each
        if max_steps:
            numbers, last_end = self.numbers(self.count - 1)
            records = int(self.lengths(numbers).sum())
            if last_end >= 0:
                records -= self.span(int(numbers[-1])).end - last_end
            self._last = len(numbers), records
        self.records = self.records_in_each * (self.count - 1) + self._last[1]
        self.tasks = self._first[-1] * (self.count - 1) + self._last[0]

    def _steps_per_epoch(self) -> int:
        whole = math.ceil(self._length / self._minibatch_size)
        return sum(
            records // self._length * whole
            + math.ceil(records % self._length / self._minibatch_size)
            for records in self._records
        )

    def size(self, epoch: int) -> tuple[int, int]:
        """How many spans an epoch has, and how many records."""
        if epoch == self.count - 1:
            return self._last
        return self._first[-1], self.records_in_each

    def span(self, number: int) -> Span:
        """The span of a number."""
        source = bisect.bisect_right(self._first, number) - 1
        start = (number - self._first[source]) * self._length
        return Span(self.names[source], start, min(start + self._length, self._records[source]))

    def number_of(self, source: str, record: int) -> int | None:
        """The number of the span that has a record; None if there is none."""
        if source not in self.names:
            return None
        place = self.names.index(source)
        if not 0 <= record < self._records[place]:
            return None
        return self._first[place] + record // self._length

    def lengths(self, numbers: npt.NDArray[Any]) -> Numbers:
        """Records of the spans of these numbers."""
        lengths = np.full(len(numbers), self._length, np.int64)
        for first, end, records in zip(self._first, self._first[1:], self._records, strict=False):
            if records % self._length:
                lengths[numbers == end - 1] = records - (end - 1 - first) * self._length
        return lengths

    def shuffled(self, count: int, what: str) -> npt.NDArray[Any]:
        """The numbers below `count` in an order that depends on the seed and on `what` alone."""
        # By a hash of a text: neighbouring seeds and epochs give unrelated orders. RandomState:
        # its numbers are the same in every version of numpy.
        digest = hashlib.sha512(f"{self._seed}/{what}".encode()).digest()
        return np.random.RandomState(np.frombuffer(digest, "<u4")).permutation(count)

    def numbers(self, epoch: int) -> tuple[npt.NDArray[np.uint32], int]:
        """The numbers of an epoch's spans in order, and where the last ends; -1: where it does."""
        order = self.shuffled(self._first[-1], str(epoch)).astype(np.uint32)
        if not self._max_steps:
            return order, -1
        left = self._max_steps - epoch * self._steps_per_epoch()
        steps = -(-self.lengths(order) // self._minibatch_size)
        before = np.cumsum(steps) - steps
        kept = order[before < left]
        if not len(kept):
            return kept, -1
        last = self.span(int(kept[-1]))
        allowed = (left - int(before[len(kept) - 1])) * self._minibatch_size
        return kept, min(last.end, last.start + allowed)
