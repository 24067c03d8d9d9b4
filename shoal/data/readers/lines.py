"""Files of lines: plain text, and JSON lines.

A line ends with a line feed, or a carriage return and a line feed. In text every line
is a record, the column `line`. In JSON lines a record is an object per line, blank
lines are none, and the columns are the objects' keys.
"""

from __future__ import annotations

import json
import re
from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.json as pajson

from shoal.data.blocks import (
    BLOCK_BYTES,
    READ_BYTES,
    BlockReader,
    DamagedError,
    reporting_rows,
)
from shoal.data.reader import check_not_empty
from shoal.data.schemas import beyond_64_bits, merged_schema, spread
from shoal.native import lines as native

TEXT_SCHEMA = pa.schema([("line", pa.binary())])

SAMPLE_BYTES = 1 << 20
"""Bytes at the beginning of a file from which the types of JSON lines are guessed."""

MOST_NESTED = 100
"""Brackets within one another in a line."""

TOO_DEEP = f"there are more than {MOST_NESTED} brackets within one another"


@dataclass(frozen=True)
class Advice:
    """The words about a record that is at fault.

    mend: what to do with it. remove: the same where it is of no use. types: how types are set.
    """

    mend: str
    remove: str
    types: str


ADVICE = Advice(
    "mend the line",
    "mend the line, or remove it",
    "; see JsonLinesReader(column_types=...) for how to set types",
)
"""Of files."""

_FLOAT = pa.float64()

_LINE_FEED = ord("\n")

_CHANGED = re.compile(r"Column\(/(.*)\) changed from (\w+) to (\w+)")


def _lines(data: bytes) -> list[bytes]:
    """The lines of a block without their ends."""
    lines = data.split(b"\n")
    if not lines[-1]:
        del lines[-1]  # behind the last line feed
    return [line[:-1] if line.endswith(b"\r") else line for line in lines]


class _LineReader(BlockReader):
    """The common part of both formats: blocks end where lines do."""

    def _scan(self, file: pa.NativeFile) -> Iterator[tuple[int, int]]:
        size = file.size()
        offset = 0
        pending = b""  # from `offset` on, without a line feed so far
        while offset + len(pending) < size:
            pending += file.read_at(READ_BYTES, offset + len(pending))
            feeds = np.flatnonzero(np.frombuffer(pending, np.uint8) == _LINE_FEED) + 1
            begin = 0
            while len(feeds):
                # As many lines as make a block, at least one.
                taken = max(int(np.searchsorted(feeds, begin + BLOCK_BYTES, "right")), 1)
                end = int(feeds[taken - 1])
                yield self._records_in(pending[begin:end], taken), offset + end
                begin, feeds = end, feeds[taken:]
            pending, offset = pending[begin:], offset + begin
        if pending:
            yield self._records_in(pending, 1), size

    @abstractmethod
    def _records_in(self, data: bytes, lines: int, /) -> int:
        """Records in whole lines."""


class TextLineReader(_LineReader):
    """Reads text files, plain or gzip'd; see BlockReader. Lines need not be UTF-8."""

    kind = "lines"

    def _full_schema(self) -> pa.Schema:
        return TEXT_SCHEMA

    def _records_in(self, _data: bytes, lines: int) -> int:
        return lines

    def _decode(
        self, data: bytes, _first: int, _count: int, low: int, high: int, schema: pa.Schema
    ) -> pa.RecordBatch:
        return pa.record_batch([pa.array(_lines(data)[low:high], pa.binary())], schema=schema)


class JsonLinesReader(_LineReader):
    """Reads JSON lines, plain or gzip'd; see BlockReader.

    column_types: Arrow types of columns whose type must not be guessed.

    Columns and types are those of the first megabyte of each file, or of some of many files:
    int64, uint64, double, bool, string and lists of them; what looks like a time stays a string. A
    key that comes up only later is not read; one that an object lacks is a missing value.
    """

    kind = "jsonlines"

    def __init__(
        self,
        pattern: str,
        *,
        column_types: Mapping[str, pa.DataType] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(pattern, **options)
        self._given = dict(column_types or {})
        self._types: pa.Schema | None = None
        self._doubted: dict[str, str] = {}

    def doubts(self) -> list[str]:
        """See DataReader: columns of integers that no type holds."""
        self._full_schema()
        return list(self._doubted.values())

    def _records_in(self, data: bytes, _lines: int) -> int:
        return native.full_lines(data)

    def _full_schema(self) -> pa.Schema:
        if self._types is None:
            guessed = [(path, self._guess(path)) for path in spread(self._paths)]
            self._types, self._faults = merged_schema(
                guessed, self._flag, same_columns=False, hint=ADVICE.types
            )
            if not self._types:
                check_not_empty((), self._pattern, self._flag)
        return self._types

    def _guess(self, path: str) -> dict[str, pa.DataType | None]:
        with reporting_rows(path):
            data = self._storage.open(path).read_at(SAMPLE_BYTES, 0)
            if len(data) == SAMPLE_BYTES:
                data = data[: data.rfind(b"\n") + 1]
                if not data:
                    raise DamagedError(0, f"the line is longer than {SAMPLE_BYTES} bytes")
            lines = [line for line in data.split(b"\n") if line.strip()]
            kinds, beyond = guessed_kinds(lines, self._given)
        for name, large in beyond.items():
            as_text = f"JsonLinesReader(column_types={{{name!r}: pyarrow.string()}})"
            self._doubted.setdefault(name, f"{path}: {beyond_64_bits(name, large, as_text)}")
        return kinds

    def _decode(
        self, data: bytes, first: int, count: int, low: int, high: int, schema: pa.Schema
    ) -> pa.RecordBatch:
        # What is not cut off at either end goes to Arrow as it is; it skips blank lines too.
        begin, end = native.behind(data, low), native.before(data, count - high)
        try:
            return parsed_batch(memoryview(data)[begin:end], high - low, schema)
        except pa.ArrowInvalid as error:
            lines = [line for line in data.split(b"\n") if line.strip()][low:high]
            raise damage(lines, schema, first + low, error) from error


def guessed_kinds(
    lines: Sequence[bytes], given: Mapping[str, pa.DataType], advice: Advice = ADVICE
) -> tuple[dict[str, pa.DataType | None], dict[str, list[int]]]:
    """The types of the keys of some lines; and the values of keys that no type of integers holds.

    given: types that are not guessed. Raises DamagedError.
    """
    if not lines:
        return {}, {}
    known = pa.schema(list(given.items()))
    try:
        schema = _parsed(b"\n".join(lines) + b"\n", len(lines), known, infer=True).schema
    except pa.ArrowInvalid as error:
        raise damage(lines, known, 0, error, advice, infer=True) from error
    kinds = {name: _guessed(schema.field(name).type) for name in schema.names}
    kinds |= given
    floats = {n for n, of in kinds.items() if of is not None and _element(of) == _FLOAT}
    beyond: dict[str, list[int]] = {}
    for name, large in _integers(lines, floats - set(given), advice).items():
        if min(large) >= 0 and max(large) < 1 << 64:
            kinds[name] = _guessed(schema.field(name).type, pa.uint64())
        else:
            beyond[name] = large
    return kinds, beyond


def parsed_batch(data: bytes | memoryview, count: int, schema: pa.Schema) -> pa.RecordBatch:
    """The objects of some lines, of which there is one at least. Raises ArrowInvalid."""
    # Arrow gives the columns of an explicit schema in its order. A last line without an end is
    # a batch of its own; joining columns that are whole would copy them.
    table = _parsed(data, count, schema)
    batches = table.to_batches()
    return batches[0] if len(batches) == 1 else table.combine_chunks().to_batches()[0]


def _guessed(kind: pa.DataType, number: pa.DataType = _FLOAT) -> pa.DataType | None:
    """The type that Arrow guesses for a column, without times; `number` in place of float64."""
    if pa.types.is_list(kind):
        return pa.list_(_guessed(kind.value_type, number) or pa.null())
    if pa.types.is_timestamp(kind):
        return pa.string()
    if pa.types.is_null(kind):
        return None
    return number if kind == _FLOAT else kind


def _element(kind: pa.DataType) -> pa.DataType:
    return _element(kind.value_type) if pa.types.is_list(kind) else kind


def _integers(
    lines: Sequence[bytes], names: Collection[str], advice: Advice
) -> dict[str, list[int]]:
    """The values of those of some columns that hold integers alone.

    Of columns that Arrow takes for float64, these are too large for an int64. Raises DamagedError.
    """
    found: dict[str, list[Any]] = {name: [] for name in names}
    for number, line in enumerate(lines if names else ()):
        try:
            record = json.loads(line)
        except UnicodeDecodeError as error:
            raise DamagedError(number, _not_utf_8(error, advice)) from error
        for name in [*found]:
            values = [record.get(name)]
            while any(isinstance(each, list) for each in values):
                values = [
                    x for each in values for x in (each if isinstance(each, list) else [each])
                ]
            values = [each for each in values if each is not None]
            found[name] += values
            if any(isinstance(each, float) for each in values):
                del found[name]
    return {name: values for name, values in found.items() if values}


def _parsed(
    data: bytes | memoryview, count: int, schema: pa.Schema, *, infer: bool = False
) -> pa.Table:
    """The objects of some lines, of which there is one at least. Raises ArrowInvalid.

    Arrow calls itself for what is nested, without a bound: it never sees deep lines.

    infer: whether there are other columns than the schema's, too.
    """
    if native.deeper(data, MOST_NESTED) >= 0:
        raise pa.ArrowInvalid(TOO_DEEP)
    table = pajson.read_json(
        pa.BufferReader(data),
        read_options=pajson.ReadOptions(use_threads=False, block_size=len(data) + 1),
        parse_options=pajson.ParseOptions(
            explicit_schema=schema,
            unexpected_field_behavior="infer" if infer else "ignore",
        ),
    )
    if table.num_rows != count:
        raise pa.ArrowInvalid("a line must hold exactly one JSON object")
    return table


def damage(
    lines: Sequence[bytes],
    schema: pa.Schema,
    first: int,
    error: pa.ArrowInvalid,
    advice: Advice = ADVICE,
    *,
    infer: bool = False,
) -> DamagedError:
    """Which of the lines it is that `error` is about.

    first: the position in the file of the first line.
    """
    # Arrow counts rows by its own blocks: look for the line, in halves. Where types are guessed,
    # it may be at fault only together with those before it.
    low, high = 0, len(lines)
    while high - low > 1:
        begin, middle = 0 if infer else low, (low + high) // 2
        try:
            _parsed(b"\n".join(lines[begin:middle]) + b"\n", middle - begin, schema, infer=infer)
            low = middle
        except pa.ArrowInvalid as found:
            high, error = middle, found
    return DamagedError(first + low, _plain(lines[low], error, schema, advice))


def _not_utf_8(error: UnicodeDecodeError, advice: Advice) -> str:
    return f"not a JSON object: it is not UTF-8 ({error}): {advice.remove}"


def _plain(line: bytes, error: pa.ArrowInvalid, schema: pa.Schema, advice: Advice) -> str:
    """Tell the fault of a line: Arrow's message, without its own count of rows, if it is JSON."""
    if native.deeper(line, MOST_NESTED) >= 0:
        return f"{TOO_DEEP}: {advice.remove}"
    if line.lstrip().startswith(b"["):
        return "not a JSON object but an array: write each object of it in a line of its own"
    try:
        record = json.loads(line)
    except json.JSONDecodeError as found:
        cut = "" if line.rstrip().endswith(b"}") else "; it may be cut short"
        where = f"{found.msg.removesuffix(' starting at')} (character {found.pos + 1}){cut}"
        return f"not a JSON object: {where}: {advice.remove}"
    except UnicodeDecodeError as found:
        return _not_utf_8(found, advice)
    text = str(error).removeprefix("JSON parse error: ").partition(" in row ")[0]
    if changed := _CHANGED.fullmatch(text):
        name, before, now = changed[1].replace("/", "."), *changed.groups()[1:]
        return (
            f"column {name!r} is of type {now} here, and of type {before} elsewhere: "
            f"{advice.mend}, or write the column in one type{advice.types}"
        )
    for field in schema if text.startswith("Failed to convert") else ():
        try:
            _parsed(line + b"\n", 1, pa.schema([field]))
        except pa.ArrowInvalid:
            return (
                f"column {field.name!r} holds {json.dumps(record[field.name])} here, and is of "
                f"type {field.type} elsewhere: {advice.mend}, or say its type{advice.types}"
            )
    return f"not a JSON object of the columns' types: {text}: {advice.remove}"
