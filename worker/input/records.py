"""The records of one kind of data, read in chunks of columns, whatever the engine.

Owns the order in which they are read, patience with the storage, their event times, and which
columns are read at all. What is made of the columns is the engine's pipeline's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from shoal.config.groups.event_time import EventTime
from shoal.data.columns import (
    as_columns,
    gathered,
    read_columns,
    records_in,
    row_of,
    rows_in,
)
from shoal.data.indexed_reader import IndexedReader
from shoal.data.pieces import joined, minibatches
from shoal.data.reader import CHUNK_ROWS, DataReader, check_columns
from shoal.data.samples.samples import sample_columns, typed_columns
from shoal.errors import UnreadableError, UserCodeError, UserError
from shoal.files.patience import Patience
from shoal.proto import shoal_pb2 as pb
from shoal.worker.code.module import UserModule, user_code
from shoal.worker.input.event_times import EventTimes, Int64, RangeTimes
from shoal.worker.input.shuffling import Shuffled, ShuffledRecords
from shoal.worker.reports.progress import Progress

FIRST_RECORDS = 32
"""Of the data, of which `beginnings` are."""

ALONE = 8
"""Of them, that are read each alone where they cannot be read together."""


@dataclass
class Run:
    """One reading of a range.

    read: records that were read so far. error: what reading raised. times: of its records, if
    wanted.
    """

    records: pb.Range
    shuffled: Shuffled | None = None
    read: int = 0
    error: Exception | None = None
    times: RangeTimes = field(default_factory=RangeTimes)

    def record(self, position: int) -> int:
        """The number of the record at a position of the range's order."""
        return position if self.shuffled is None else self.shuffled.record(position)


class Records:
    """Reads ranges of records.

    reader: as given. has_times: they have event times. seconds: that reading has taken so far.
    used: the columns that are read; None for all.
    """

    def __init__(
        self,
        reader: DataReader,
        module: UserModule,
        progress: Progress | None = None,
        patience: Patience | None = None,
        event_time: EventTime | None = None,
    ) -> None:
        """Arguments: as those of an engine's pipeline.

        Raises UserError if the column of event times has none, UserCodeError for what the user's
        own reader raises.
        """
        self.reader = reader
        self.seconds = 0.0
        self.used: frozenset[str] | None = None
        self._module = module
        self._progress = progress
        self._patience = patience
        self._in_windows = ShuffledRecords(self._window)
        self._faults: Mapping[str, UserError] = {}
        self._schema: pa.Schema | None = None  # before the reader is narrowed
        self._times = None if event_time is None else self._event_times(event_time)

    @property
    def has_times(self) -> bool:
        """See the class."""
        return self._times is not None

    def _event_times(self, event_time: EventTime) -> EventTimes:
        """Raises UserError if the column has no times."""
        with self.reading("the event times"):
            source = self.first_source
            times = EventTimes(event_time, self.reader, source)
            records = next(each.records for each in self.reader.sources() if each.records)
            end = min(records, CHUNK_ROWS)
            columns = read_columns(self.reader, source, 0, end, {times.column})
            times.check(times.of(next(columns), source, 0), source)
            return times

    @property
    def first_source(self) -> str:
        """The first source, by name."""
        return self.reader.names()[0]

    # ------------------------------------------------------------ what there is

    def first(self, mode: str) -> tuple[dict[str, Any], dict[str, UserError]]:
        """A record of the data's types, and what is wrong with which column.

        Of a reader that knows no types, it is the first record that there is. mode: for the error
        where there is none.
        """
        if isinstance(self.reader, IndexedReader):
            self._schema = self.reader.schema()
            columns, faults = typed_columns(self._schema, self.first_source)
            return columns, faults | self.reader.faults()
        with self.reading("the first record"):
            for source in self.reader.sources():
                if source.records:
                    return sample_columns(self.reader, source.name, 1)
        raise UserError(f"there is no record in the {mode} data")

    def beginnings(self, faults: Collection[str]) -> Iterator[dict[str, Any]]:
        """The first records, together, and then each of them alone.

        Lack columns whose values are wrong, and `faults`, in all of whose something is, and which
        are not read any more. Where the first records cannot be read together, each of the very
        first alone that can be. Raises UnreadableError and OSError.
        """
        names = [name for name in self.reader.schema().names if name not in faults]
        if faults and names:
            self.reader.narrow(names)
        chunks = self._raw(lambda: self.reader.head(FIRST_RECORDS)[1])
        if chunks:
            yield _converted(chunks, names)
            rows = [(chunk, row) for chunk in chunks for row in range(rows_in(chunk))]
            for chunk, row in rows if len(rows) > 1 else ():
                yield _converted([row_of(chunk, row)], names)
            return
        with self.reading("the first records"):
            source = self.reader.first()
        for record in range(min(source.records, ALONE)):
            read = partial(self.reader.read, source.name, record, record + 1)
            if chunks := self._raw(read):
                yield _converted(chunks, names)

    def _raw(self, read: Callable[[], Iterable[Any]]) -> list[Any]:
        """The chunks that are read, not converted; none where they cannot be."""
        try:
            with self.reading("the first records"):
                return list(gathered(iter(read()), self.reader))
        except UnreadableError:
            raise
        except (UserError, UserCodeError):
            return []

    def refuse_column(self, name: str, what: str) -> None:
        """Raises UserError for a column that is not there, with what may be the reason."""
        try:
            check_columns(self._schema or self.reader.schema(), [name], what, self.first_source)
        except UserError as error:
            raise UserError("; ".join((str(error), *self.reader.name_doubts()))) from error

    def use(
        self,
        taken: frozenset[str] | None,
        columns: Mapping[str, Any],
        faults: Mapping[str, UserError],
    ) -> None:
        """Read from now on what the user's function takes, and nothing else.

        taken: None where that is not known. columns: all that there are. faults: what is wrong
        with which one. Raises that of one that is taken.
        """
        if taken is not None and self._times is not None:
            taken = taken | {self._times.column}
        names = columns.keys() if taken is None else taken
        self._faults = faults
        self.refuse_faulty(names)
        # A chunk without any column would not tell how many records it has.
        if taken and len(taken) < len(columns):
            self.used = taken
            if self._module.custom_data_reader is None:
                self.reader.narrow(taken)

    def refuse_faulty(self, names: Collection[str]) -> None:
        """Raises UserError if something is wrong with one of these columns."""
        for name in self._faults:
            if name in names:
                raise self._faults[name]

    def widen(self, names: frozenset[str]) -> None:
        """Read these columns too from now on.

        Raises UserError if something is wrong with one, or if they were read all the time.
        """
        self.refuse_faulty(names)
        if self.used is None or self.used >= names:
            raise UserError(
                f"{self.first_source}: the reader gives no column "
                f"{', '.join(map(repr, sorted(names)))} with some records, and does with its first "
                "ones: each must have the same columns"
            )
        self.used = self.used | names
        if self._module.custom_data_reader is None:
            self.reader.widen()
            self.reader.narrow(self.used)
        self._in_windows = ShuffledRecords(self._window)  # what it holds lacks them

    def check_first(self, names: Collection[str]) -> None:
        """Raises UserError if the first record lacks one of these columns."""
        with self.reading("the first record"):
            list(read_columns(self.reader, self.reader.first().name, 0, 1, names))

    def missing(self, source: str, record: int) -> list[str]:
        """The columns that are used and have no value in a record: those of floats, as NaN.

        Raises UserError for a record that cannot be read.
        """
        columns = next(read_columns(self.reader, source, record, record + 1, self.used))
        return [
            name
            for name, column in columns.items()
            if isinstance(column, np.ndarray)
            and column.dtype.kind == "f"
            and bool(np.isnan(column).any())
        ]

    # ------------------------------------------------------------ reading

    def chunks(self, run: Run, size: int | None) -> Iterator[dict[str, Any]]:
        """The columns of a range, in chunks.

        size: records of a chunk, the last one what is left; None: as the reader's chunks are.
        Raises what reading raises, UserCodeError for what the user's own reader does.
        """
        records = run.records
        with self.reading(f"{records.source}, records {records.start} to {records.end - 1}"):
            chunks = self._read(run)
            pieces = iter(chunks if size is None else minibatches(chunks, size))
            while True:
                began = time.perf_counter()
                if (columns := next(pieces, None)) is None:
                    break
                self.seconds += time.perf_counter() - began
                run.read += records_in(columns)
                yield columns

    def _read(self, run: Run) -> Iterator[dict[str, Any]]:
        """The columns of a range."""
        chunks = (
            self._in_order(run.records)
            if run.shuffled is None
            else self._in_windows.chunks(run.records, run.shuffled)
        )
        for columns, times in chunks:
            if times is not None:
                run.times.add(times)
            yield columns

    def _window(self, records: pb.Range) -> tuple[list[dict[str, Any]], Int64 | None]:
        """All of a range: chunks of columns, and the event times, if wanted."""
        chunks = list(self._in_order(records))
        times = [each for _, each in chunks if each is not None]
        return [columns for columns, _ in chunks], np.concatenate(times) if times else None

    def _in_order(self, records: pb.Range) -> Iterator[tuple[dict[str, Any], Int64 | None]]:
        """The columns of a range, and event times; where the storage fails, from there on again."""
        start = records.start
        while True:
            try:
                chunks = read_columns(self.reader, records.source, start, records.end, self.used)
                while (columns := self._next(chunks, records, start)) is not None:
                    if self._patience is not None:
                        self._patience.worked()
                    times = None
                    if self._times is not None:
                        times = self._times.of(columns, records.source, start)
                    start += records_in(columns)
                    yield columns, times
                return
            except (OSError, UnreadableError) as error:
                if self._patience is None:
                    raise
                self._patience.failed(error)
            self.reader.reopen()

    def _next(
        self, chunks: Iterator[dict[str, Any]], records: pb.Range, start: int
    ) -> dict[str, Any] | None:
        """The next chunk, which begins at record `start`; None after the last one."""
        # The user's own reader is the user's code, whose standing still is held against records.
        storage = self._module.custom_data_reader is None
        with self.doing("reading", records.source, start, records.end, storage=storage):
            return next(chunks, None)

    def doing(
        self, what: str, source: str, start: int, end: int, *, storage: bool = False
    ) -> AbstractContextManager[None]:
        """Has the worker's watch know what the thread is at, if there is one."""
        if self._progress is None:
            return nullcontext()
        records = pb.Range(source=source, start=start, end=end)
        return self._progress.watch.doing(what, records, storage=storage)

    def reading(self, what: str) -> AbstractContextManager[None]:
        """Tells exceptions of the user's own reader as those of the user's code."""
        if self._module.custom_data_reader is None:
            return nullcontext()
        reader = self._module.describe("custom_data_reader")
        return user_code(f"{reader}, reading {what},", reads=True)


def _converted(chunks: Sequence[Any], names: Sequence[str]) -> dict[str, Any]:
    """The columns of these names that can be converted."""
    found: dict[str, Any] = {}
    for name in names:
        with suppress(UserError):
            found |= joined([as_columns(chunk, only=[name]) for chunk in chunks])
    return found
