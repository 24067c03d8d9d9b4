"""Tables of an export: read from the servers, written as Parquet (id, vector).

Owns which tables are held in memory for the models to take in, and which are only
streamed to their file, being too large for that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from shoal.checkpoints import manifests
from shoal.checkpoints.storage import Storage
from shoal.worker.model.initial_rows import initializer_spec
from shoal.worker.model.keras_embeddings import BYTES_PER_VALUE, matrix_pieces, vocabulary
from shoal.worker.servers.group import ServerGroup

if TYPE_CHECKING:
    from shoal.checkpoints.schema import File

ROWS_PER_PIECE = 65_536

THREADS = 4
"""Tables that are read and written at once, where their sizes are known before."""

Int64 = npt.NDArray[np.int64]
Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class ExportedTable:
    """A table: ids int64 [n] ascending, rows float32 [n, dim], default [dim].

    count: rows of the table. One that is too large for the models has ids and rows of
        length 0 here, and all of it in its file, in no order.
    file: what the export's manifest says of its file; None before it is written.
    """

    ids: Int64
    rows: Float32
    default: Float32
    count: int = -1
    file: File | None = None

    def __post_init__(self) -> None:
        if self.count < 0:
            object.__setattr__(self, "count", int(self.ids.size))

    @property
    def external(self) -> bool:
        """Whether the table's rows are in its file only."""
        return self.count > self.ids.size

    def indexed(self) -> tuple[Int64, Float32]:
        """Ids, and rows with the default first: the row of ids[i] is rows[i + 1].

        An empty table gets one id, with the default row, which changes no lookup:
        TensorFlow's lookups cannot be empty.
        """
        if self.ids.size:
            return self.ids, np.concatenate([self.default[None, :], self.rows])
        return np.zeros(1, np.int64), np.stack([self.default, self.default])


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
    """Where the tables of an export are read, by their positions in the model's order."""

    def counts(self) -> list[int] | None:
        """Rows of each table; None where only reading tells. If known, threads read them."""

    def pieces(self, position: int) -> Iterator[tuple[Int64, Float32]]:
        """All rows of a table: ids int64 [n], rows float32 [n, dim]."""


class ServedTables:
    """The tables of the servers. layers: one a table."""

    def __init__(self, servers: ServerGroup, layers: Sequence[Any]) -> None:
        self._servers = servers
        self._layers = layers

    def counts(self) -> None:
        """See TableSource."""

    def pieces(self, position: int) -> Iterator[tuple[Int64, Float32]]:
        """See TableSource."""
        if vocabulary(self._layers[position]):
            return matrix_pieces(self._servers, position, self._layers)
        return self._servers.read_table(position)


def write_tables(
    folder: Storage, source: TableSource, layers: Mapping[str, Any], max_bytes: float
) -> dict[str, ExportedTable]:
    """Write every table to its file; those for the models are returned whole.

    These are the first in their order that take at most `max_bytes` of ids and rows together.

    folder: of the export. layers: of each table by name, in the order of the source.
    """
    folder.child("tables").make()
    files = dict(zip(layers, file_names(layers), strict=True))
    counts = source.counts()
    left = max_bytes
    if counts is None:
        tables = {}
        for position, (name, layer) in enumerate(layers.items()):
            table = _write(source.pieces(position), layer, folder, files[name], left)
            tables[name] = table
            left -= 0 if table.external else table.ids.nbytes + table.rows.nbytes
        return tables
    limits = []
    for count, layer in zip(counts, layers.values(), strict=True):
        size = count * (np.dtype(np.int64).itemsize + layer.output_dim * BYTES_PER_VALUE)
        limits.append(math.inf if size <= left else 0)
        left -= size if size <= left else 0
    with ThreadPoolExecutor(THREADS, "export") as pool:
        writes = [
            pool.submit(_write, source.pieces(i), layers[name], folder, file, limits[i])
            for i, (name, file) in enumerate(files.items())
        ]
        return {name: each.result() for name, each in zip(files, writes, strict=True)}


def write_parquet(folder: Storage, name: str, pieces: Iterable[pa.Table]) -> File:
    """Write tables of one schema, at least one, as a Parquet file; returns its description.

    With a checksum a page: whoever reads it, with whatever, can find what has changed.
    """
    with manifests.writing(folder, name) as file:
        writer: pq.ParquetWriter | None = None
        for piece in pieces:
            if writer is None:
                writer = pq.ParquetWriter(file, piece.schema, write_page_checksum=True)
            writer.write_table(piece, row_group_size=ROWS_PER_PIECE)
        assert writer is not None
        writer.close()
    return file.described


def _write(
    pieces: Iterator[tuple[Int64, Float32]],
    layer: Any,
    folder: Storage,
    name: str,
    max_bytes: float,
) -> ExportedTable:
    default = np.zeros(layer.output_dim, np.float32)
    if not vocabulary(layer):
        default += np.float32(initializer_spec(layer).default_value)
    held_ids, held_rows = [np.zeros(0, np.int64)], [np.zeros((0, layer.output_dim), np.float32)]
    size = 0
    for ids, rows in pieces:
        held_ids.append(ids)
        held_rows.append(rows)
        size += ids.nbytes + rows.nbytes
        if size > max_bytes:
            counted = _Counted(_remaining(held_ids, held_rows, pieces))
            file = write_parquet(folder, name, counted)
            return ExportedTable(held_ids[0], held_rows[0], default, counted.rows, file)
    ids, rows = np.concatenate(held_ids), np.concatenate(held_rows)
    order = np.argsort(ids)
    ids, rows = ids[order], rows[order]
    file = write_parquet(folder, name, [_parquet(ids, rows)])
    return ExportedTable(ids, rows, default, file=file)


class _Counted:
    """Pieces of a table, and how many rows have come of them."""

    def __init__(self, pieces: Iterable[pa.Table]) -> None:
        self._pieces = pieces
        self.rows = 0

    def __iter__(self) -> Iterator[pa.Table]:
        for piece in self._pieces:
            self.rows += len(piece)
            yield piece


def _remaining(
    held_ids: list[Int64],
    held_rows: list[Float32],
    pieces: Iterator[tuple[Int64, Float32]],
) -> Iterator[pa.Table]:
    """What is held, which is let go, and then piece by piece."""
    # The empty ones at the beginning stay, for the caller.
    while len(held_ids) > 1:
        yield _parquet(held_ids.pop(1), held_rows.pop(1))
    for ids, rows in pieces:
        yield _parquet(ids, rows)


def _parquet(ids: Int64, rows: Float32) -> pa.Table:
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), rows.shape[1])
    return pa.table({"id": ids, "vector": vectors})
