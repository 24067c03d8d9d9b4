"""Which ranges each epoch of training has, and in which order they are given out.

A pure function of the sources, the seed and the epoch, so that it is the same in every run
and after every restart. Owns shuffling and --max-steps; how sources are cut is cutting.py's, which
of it is still to be trained tasks.py's. Ranges are made when they are asked for: an epoch of
millions of them is an array of the numbers of their blocks. Blocks are shuffled; the ranges of one
stay in their order.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.base.shuffling import drawn_order
from shoal.master.work.tasks.cutting import Numbers, Ranges
from shoal.master.work.tasks.windows import Windows, with_windows
from shoal.master.work.units import Source, Span


class Order:
    """The spans of an epoch, in the order in which they are given out."""

    def __init__(self, epochs: Epochs, epoch: int) -> None:
        self._epochs = epochs
        self._epoch = epoch

    def __getstate__(self) -> dict[str, Any]:
        return {"_epochs": self._epochs, "_epoch": self._epoch}  # the rest follows

    @cached_property
    def _blocks(self) -> Blocks:
        return self._epochs.order(self._epoch)

    def __len__(self) -> int:
        return int(self._epochs.size(self._epoch)[0])

    def __getitem__(self, place: int) -> tuple[Span, int]:
        """A span, and how much of its head was trained before: nothing."""
        span = self._epochs.ranges.span(self._blocks.number(place))
        if place == len(self) - 1 and self._blocks.last_end >= 0:
            span = Span(span.source, span.start, self._blocks.last_end)
        return span, 0

    def block_end(self, place: int) -> int:
        """The place behind the block that the span at a place is of."""
        return min(self._blocks.block_end(place), len(self))

    def find(self, source: str, record: int) -> int | None:
        """The place of the span with a record; None if none of them has it."""
        number = self._epochs.ranges.number_of(source, record)
        place = None if number is None else self._blocks.place(number)
        if place is None or place >= len(self) or self[place][0].end <= record:
            return None
        return place

    def records(self, begin: int, end: int | None = None) -> int:
        """Records of the spans from a place on, up to another."""
        last = len(self) if end is None else end
        if begin >= last:
            return 0
        numbers = self._blocks.numbers(begin, last)
        records = int(self._epochs.ranges.lengths(numbers[:-1]).sum(dtype=np.int64))
        return records + len(self[last - 1][0])


class Blocks:
    """Blocks in an order, and so their ranges.

    ranges: that have them. order: the blocks' numbers. last_end: the record behind the last range,
    which --max-steps may have cut; -1 if it has not.
    """

    def __init__(self, ranges: Ranges, order: npt.NDArray[np.uint32], last_end: int = -1) -> None:
        self._ranges = ranges
        self._order = order
        self.last_end = last_end
        # The number of each block's first range, its place, and the place behind its last.
        self._firsts = self._begins = self._ends = np.zeros(0, np.int64)
        if not ranges.single:
            self._firsts, behind = ranges.of_blocks(order)
            self._ends = np.cumsum(behind - self._firsts)
            self._begins = self._ends - (behind - self._firsts)

    def number(self, place: int) -> int:
        """The number of the range at a place."""
        return int(self.numbers(place, place + 1)[0])

    def numbers(self, begin: int, end: int) -> Numbers:
        """The numbers of the ranges at these places."""
        if self._ranges.single:
            return self._order[begin:end].astype(np.int64)
        places = np.arange(begin, end)
        at = np.searchsorted(self._ends, places, "right")
        return np.asarray(self._firsts[at] + places - self._begins[at], np.int64)

    def block_end(self, place: int) -> int:
        """The place behind the block of the range at a place."""
        if self._ranges.single:
            return place + 1
        return int(self._ends[np.searchsorted(self._ends, place, "right")])

    def place(self, number: int) -> int | None:
        """The place of a range; None if its block is not among these."""
        at = np.flatnonzero(self._order == self._ranges.block_of(number))
        if not len(at):
            return None
        if self._ranges.single:
            return int(at[0])
        return int(self._begins[at[0]] + number - self._firsts[at[0]])


class Spans:
    """Spans as a job that was resumed has left them, in the order in which they are given out."""

    def __init__(self, names: Sequence[str], columns: Numbers) -> None:
        """columns: [5, spans]: source, by its place in `names`, start, end, trained before, block.

        Neighbours whose block is the same have the same number there.
        """
        self._names = tuple(names)
        self._columns = columns

    def __getstate__(self) -> dict[str, Any]:
        return {"names": self._names, "columns": self._columns.tobytes()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._names = state["names"]
        self._columns = np.frombuffer(state["columns"], np.int64).reshape(5, -1)

    def __len__(self) -> int:
        return int(self._columns.shape[1])

    def __getitem__(self, place: int) -> tuple[Span, int]:
        """A span, and how much of its head was trained before."""
        source, start, end, before, _ = map(int, self._columns[:, place])
        return Span(self._names[source], start, end), before

    def block_end(self, place: int) -> int:
        """The place behind the block that the span at a place is of."""
        blocks = self._columns[4]
        end = place + 1
        while end < len(blocks) and blocks[end] == blocks[place]:
            end += 1
        return end

    def find(self, source: str, record: int) -> int | None:
        """The place of the span with a record; None if none of them has it."""
        sources, starts, ends, _, _ = self._columns
        there = (starts <= record) & (record < ends) & (sources == self._names.index(source))
        return next(map(int, np.flatnonzero(there)), None)

    def records(self, begin: int, end: int | None = None) -> int:
        """Records of the spans from a place on, up to another."""
        _, starts, ends, _, _ = self._columns[:, begin:end]
        return int((ends - starts).sum(dtype=np.int64))


class Epochs:
    """The spans of every epoch.

    parts: what to train on, in any order that is the same in every run. The first epoch has the
        parts one after the other, so that one more changes nothing of those before; later epochs
        know no parts.
    records_per_task: length of a whole span.
    count: passes over the sources; fewer if max_steps ends in an earlier one.
    seed: with the epoch it decides the order of blocks; nothing else does.
    shuffle_tasks: whether it does, or blocks are in the order of the data.
    shuffle_buffer: records of a window at most, within which records are shuffled, too; 0 for none.
    max_steps: train no more than this many minibatches of `batch_size` records, the first
        of the order that they have anyway; 0 for all.
    """

    def __init__(
        self,
        parts: Sequence[Sequence[Source]],
        *,
        records_per_task: int,
        count: int,
        seed: int,
        max_steps: int,
        batch_size: int,
        shuffle_tasks: bool = True,
        shuffle_buffer: int = 0,
    ) -> None:
        self._given: dict[str, Any] = {
            "parts": tuple(map(tuple, parts)),
            "records_per_task": records_per_task,
            "count": count,
            "seed": seed,
            "max_steps": max_steps,
            "batch_size": batch_size,
            "shuffle_tasks": shuffle_tasks,
            "shuffle_buffer": shuffle_buffer,
        }
        self._orders: list[npt.NDArray[Any]] = []  # of each part's blocks in the first epoch
        sources = [source for part in parts for source in part]
        self.windows = Windows(sources, shuffle_buffer, seed)
        in_windows = [with_windows(source, shuffle_buffer) for source in sources]
        self.ranges = ranges = Ranges(in_windows, records_per_task, batch_size)
        ends = itertools.accumulate((len(part) for part in parts), initial=0)
        self._part_blocks = [ranges.blocks_before(end) for end in ends]
        self.names = ranges.names
        self._seed = seed
        self._shuffle_tasks = shuffle_tasks
        self._max_steps = max_steps
        self._batch_size = batch_size
        self.records_in_each = ranges.records
        self.count = count
        if max_steps and (steps := self._steps_per_epoch):
            self.count = min(count, math.ceil(max_steps / steps))
        self._last = ranges.count, ranges.records
        if max_steps:
            self._last = self._cut(self.count - 1)[1:3]
        self.records = self.records_in_each * (self.count - 1) + self._last[1]
        self.tasks = ranges.count * (self.count - 1) + self._last[0]

    def __getstate__(self) -> dict[str, Any]:
        return self._given  # the rest follows

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def _steps(self, numbers: Numbers) -> Numbers:
        """Minibatches of the ranges of these numbers."""
        return np.asarray(-(-self.ranges.lengths(numbers) // self._batch_size), np.int64)

    @cached_property
    def _steps_per_epoch(self) -> int:
        return int(self._steps(np.arange(self.ranges.count)).sum(dtype=np.int64))

    @property
    def ends_early(self) -> bool:
        """True if --max-steps ends in the first epoch, whatever other sources there are."""
        return bool(self._max_steps) and self._max_steps <= self._steps_per_epoch

    def size(self, epoch: int) -> tuple[int, int]:
        """Return the number of spans in an epoch, and the number of its records."""
        if epoch == self.count - 1:
            return self._last
        return self.ranges.count, self.records_in_each

    def shuffled(self, count: int, what: str) -> npt.NDArray[Any]:
        """The numbers below `count` in the order of tasks, which `what` tells from any other."""
        if not self._shuffle_tasks:
            return np.arange(count)
        return drawn_order(self._seed, what, count)

    def order(self, epoch: int) -> Blocks:
        """An epoch's blocks in order. Its last ranges are not given out with --max-steps."""
        order = self._shuffled_blocks(epoch)
        last_end = self._cut(epoch)[0] if self._max_steps else -1
        return Blocks(self.ranges, order, last_end)

    def _shuffled_blocks(self, epoch: int) -> npt.NDArray[np.uint32]:
        if epoch or len(self._part_blocks) <= 2:
            return self.shuffled(self.ranges.blocks, str(epoch)).astype(np.uint32)
        orders = self._orders
        for part, (begin, end) in enumerate(itertools.pairwise(self._part_blocks)):
            if part >= len(orders):
                order = self.shuffled(end - begin, f"{epoch}+{part}" if part else str(epoch))
                orders.append((begin + order).astype(np.uint32))
        return np.concatenate(orders)

    def follow(self, before: Epochs) -> None:
        """Take over what is known of the order of epochs that had some of these parts."""
        if len(before._part_blocks) > 2:
            self._orders = before._orders

    def _cut(self, epoch: int) -> tuple[int, int, int]:
        """The part of an epoch that --max-steps leaves: end of its last range, ranges, records.

        -1 and no range if nothing is left.
        """
        numbers = Blocks(self.ranges, self._shuffled_blocks(epoch)).numbers(0, self.ranges.count)
        left = self._max_steps - epoch * self._steps_per_epoch
        steps = self._steps(numbers)
        before = np.cumsum(steps) - steps
        kept = numbers[before < left]
        if not len(kept):
            return -1, 0, 0
        last = self.ranges.span(int(kept[-1]))
        allowed = (left - int(before[len(kept) - 1])) * self._batch_size
        end = min(last.end, last.start + allowed)
        records = int(self.ranges.lengths(kept).sum(dtype=np.int64)) - (last.end - end)
        return end, len(kept), records
