"""Tables of an export: read from the servers, written as Parquet (id, vector).

Owns which tables are held in memory for the models to take in, and which are only
streamed to their file, being too large for that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from shoal.checkpoints.formats import manifests
from shoal.files.storage import Storage
from shoal.proto import shoal_pb2 as pb
from shoal.worker.model.built import ServedTable
from shoal.worker.outputs.row_forms import (
    Array,
    Float32,
    Int64,
    Scales,
    as_float32,
    columns,
    default_row,
    form_of,
    formed,
    formed_table,
    row_bytes,
)
from shoal.worker.servers.group import ServerGroup

if TYPE_CHECKING:
    from shoal.checkpoints.formats.schema import File

ROWS_PER_PIECE = 65_536

THREADS = 4
"""Tables that are read and written at once, where their sizes are known before."""


@dataclass(frozen=True)
class ExportedTable:
    """A table: ids int64 [n] ascending, rows [n, dim] in their form (row_forms.py), default [dim].

    count: rows of the table. One that is too large for the models has ids and rows of
        length 0 here, and all of it in its file, in no order.
    file: what the export's manifest says of its file; None before it is written.
    scales: of int8 rows.
    """

    ids: Int64
    rows: Array
    default: Float32
    count: int = -1
    file: File | None = None
    scales: Scales = None

    def __post_init__(self) -> None:
        if self.count < 0:
            object.__setattr__(self, "count", int(self.ids.size))

    @property
    def external(self) -> bool:
        """True if the table's rows are in its file only."""
        return self.count > self.ids.size

    @property
    def form(self) -> str:
        """The form of the rows."""
        return str(self.rows.dtype)

    def emptied(self) -> ExportedTable:
        """The table without its rows."""
        scales = None if self.scales is None else self.scales[:0]
        return ExportedTable(self.ids[:0], self.rows[:0], self.default, scales=scales)

    def values(self) -> Float32:
        """The rows as the numbers that they are, float32 [n, dim]."""
        return as_float32(self.rows, self.scales)

    @property
    def indexed_ids(self) -> Int64:
        """The ids that `indexed` gives."""
        return self.ids if self.ids.size else np.zeros(1, np.int64)

    def indexed(self) -> tuple[Int64, Array, Scales]:
        """Ids, rows with the default first, and their scales: that of ids[i] is rows[i + 1].

        An empty table gets one id, with the default row, which changes no lookup:
        TensorFlow's lookups cannot be empty.
        """
        default, scale = formed(self.default[None, :], self.form)
        rows, scales = (self.rows, self.scales) if self.ids.size else (default, scale)
        if scales is not None and scale is not None:
            scales = np.concatenate([scale, scales])
        return self.indexed_ids, np.concatenate([default, rows]), scales


def file_names(tables: Iterable[str]) -> list[str]:
    """The name of each table's file in the export, all different."""
    names: list[str] = []
    for position, table in enumerate(tables):
        stem = f"tables/{table.replace('/', '_')}"
        while f"{stem}.parquet" in names:
            stem += f".{position}"
        names.append(f"{stem}.parquet")
    return names


class TableSource(Protocol):
    """The source of an export's tables, which are read by their positions in the model's order."""

    def counts(self) -> list[int] | None:
        """Rows of each table; None where only reading tells. If known, threads read them."""

    def pieces(self, position: int) -> Iterator[tuple[Int64, Float32]]:
        """All rows of a table: ids int64 [n], rows float32 [n, dim]."""


class ServedTables:
    """The tables of the servers."""

    def __init__(self, servers: ServerGroup, tables: Sequence[ServedTable]) -> None:
        self._servers = servers
        self._tables = tables

    def counts(self) -> None:
        """See TableSource."""

    def pieces(self, position: int) -> Iterator[tuple[Int64, Float32]]:
        """See TableSource."""
        if self._tables[position].vocabulary:
            return self._all_rows(position)
        return self._servers.read_table(position)

    def _all_rows(self, position: int) -> Iterator[tuple[Int64, Float32]]:
        """Ids and rows of a table with a vocabulary, in order, those never trained too."""
        size = self._tables[position].vocabulary
        for start in range(0, size, ROWS_PER_PIECE):
            ids = np.arange(start, min(start + ROWS_PER_PIECE, size))
            wanted = [[ids if i == position else ids[:0]] for i in range(len(self._tables))]
            pulled = self._servers.pull(wanted, training=False, exact=True)
            yield ids, pulled.rows[position][pulled.ids[position].inverses[0]]


def write_tables(
    folder: Storage,
    source: TableSource,
    served: Mapping[str, ServedTable],
    max_bytes: float,
    specs: Sequence[pb.TableSpec],
    export_dtype: str,
) -> dict[str, ExportedTable]:
    """Write every table to its file; those for the models are returned whole.

    These are the first in their order that take at most `max_bytes` of ids and rows together.

    folder: of the export. served: the tables by name, in the order of the source. specs: of
    them, in their order. Raises UserError for rows that cannot be int8.
    """
    folder.child("tables").make()
    files = dict(zip(served, file_names(served), strict=True))
    counts = source.counts()
    left = max_bytes
    if counts is None:
        tables = {}
        for position, (name, each) in enumerate(served.items()):
            pieces, spec = source.pieces(position), specs[position]
            table = _write(pieces, each, folder, files[name], left, spec, export_dtype)
            tables[name] = table
            left -= 0 if table.external else table.count * _size(spec, export_dtype)
        return tables
    limits = []
    for count, spec in zip(counts, specs, strict=True):
        size = count * _size(spec, export_dtype)
        limits.append(math.inf if size <= left else 0)
        left -= size if size <= left else 0
    with ThreadPoolExecutor(THREADS, "export") as pool:
        writes = [
            pool.submit(
                _write,
                source.pieces(i),
                served[name],
                folder,
                file,
                limits[i],
                specs[i],
                export_dtype,
            )
            for i, (name, file) in enumerate(files.items())
        ]
        return {name: each.result() for name, each in zip(files, writes, strict=True)}


def _size(table: pb.TableSpec, export_dtype: str) -> int:
    """Bytes of a row with its id."""
    return np.dtype(np.int64).itemsize + row_bytes(form_of(table, export_dtype), table.dim)


def write_parquet(folder: Storage, name: str, pieces: Iterable[pa.Table]) -> File:
    """Write tables of one schema, at least one, as a Parquet file; returns its description.

    With a checksum a page: whoever reads it, with whatever, can find what has changed.
    """
    with manifests.writing(folder, name) as file, ExitStack() as ends:
        writer: pq.ParquetWriter | None = None
        for piece in pieces:
            if writer is None:
                writer = pq.ParquetWriter(file, piece.schema, write_page_checksum=True)
                ends.callback(writer.close)
            writer.write_table(piece, row_group_size=ROWS_PER_PIECE)
        assert writer is not None
    return file.described


def _write(
    pieces: Iterator[tuple[Int64, Float32]],
    table: ServedTable,
    folder: Storage,
    name: str,
    max_bytes: float,
    spec: pb.TableSpec,
    export_dtype: str,
) -> ExportedTable:
    initial = 0.0 if table.vocabulary else table.initializer.default_value
    default = default_row(initial, spec.dim, spec)
    form = form_of(spec, export_dtype)
    held = [_Piece.of(np.zeros(0, np.int64), np.zeros((0, spec.dim), np.float32), form, spec.name)]
    size = 0
    coming = (_Piece.of(ids, rows, form, spec.name) for ids, rows in pieces)
    for piece in coming:
        held.append(piece)
        size += piece.nbytes
        if size > max_bytes:
            empty = held.pop(0)
            counted = Counted(_remaining(held, coming))
            file = write_parquet(folder, name, counted)
            return ExportedTable(
                empty.ids, empty.rows, default, counted.rows, file, scales=empty.scales
            )
    whole = _Piece.joined(held)
    file = write_parquet(folder, name, whole.parts())
    return ExportedTable(whole.ids, whole.rows, default, file=file, scales=whole.scales)


@dataclass(frozen=True)
class _Piece:
    """Rows of a table, in their form."""

    ids: Int64
    rows: Array
    scales: Scales

    @classmethod
    def of(cls, ids: Int64, rows: Float32, form: str, table: str) -> _Piece:
        return cls(ids, *formed_table(ids, rows, form, table))

    @classmethod
    def joined(cls, pieces: Sequence[_Piece]) -> _Piece:
        """All of them, by their ids."""
        ids = np.concatenate([each.ids for each in pieces])
        order = np.argsort(ids)
        rows = np.concatenate([each.rows for each in pieces])[order]
        scales = [each.scales for each in pieces if each.scales is not None]
        return cls(ids[order], rows, np.concatenate(scales)[order] if scales else None)

    @property
    def nbytes(self) -> int:
        return sum(each.nbytes for each in (self.ids, self.rows, self.scales) if each is not None)

    def parts(self) -> Iterator[pa.Table]:
        """The columns of row groups: rows of 16 bits become float32 a group at a time."""
        for start in range(0, max(self.ids.size, 1), ROWS_PER_PIECE):
            part = slice(start, start + ROWS_PER_PIECE)
            scales = None if self.scales is None else self.scales[part]
            yield columns(self.ids[part], self.rows[part], scales)


class Counted:
    """Pieces of a table, and how many rows have come of them."""

    def __init__(self, pieces: Iterable[pa.Table]) -> None:
        self._pieces = pieces
        self.rows = 0

    def __iter__(self) -> Iterator[pa.Table]:
        for piece in self._pieces:
            self.rows += len(piece)
            yield piece


def _remaining(held: list[_Piece], coming: Iterator[_Piece]) -> Iterator[pa.Table]:
    """Yield the held pieces, letting go of each, and then the coming ones piece by piece."""
    while held:
        yield from held.pop(0).parts()
    for piece in coming:
        yield from piece.parts()
