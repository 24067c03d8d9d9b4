"""Reading ranges of Arrow files: those with a footer (Feather), and streams.

A file has record batches, which are decoded as a whole, the used columns of each alone. A file with
a footer says where they are. A stream does not: it is read once, without the values, for an index.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shoal.data.file_reader import FileReader
from shoal.data.places.index_store import KEPT
from shoal.data.places.recent import Recent
from shoal.data.places.storage import ANEW, reporting
from shoal.data.plain_types import of_schema, plain_schema
from shoal.data.reader import CHUNK_ROWS, Source, check_range, units_of
from shoal.data.schemas import check_same
from shoal.errors import UserError

MAGIC = b"ARROW1"

FEATHER_1 = b"FEA1"

_INT32 = np.dtype("<i4")
_CONTINUED = -1
"""Stands before the length of a message."""


@dataclass
class _File:
    """lengths: records of each batch. places: of a stream, where each batch's message begins."""

    schema: pa.Schema
    lengths: npt.NDArray[np.int64]
    places: npt.NDArray[np.int64] | None

    @property
    def ends(self) -> npt.NDArray[np.int64]:
        return np.cumsum(self.lengths)


class ArrowReader(FileReader):
    """Reads Arrow files, with a footer or as streams; see FileReader."""

    def __init__(self, pattern: str, **options: Any) -> None:
        super().__init__(pattern, kind="arrow", **options)
        self._files: Recent[str, _File] = Recent(KEPT)
        self._types: pa.Schema | None = None
        self._batch: tuple[tuple[Any, ...], pa.RecordBatch] | None = None

    def _count(self, path: str) -> int:
        return int(self._file(path).lengths.sum())

    def describe(self, name: str) -> Source:
        """See DataReader; with the record batches."""
        file = self._file(name)
        return Source(name, int(file.lengths.sum()), units_of(file.lengths.tolist()))

    def _full_schema(self) -> pa.Schema:
        if self._types is None:
            with _reporting(self._paths[0]):
                self._types = plain_schema(_schema_of(self._storage.open(self._paths[0])))
        return self._types

    def read(self, source: str, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Yield RecordBatches of at most CHUNK_ROWS records."""
        schema = self.schema()
        self._forget_changed(source, self._files)
        file = self._file(source)
        ends = file.ends
        check_range(Source(source, int(file.lengths.sum())), start, end)
        while start < end:
            number = int(np.searchsorted(ends, start, "right"))
            before = int(ends[number - 1]) if number else 0
            last = min(end, int(ends[number]))
            with _reporting(source, f"rows {before + 1} to {int(ends[number])}: "):
                batch = self._decoded(source, file, number, schema)
            for first in range(start, last, CHUNK_ROWS):
                yield batch.slice(first - before, min(CHUNK_ROWS, last - first))
            start = last

    def _decoded(self, path: str, file: _File, number: int, schema: pa.Schema) -> pa.RecordBatch:
        """The used columns of a batch. The last one is kept, as its tasks follow one another."""
        key = path, number, tuple(schema.names)
        if self._batch is None or self._batch[0] != key:
            self._batch = None  # two of them need not be held
            places = [file.schema.get_field_index(name) for name in schema.names]
            opened = self._storage.open(path)
            if file.places is None:
                options = pa.ipc.IpcReadOptions(included_fields=places, use_threads=False)
                batch = pa.ipc.open_file(opened, options=options).get_batch(number)
            else:
                begin = int(file.places[number])
                opened.seek(begin)
                batch = pa.ipc.read_record_batch(pa.ipc.read_message(opened), file.schema)
            # What one changed byte makes of it would end the process where it is used.
            (chosen := batch.select(schema.names)).validate(full=True)
            self._batch = key, of_schema(chosen, schema)
        return self._batch[1]

    def reopen(self) -> None:
        """See DataReader."""
        super().reopen()
        self._batch = None

    def place(self, source: str, record: int) -> str:
        """See DataReader; with the record batch."""
        batch = int(np.searchsorted(self._file(source).ends, record, "right"))
        return f"record {record} (row {record + 1}, record batch {batch})"

    def _file(self, path: str) -> _File:
        return self._files.get(path, lambda: self._look(path))

    def _look(self, path: str) -> _File:
        full = self._full_schema()
        with _reporting(path):
            stamp = self._storage.stamp(path)
            table = self._store.get("arrow", path, stamp, lambda: self._build(path))
            found = _schema_of(self._storage.open(path))
            plain = plain_schema(found)
        check_same(full, plain, self._paths[0], path, self._flag, self.schema().names)
        places = table["place"].to_numpy()
        lengths = table["records"].to_numpy()
        file = _File(found, lengths, None if len(places) and places[0] < 0 else places)
        source = Source(path, int(lengths.sum()), units_of(lengths.tolist()))
        self._store.check(source, stamp)
        self._noted(path, stamp)
        self._batch = None  # it may be of the file as it was
        return file

    def _build(self, path: str) -> pa.Table:
        """Records of each batch; of a stream also where it begins, and -1 of other files."""
        file = self._storage.open(path)
        if file.read_at(len(MAGIC), 0) == MAGIC:
            reader = pa.ipc.open_file(file)
            # With no field, only the batches' heads are read.
            options = pa.ipc.IpcReadOptions(included_fields=[0], use_threads=False)
            heads = pa.ipc.open_file(file, options=options)
            lengths = [heads.get_batch(i).num_rows for i in range(reader.num_record_batches)]
            places = [-1] * len(lengths)
        else:
            self._storage.expect(path, [(0, file.size())])
            lengths, places = _batches_of_stream(file)
        return pa.table(
            {"records": pa.array(lengths, pa.int64()), "place": pa.array(places, pa.int64())}
        )


def _schema_of(file: pa.NativeFile) -> pa.Schema:
    head = file.read_at(len(MAGIC), 0)
    file.seek(0)
    if head == MAGIC:
        schema = pa.ipc.open_file(file).schema
    elif head[: len(FEATHER_1)] == FEATHER_1:
        raise pa.ArrowInvalid("it is Feather of version 1; write it anew with version 2")
    else:
        schema = pa.ipc.open_stream(file).schema
    return schema.remove_metadata()


def _batches_of_stream(file: pa.NativeFile) -> tuple[list[int], list[int]]:
    """Records of each batch of a stream, and where its message begins."""
    file.seek(0)
    schema = pa.ipc.read_schema(pa.ipc.read_message(file))
    lengths: list[int] = []
    places: list[int] = []
    while True:
        place = file.tell()
        head = np.frombuffer(file.read_at(8, place), _INT32)
        if len(head) < 2 or (head[0] == _CONTINUED and head[1] == 0) or head[0] == 0:
            return lengths, places
        file.seek(place)
        message = pa.ipc.read_message(file)
        if message.type != "record batch":
            raise pa.ArrowInvalid(
                "it is a stream with dictionaries; write it as a file with a footer"
            )
        lengths.append(pa.ipc.read_record_batch(message, schema).num_rows)
        places.append(place)


@contextmanager
def _reporting(path: str, place: str = "") -> Iterator[None]:
    """Turns Arrow's errors into a UserError naming the file. place: the rows, for the error."""
    with reporting(path):
        try:
            yield
        except (pa.ArrowException, EOFError, ValueError, IndexError, OverflowError) as error:
            raise UserError(
                f"{path}: {place}cannot be read as Arrow ({error}); the file is damaged or not an "
                f"Arrow file: {ANEW}"
            ) from error
