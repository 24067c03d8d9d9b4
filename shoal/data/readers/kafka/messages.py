"""The formats of messages: what the values of some messages are as columns.

Parsing is that of the readers of files of these formats; here is what a message may hold, one
record, and which of several messages is at fault.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import pyarrow as pa

from shoal.data.blocks import DamagedError
from shoal.data.plain_types import of_schema, plain_schema
from shoal.data.readers.csv_reader import CsvReader
from shoal.data.readers.examples import ExampleColumns
from shoal.data.readers.kafka.place import KafkaPlace
from shoal.data.readers.lines import Advice, damage, guessed_kinds, parsed_batch
from shoal.data.schemas import Kinds, beyond_64_bits
from shoal.errors import UserError

LEAVE_OUT = "--max-bad-records N leaves out so many messages that cannot be read"

ADVICE = Advice("mend what writes it", LEAVE_OUT, "; &types=NAME:TYPE,... in the URL sets types")

Values = Sequence[bytes | None]

Result = TypeVar("Result")


class Messages(ABC):
    """A format of messages. All methods raise DamagedError, whose record is a place in `values`."""

    @abstractmethod
    def kinds(self, values: list[bytes]) -> Kinds:
        """The columns of some messages, of which there is one at least."""

    @abstractmethod
    def parsed(self, values: list[bytes], schema: pa.Schema) -> pa.RecordBatch:
        """The columns of a schema in some messages, of which there is one at least."""

    def doubts(self) -> list[str]:
        """Likely mistakes in the messages that `kinds` was given, in words."""
        return []

    def batch(self, values: Values, schema: pa.Schema) -> pa.RecordBatch:
        """The columns of a schema in some messages; none of them may be without a value."""
        full = [value for value in values if value]
        if len(full) < len(values):
            place = next(place for place, value in enumerate(values) if not value)
            raise DamagedError(place, f"it is empty, or has no value (a tombstone): {LEAVE_OUT}")
        return self.parsed(full, schema)


class JsonMessages(Messages):
    """Each message is a JSON object."""

    def __init__(self, given: Mapping[str, pa.DataType]) -> None:
        self._given = dict(given)
        self._doubts: list[str] = []

    def kinds(self, values: list[bytes]) -> Kinds:
        """See Messages."""
        kinds, beyond = guessed_kinds(_lines(values), self._given, ADVICE)
        self._doubts = [
            beyond_64_bits(name, large, f"&types={name}:string") for name, large in beyond.items()
        ]
        return kinds

    def doubts(self) -> list[str]:
        """See Messages."""
        return self._doubts

    def parsed(self, values: list[bytes], schema: pa.Schema) -> pa.RecordBatch:
        """See Messages."""
        lines = _lines(values)
        try:
            return parsed_batch(b"\n".join(lines) + b"\n", len(lines), schema)
        except pa.ArrowInvalid as error:
            raise damage(lines, schema, 0, error, ADVICE) from error


def _lines(values: list[bytes]) -> list[bytes]:
    """Messages as lines, each with brackets around it. Raises DamagedError.

    So none can be a part of an object that the next one ends: as many objects as messages are one
    in each.
    """
    if sum(value.count(b"\n") for value in values):
        # JSON has line ends between its words only.
        values = [value.replace(b"\n", b" ") for value in values]
    lines = [value.strip() for value in values]
    for place, line in enumerate(lines):
        if line[:1] != b"{" or line[-1:] != b"}":
            why = pa.ArrowInvalid("it does not begin and end with the brackets of an object")
            found = damage([line or b" "], pa.schema([]), place, why, ADVICE)
            raise found
    return lines


class CsvMessages(Messages):
    """Each message is a line of CSV."""

    def __init__(self, place: KafkaPlace) -> None:
        self._place = place

    def kinds(self, values: list[bytes]) -> Kinds:
        """See Messages."""
        reader = _checked(values, lambda some: self._reader(some, self._place.types))
        schema = reader.schema()
        return dict(zip(schema.names, schema.types, strict=True))

    def parsed(self, values: list[bytes], schema: pa.Schema) -> pa.RecordBatch:
        """See Messages."""

        def batch(some: list[bytes]) -> pa.RecordBatch:
            types = dict(zip(schema.names, schema.types, strict=True))
            reader = self._reader(some, types)
            reader.choose(schema.names)
            chunks = list(reader.read(_FILE, 0, len(some)))
            return pa.Table.from_batches(chunks, schema).combine_chunks().to_batches()[0]

        return _checked(values, batch)

    def _reader(self, values: list[bytes], types: Mapping[str, pa.DataType]) -> CsvReader:
        """The reader of some messages as a file. Raises UserError, DamagedError."""
        for place, value in enumerate(values):
            # So no message has a part of a record: as many records as messages are one in each.
            if value.count(b'"') % 2 or not value.strip():
                why = "a quote is open at its end" if value.strip() else "it is blank"
                raise DamagedError(place, f"not a line of CSV: {why}: {LEAVE_OUT}")
        ends = (b"\n" if not value.endswith(b"\n") else b"" for value in values)
        data = b"".join(value + end for value, end in zip(values, ends, strict=True))
        storage: Any = _Memory(data)
        reader = CsvReader(
            _FILE,
            storage=storage,
            column_types=types,
            column_names=self._place.columns,
            separator=self._place.separator,
        )
        if (found := reader.describe(_FILE).records) != len(values):
            raise UserError(f"it holds {found} records, and a message must hold one")
        return reader


_FILE = "messages"


class _Memory:
    """Messages as the only file of a storage."""

    names = (_FILE,)
    local = False

    def __init__(self, data: bytes) -> None:
        self._data = data

    def open(self, _: str) -> pa.NativeFile:
        return pa.BufferReader(self._data)

    def stamp(self, _: str) -> str:
        return ""

    def expect(self, *_: object) -> None:
        return


class ExampleMessages(Messages):
    """Each message is a tf.train.Example."""

    def __init__(self) -> None:
        self._columns = ExampleColumns("tf.train.Example", lists=False)

    def kinds(self, values: list[bytes]) -> Kinds:
        """See Messages."""
        return self._columns.kinds(values)

    def parsed(self, values: list[bytes], schema: pa.Schema) -> pa.RecordBatch:
        """See Messages."""
        return self._columns.batch(values, 0, schema)


class ArrowMessages(Messages):
    """Each message is a stream of Arrow with one record."""

    def kinds(self, values: list[bytes]) -> Kinds:
        """See Messages."""
        schema = plain_schema(_record(values[0], 0).schema)
        return dict(zip(schema.names, schema.types, strict=True))

    def parsed(self, values: list[bytes], schema: pa.Schema) -> pa.RecordBatch:
        """See Messages."""
        batches = []
        for place, value in enumerate(values):
            record = _record(value, place)
            for name in schema.names:
                if name not in record.schema.names:
                    raise DamagedError(place, f"it has no column {name!r}: {LEAVE_OUT}")
            try:
                batches.append(of_schema(record.select(schema.names), schema))
            except (pa.ArrowException, UserError) as error:
                raise DamagedError(place, f"its columns are of other types: {error}") from error
        return pa.Table.from_batches(batches, schema).combine_chunks().to_batches()[0]


def _record(value: bytes, place: int) -> pa.RecordBatch:
    try:
        buffer = pa.BufferReader(value)
        table = pa.ipc.open_stream(buffer).read_all()
        table.validate(full=True)
        if buffer.tell() != len(value):
            raise ValueError("there is something behind its end")
    except (pa.ArrowException, EOFError, ValueError, OSError) as error:
        raise DamagedError(place, f"not a stream of Arrow ({error}): {LEAVE_OUT}") from error
    if table.num_rows != 1:
        raise DamagedError(
            place, f"it holds {table.num_rows} records, and a message must hold one: {LEAVE_OUT}"
        )
    (batch,) = (each for each in table.combine_chunks().to_batches() if each.num_rows)
    return batch.replace_schema_metadata(None)


def _checked(values: list[bytes], parse: Callable[[list[bytes]], Result]) -> Result:
    """The result of `parse`. Raises DamagedError for the first message that it refuses."""
    try:
        return parse(values)
    except UserError as error:
        found, low, high = error, 0, len(values)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            parse(values[low:middle])
            low = middle
        except UserError as error:
            found, high = error, middle
    try:
        parse(values[low:high])
    except UserError as error:
        found = error
    text = str(found).removeprefix(f"{_FILE}: ").removeprefix("row 1: ")
    raise DamagedError(low, text)


def messages_of(place: KafkaPlace) -> Messages:
    """The format that a URL names."""
    if place.format == "csv":
        return CsvMessages(place)
    if place.format == "example":
        return ExampleMessages()
    if place.format == "arrow":
        return ArrowMessages()
    return JsonMessages(place.types)
