"""Files of lines: plain text, and JSON lines.

A line ends with a line feed, or a carriage return and a line feed. In text every line
is a record, the column `line`. In JSON lines a record is an object per line, blank
lines are none, and the columns are the objects' keys.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.json as pajson

from shoal.data.blocks import BLOCK_BYTES, READ_BYTES, BlockReader, DamagedError, reporting_rows
from shoal.errors import UserError

TEXT_SCHEMA = pa.schema([("line", pa.binary())])

SAMPLE_BYTES = 1 << 20
"""Bytes at the beginning of a file from which the types of JSON lines are guessed."""

_LINE_FEED = ord("\n")


def _lines(data: bytes) -> list[bytes]:
    """The lines of a block without their ends."""
    lines = data.split(b"\n")
    if not lines[-1]:
        del lines[-1]  # behind the last line feed
    return [line[:-1] if line.endswith(b"\r") else line for line in lines]


class _LineReader(BlockReader):
    """What both formats share: blocks end where lines do."""

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
                yield self._count(pending[begin:end], taken), offset + end
                begin, feeds = end, feeds[taken:]
            pending, offset = pending[begin:], offset + begin
        if pending:
            yield self._count(pending, 1), size

    @abstractmethod
    def _count(self, data: bytes, lines: int, /) -> int:
        """Records in whole lines."""


class TextLineReader(_LineReader):
    """Reads text files, plain or gzip'd; see BlockReader. Lines need not be UTF-8."""

    kind = "lines"

    def _full_schema(self) -> pa.Schema:
        return TEXT_SCHEMA

    def _count(self, _data: bytes, lines: int) -> int:
        return lines

    def _decode(
        self, data: bytes, _first: int, low: int, high: int, schema: pa.Schema
    ) -> pa.RecordBatch:
        return pa.record_batch([pa.array(_lines(data)[low:high], pa.binary())], schema=schema)


class JsonLinesReader(_LineReader):
    """Reads JSON lines, plain or gzip'd; see BlockReader.

    Columns and types are those of the first megabyte of each file: int64, double, bool,
    string and lists of them; what looks like a time stays a string. A key that comes up
    only later is not read; one that an object lacks is a missing value.
    """

    kind = "jsonlines"

    def _count(self, data: bytes, _lines: int) -> int:
        return sum(1 for line in data.split(b"\n") if line.strip())

    def _full_schema(self) -> pa.Schema:
        merged: dict[str, pa.DataType] = {}
        origin: dict[str, str] = {}
        for path in self._paths:
            for field in self._guess(path):
                known = merged.get(field.name)
                if known is None or pa.types.is_null(known):
                    merged[field.name], origin[field.name] = field.type, path
                elif {known, field.type} == {pa.int64(), pa.float64()}:
                    merged[field.name] = pa.float64()
                elif field.type != known and not pa.types.is_null(field.type):
                    raise UserError(
                        f"{self._flag}: the files differ in column {field.name!r}: {known} in "
                        f"{origin[field.name]}, {field.type} in {path}"
                    )
        if not merged:
            raise UserError(f"{self._flag}: {self._pattern} holds no records")
        # A column without a single value may hold anything: a string.
        return pa.schema(
            [(n, pa.string() if pa.types.is_null(k) else k) for n, k in merged.items()]
        )

    def _guess(self, path: str) -> pa.Schema:
        with reporting_rows(path):
            data = self._storage.open(path).read_at(SAMPLE_BYTES, 0)
            if len(data) == SAMPLE_BYTES:
                data = data[: data.rfind(b"\n") + 1]
                if not data:
                    raise DamagedError(0, f"the line is longer than {SAMPLE_BYTES} bytes")
            lines = [line for line in data.split(b"\n") if line.strip()]
            if not lines:
                return pa.schema([])
            schema = _parse(lines, None, 0).schema
        return pa.schema([(f.name, pa.string() if _is_time(f.type) else f.type) for f in schema])

    def _decode(
        self, data: bytes, first: int, low: int, high: int, schema: pa.Schema
    ) -> pa.RecordBatch:
        lines = [line for line in data.split(b"\n") if line.strip()][low:high]
        table = _parse(lines, schema, first + low).select(schema.names).combine_chunks()
        return table.to_batches()[0]


def _is_time(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind))


def _parse(lines: list[bytes], schema: pa.Schema | None, first: int) -> pa.Table:
    """The objects of some lines, of which there is one at least.

    first: the position in the file of the first line. Raises DamagedError.
    """
    try:
        return _parsed(lines, schema)
    except pa.ArrowInvalid as error:
        # Arrow counts rows by its own blocks: look for the line, in halves.
        low, high = 0, len(lines)
        while high - low > 1:
            middle = (low + high) // 2
            try:
                _parsed(lines[low:middle], schema)
                low = middle
            except pa.ArrowInvalid:
                high = middle
        try:
            _parsed(lines[low:high], schema)
        except pa.ArrowInvalid as single:
            raise DamagedError(first + low, _plain(single)) from error
        # Each line passes alone: the types of the lines do not fit together.
        raise DamagedError(first + low, _plain(error)) from error


def _parsed(lines: list[bytes], schema: pa.Schema | None) -> pa.Table:
    data = b"\n".join(lines) + b"\n"
    table = pajson.read_json(
        pa.BufferReader(data),
        read_options=pajson.ReadOptions(use_threads=False, block_size=len(data) + 1),
        parse_options=pajson.ParseOptions(
            explicit_schema=schema,
            unexpected_field_behavior="infer" if schema is None else "ignore",
        ),
    )
    if table.num_rows != len(lines):
        raise pa.ArrowInvalid("a line must hold exactly one JSON object")
    return table


def _plain(error: pa.ArrowInvalid) -> str:
    """Arrow's message without its own count of rows."""
    text = str(error).removeprefix("JSON parse error: ").partition(" in row ")[0]
    return f"not a JSON object of the columns' types: {text}"
