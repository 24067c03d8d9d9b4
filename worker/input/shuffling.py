"""Records in the shuffled order of their windows (--shuffle buffer:N).

Owns the window that is held. Which order it has is shoal.base.shuffling's, where windows begin the
master tells with each task.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.base.shuffling import window_order
from shoal.data.pieces import joined, taken
from shoal.errors import UnreadableError
from shoal.proto import shoal_pb2 as pb
from shoal.worker.attribution import attribute

Columns = dict[str, Any]
Int64 = npt.NDArray[np.int64]

Read = Callable[[pb.Range], tuple[list[Columns], Int64 | None]]
"""Reads records of a source as they follow one another: chunks of columns, and their event times,
int64 [records], or None."""


@dataclass(frozen=True)
class Shuffled:
    """The order of the records of a task. edges: of its windows."""

    seed: int
    epoch: int
    source: str
    edges: tuple[int, ...]

    @classmethod
    def of(cls, task: pb.Task, seed: int) -> Shuffled | None:
        """That of a task; None if its records are in the order of the data."""
        edges = tuple(task.windows)
        return cls(seed, task.epoch, task.range.source, edges) if edges else None

    def order(self, first: int, end: int) -> Int64:
        """The records of the window [first, end), as offsets in it."""
        return window_order(self.seed, self.epoch, self.source, first, end - first)

    def record(self, position: int) -> int:
        """The number of the record at a position of the order."""
        place = bisect_right(self.edges, position) - 1
        first, end = self.edges[place : place + 2]
        return first + int(self.order(first, end)[position - first])


@dataclass(frozen=True)
class _Window:
    """A window that was read. rows: of `columns`, by offset in the window; -1 for what is bad.

    bad: by offset, why a record cannot be read. times: event times, by row; None without.
    """

    columns: Columns
    order: Int64
    rows: Int64
    times: Int64 | None
    bad: dict[int, Exception] = field(default_factory=dict)


class ShuffledRecords:
    """Reads windows, and keeps the last one: the next task often goes on with it."""

    def __init__(self, read: Read) -> None:
        """read: as `Read`; raises for records that cannot be read."""
        self._read = read
        self._key: tuple[Any, ...] = ()
        self._window: _Window | None = None

    def chunks(
        self, records: pb.Range, shuffled: Shuffled
    ) -> Iterator[tuple[Columns, Int64 | None]]:
        """The records at the positions of a range, in order, and their event times.

        Raises what `read` raises, of a single record that it cannot read: its position is noted on
        the exception.
        """
        for first, end in pairwise(shuffled.edges):
            begin, stop = max(records.start, first) - first, min(records.end, end) - first
            if begin >= stop:
                continue
            window = self._of(shuffled, first, end)
            order = window.order[begin:stop]
            rows = window.rows[order]
            bad = np.flatnonzero(rows < 0)
            good = rows[: bad[0]] if bad.size else rows
            if good.size:
                times = None if window.times is None else window.times[good]
                yield taken(window.columns, good), times
            if bad.size:
                error = window.bad[int(order[bad[0]])]
                position = first + begin + int(bad[0])
                at = pb.Range(source=records.source, start=position, end=position + 1)
                attribute(error, at)
                raise error

    def _of(self, shuffled: Shuffled, first: int, end: int) -> _Window:
        key = shuffled.seed, shuffled.epoch, shuffled.source, first, end
        if self._window is None or self._key != key:
            self._window = None  # before another one takes as much memory
            self._window = self._opened(shuffled, first, end)
            self._key = key
        return self._window

    def _opened(self, shuffled: Shuffled, first: int, end: int) -> _Window:
        order = shuffled.order(first, end)
        bad: dict[int, Exception] = {}
        parts = list(self._parts(shuffled.source, first, end, first, bad))
        chunks = [chunk for part, _ in parts for chunk in part]
        times = [each for _, each in parts if each is not None]
        rows = np.arange(end - first)
        if bad:
            rows = np.ones(end - first, np.int64)
            rows[list(bad)] = 0
            rows = np.where(rows > 0, np.cumsum(rows) - 1, -1)
        return _Window(
            joined(chunks) if chunks else {},
            order,
            rows,
            np.concatenate(times) if times else None,
            bad,
        )

    def _parts(
        self, source: str, start: int, end: int, first: int, bad: dict[int, Exception]
    ) -> Iterator[tuple[list[Columns], Int64 | None]]:
        """Read [start, end), without the records that cannot be read, which become `bad`."""
        try:
            found = self._read(pb.Range(source=source, start=start, end=end))
        except (OSError, UnreadableError, MemoryError):
            raise  # no record is at fault
        except Exception as error:
            if end - start == 1:
                bad[start - first] = error
                return
        else:
            yield found
            return
        middle = (start + end) // 2
        yield from self._parts(source, start, middle, first, bad)
        yield from self._parts(source, middle, end, first, bad)
