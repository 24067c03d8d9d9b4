"""The interface of readers of records, and the facts that a reader tells about its data.

Owns the vocabulary (Source, Metadata, DataReader); the formats are in
csv_reader.py and parquet_reader.py, finding files in files.py.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from shoal.base.words import near, shown
from shoal.errors import UserError

CHUNK_ROWS = 8192
"""Most records in one chunk: a chunk of wide rows stays within some megabytes."""


@dataclass(frozen=True)
class Source:
    """One piece of the data that ranges are cut from, usually a file.

    name: what `DataReader.read` takes and what error messages show.
    records: how many records it holds.
    units: pieces that are decoded as a whole, from its first record on, as pairs: records of one,
        and how many such follow one another. None where any range costs its own records only.
    """

    name: str
    records: int
    units: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Metadata:
    """The facts about the records that the user's `feed` gets.

    column_names: in the order of the files.
    column_types: Arrow's name of each column's type, such as "int64" or "list<int64>".
    """

    column_names: tuple[str, ...]
    column_types: dict[str, str]

    @classmethod
    def from_schema(cls, schema: pa.Schema) -> Metadata:
        """The names and types of an Arrow schema."""
        return cls(tuple(schema.names), {field.name: str(field.type) for field in schema})


class DataReader(ABC):
    """Reads ranges of records. Not thread-safe; each process opens its own."""

    fill_advice = ""
    """How missing values are filled, for errors; by the flag --fill-missing if empty."""

    @abstractmethod
    def sources(self) -> list[Source]:
        """All sources, sorted by name.

        Raises UserError if one cannot be read or all of them are empty.
        """

    def names(self) -> list[str]:
        """The names of all sources, sorted. Reads none of them where their names tell them."""
        return [source.name for source in self.sources()]

    def weights(self, names: Sequence[str] | None = None) -> dict[str, float]:
        """The cost of describing these sources, by default all; 1 if a footer tells everything."""
        return dict.fromkeys(self.names() if names is None else names, 1.0)

    def grows(self) -> None:
        """More sources will come: the columns are those of the first one that is there now.

        Raises UserError if none can come.
        """
        raise UserError(
            "--arriving: no new files can come to this --training-data: name a folder, a glob "
            "pattern, a list of files or a topic of Kafka, or remove --arriving"
        )

    def arrivals(self, token: str) -> tuple[list[str], str]:
        """The names of the sources that there are, or have come since an earlier call, in order.

        token: of that call; "" for the first. Returns its own as well.
        """
        return self.names(), token

    @property
    def moves(self) -> bool:
        """True if a later listing names other sources, and those of an earlier one stay."""
        return False

    def behind(self, trained: Collection[str]) -> None:
        """Earlier jobs have trained the sources of these names: list what comes behind them.

        Of no meaning for sources that are whole, as files are: who lists them leaves them out.
        """
        del trained

    @property
    def form(self) -> str:
        """The way in which sources are read: knowledge of one form does not apply to another."""
        return ""

    def stamp(self, name: str) -> str:
        """A text that differs between versions of a source; "" if the reader has none."""
        del name
        return ""

    def prepare(self, names: Sequence[str]) -> None:
        """These sources are to be described next."""
        del names

    def describe(self, name: str) -> Source:
        """One source. Raises UserError if it cannot be read or its columns are others."""
        return next(source for source in self.sources() if source.name == name)

    def first(self) -> Source:
        """The first source that holds a record. Raises UserError if none does."""
        for name in self.names():
            if (source := self.describe(name)).records:
                return source
        raise UserError("there is no record in the data")

    def head(self, records: int) -> tuple[str, list[Any]]:
        """The first records that there are, as `read` yields them, and the name of their source.

        records: at most; they may be fewer. Reads no more of a source than that takes. Raises as
        `first` and `read` do.
        """
        source = self.first()
        return source.name, list(self.read(source.name, 0, min(source.records, records)))

    @abstractmethod
    def schema(self) -> pa.Schema:
        """The columns, the same for every source.

        Raises UserError if the sources that it looks at cannot be read, or differ. Others are held
        against it when they are described or read.
        """

    @abstractmethod
    def read(self, source: str, start: int, end: int) -> Iterator[Any]:
        """Yield the records [start, end) of a source in chunks, in order.

        The built-in readers yield pyarrow.RecordBatch; a reader of the user's may
        yield whatever `shoal.data.as_columns` takes.

        Raises UserError naming source and row where the records cannot be read, UnreadableError
        where the storage does not give them.
        """

    def reopen(self) -> None:
        """Open what is read next anew, after an error of the storage."""
        return

    def doubts(self) -> list[str]:
        """Likely mistakes in the data that can be read all the same, in words."""
        return []

    def name_doubts(self) -> list[str]:
        """The `doubts` that are about the names of the columns."""
        return []

    def narrow(self, columns: Collection[str]) -> None:
        """Nothing but these columns will be asked for: others need not be read."""
        del columns

    def widen(self) -> None:
        """Any column may be asked for again, as before `narrow`."""
        return

    def place(self, source: str, record: int) -> str:
        """The position of a record in a source, in words: record from 0, row from 1."""
        del source
        return f"record {record} (row {record + 1})"

    @property
    def metadata(self) -> Metadata:
        """The third argument of the user's `feed`."""
        return Metadata.from_schema(self.schema())


def check_range(source: Source, start: int, end: int) -> None:
    """Raises UserError unless 0 <= start <= end <= records of the source."""
    if not 0 <= start <= end <= source.records:
        raise UserError(
            f"{source.name}: records {start} to {end} were asked for, but it holds "
            f"{source.records}; did the file change while the job was running?"
        )


def check_columns(schema: pa.Schema, names: Sequence[str], flag: str, source: str = "") -> None:
    """Raises UserError if the data of `flag` lack one of the columns `names`.

    source: a file of theirs, for the message.
    """
    missing = [name for name in names if name not in schema.names]
    if not missing:
        return
    hints = [f"{name!r}{near(name, schema.names, most=1)}" for name in missing]
    raise UserError(
        f"{flag}: there is no column {', '.join(hints)}"
        + (f" in {source}" if source else "")
        + f"; the columns are {', '.join(map(shown, schema.names))}"
    )


def units_of(lengths: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """`Source.units` of pieces of these lengths."""
    return tuple((each, len(list(group))) for each, group in itertools.groupby(lengths))


def selected(schema: pa.Schema, columns: Sequence[str] | None, flag: str) -> pa.Schema:
    """The fields of `columns`, in their order; all of them where None.

    Raises UserError if the data of `flag` lack one.
    """
    if columns is None:
        return schema
    check_columns(schema, columns, flag)
    return pa.schema([schema.field(name) for name in columns])


def check_not_empty(sources: Sequence[Source], pattern: str, flag: str) -> None:
    """Raises UserError if there is not a single record."""
    if not any(source.records for source in sources):
        raise UserError(f"{flag}: {pattern} holds no records: name data with one record at least")
