"""The event times of records (--event-time), and the one of each batch.

Owns which unit a column counts in, what its values may be, and the median. The flag's form is
config/groups/event_time.py's; which clock the times drive is ps/forgetting/clock.py's.
"""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.config.groups.event_time import FLAG, MICROSECONDS, EventTime
from shoal.data.reader import DataReader, check_columns
from shoal.errors import UserError

Int64 = npt.NDArray[np.int64]

_OF_TYPES = (
    (re.compile(r"timestamp\[(s|ms|us|ns)[,\]]"), ""),
    (re.compile(r"date32"), "d"),
    (re.compile(r"date64"), "ms"),
)
"""Arrow's names of types whose values count in a unit of their own."""

_NUMBERS = re.compile(r"u?int(8|16|32|64)|float|double|halffloat")

_YEARS = (1980, 2100)
"""Within which a time is likely meant, where one unit puts it there and another does not."""

_SORTED_YEARS = 1.0
"""By which the times of neighbouring records may go back."""

_YEAR = 365.2425 * 86_400e6

_NO_TIMES = np.zeros(0, np.int64)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class EventTimes:
    """Reads the event times of records.

    column: that has them.
    """

    def __init__(self, given: EventTime, reader: DataReader, source: str) -> None:
        """source: one of the reader's, for errors. Raises UserError for a column that has none."""
        self.column = given.column
        check_columns(reader.schema(), [given.column], FLAG, source)
        kind = reader.metadata.column_types[given.column]
        self._unit = _unit(given, kind)

    def of(self, columns: Mapping[str, Any], source: str, first: int) -> Int64:
        """The times of the records of a chunk, microseconds since 1970, int64 [n].

        first: number of the chunk's first record. Raises UserError naming the row of a value that
        is no time.
        """
        values = columns[self.column]
        if not isinstance(values, np.ndarray) or values.ndim != 1 or values.dtype.kind not in "iuf":
            raise UserError(f"{FLAG}: the column {self.column!r} is no column of single numbers")
        scale = MICROSECONDS[self._unit]
        wrong = ~(np.abs(values.astype(np.float64) * scale) < 2.0**62)
        if wrong.any():
            row = int(np.argmax(wrong))
            raise UserError(
                f"{source}: column {self.column!r} in row {first + row + 1} is {values[row]}, "
                f"which is no time in {self._unit}: {FLAG} names the unit, as {self.column}:ms, "
                "and every record needs a time"
            )
        if values.dtype.kind == "f":
            return np.rint(values.astype(np.float64) * scale).astype(np.int64)
        numbers = values.astype(np.int64)
        return numbers // 1000 if self._unit == "ns" else numbers * int(scale)

    def check(self, times: Int64, source: str) -> None:
        """Look at the first records of a source, in their order.

        Raises UserError if another unit is meant, or if the records are not in the order of time
        by years.
        """
        if not times.size:
            return
        units = [unit for unit in MICROSECONDS if _is_likely(self._as(times[0], unit))]
        if not _is_likely(float(times[0])) and len(units) == 1:
            here, there = _date(int(times[0])), _date(int(self._as(times[0], units[0])))
            raise UserError(
                f"{FLAG}: column {self.column!r} of {source} begins with {here} in {self._unit}; "
                f"in {units[0]} it is {there}: use {FLAG} {self.column}:{units[0]}"
            )
        latest = np.maximum.accumulate(times)
        back = latest - times
        worst = int(np.argmax(back))
        if back[worst] > _SORTED_YEARS * _YEAR:
            raise UserError(
                f"{FLAG}: the times of {source} go back by {back[worst] / _YEAR:.1f} years, to "
                f"{_date(int(times[worst]))} in row {worst + 1}: rows expire by a time that goes "
                f"on, so sort the records by {self.column!r}"
            )

    def _as(self, time: Any, unit: str) -> float:
        """The time that the same number means in another unit."""
        return float(time) / MICROSECONDS[self._unit] * MICROSECONDS[unit]


def _unit(given: EventTime, kind: str) -> str:
    for pattern, unit in _OF_TYPES:
        if (found := pattern.match(kind)) is None:
            continue
        own = unit or found[1]
        if given.unit not in ("", own):
            raise UserError(
                f"{FLAG} {given.column}:{given.unit}: the column is of type {kind}, which counts "
                f"in {own}: use {FLAG} {given.column}"
            )
        return own
    if _NUMBERS.fullmatch(kind) is None:
        raise UserError(
            f"{FLAG} {given.column}: the column is of type {kind}; a time is a number, a timestamp "
            "or a date: write it as one of these"
        )
    if not given.unit:
        raise UserError(
            f"{FLAG} {given.column}: the column is of type {kind}, which does not tell its unit: "
            f"add it, as {given.column}:s ({', '.join(MICROSECONDS)})"
        )
    return given.unit


def _is_likely(time: float) -> bool:
    first, last = ((year - 1970) * _YEAR for year in _YEARS)
    return first <= time < last


def _date(time: int) -> str:
    try:
        return f"{_EPOCH + timedelta(microseconds=time):%Y-%m-%d}"
    except OverflowError:
        return f"the year {1970 + time / _YEAR:,.0f}"


class RangeTimes:
    """The times of the records of one range, as they are read, and of the batches made of them.

    One thread reads, another one makes batches.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._chunks: list[Int64] = []
        self._first = 0  # number in the range of the first record in the chunks
        self._last: int | None = None

    def add(self, times: Int64) -> None:
        """The next records of the range were read."""
        with self._lock:
            self._chunks.append(times)

    def of(self, first: int, size: int) -> int | None:
        """The median of records `first` to `first + size` of the range.

        No earlier record is asked for afterwards.
        """
        with self._lock:
            left = np.concatenate([_NO_TIMES, *self._chunks])[first - self._first :]
            self._first, self._chunks = first, [left]
        return median(left[:size])

    def of_new(self) -> int | None:
        """The median of what was read since the last call; where that is nothing, as it was."""
        with self._lock:
            new, self._chunks = self._chunks, []
        if new:
            self._last = median(np.concatenate(new))
        return self._last


def median(times: Any) -> int | None:
    """The lower median of times, which is one of them; None for none."""
    array = np.asarray(times, np.int64)
    if not array.size:
        return None
    middle = math.ceil(array.size / 2) - 1
    return int(np.partition(array, middle)[middle])
