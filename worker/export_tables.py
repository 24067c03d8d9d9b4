"""Tables of an export: read from the servers, written as Parquet (id, vector).

Owns which tables are held in memory for the models to take in, and which are only
streamed to their file, being too large for that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from shoal.worker.initial_rows import initializer_spec
from shoal.worker.keras_embeddings import matrix_pieces, vocabulary
from shoal.worker.servers import ServerGroup

ROWS_PER_PIECE = 65_536

Int64 = npt.NDArray[np.int64]
Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class ExportedTable:
    """A table: ids int64 [n] ascending, rows float32 [n, dim], default [dim].

    count: rows of the table. One that is too large for the models has ids and rows of
        length 0 here, and all of it in its file, in no order.
    """

    ids: Int64
    rows: Float32
    default: Float32
    count: int = -1

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


def file_name(table: str) -> str:
    """The name of a table's file."""
    return table.replace("/", "_") + ".parquet"


def write_tables(
    folder: Path, servers: ServerGroup, layers: Mapping[str, Any], max_bytes: float
) -> dict[str, ExportedTable]:
    """Write every table to its file; those of at most `max_bytes` are returned whole.

    layers: of each table by name, in the order of the tables on the servers.
    max_bytes: of ids and rows.
    """
    folder.mkdir()
    each = list(layers.values())
    return {
        name: _write(servers, position, each, folder / file_name(name), max_bytes)
        for position, name in enumerate(layers)
    }


def _write(
    servers: ServerGroup, position: int, layers: Sequence[Any], path: Path, max_bytes: float
) -> ExportedTable:
    layer = layers[position]
    default = np.zeros(layer.output_dim, np.float32)
    if vocabulary(layer):
        pieces = matrix_pieces(servers, position, layers)
    else:
        default += np.float32(initializer_spec(layer).default_value)
        pieces = servers.read_table(position)
    held_ids, held_rows = [np.zeros(0, np.int64)], [np.zeros((0, layer.output_dim), np.float32)]
    size = 0
    for ids, rows in pieces:
        held_ids.append(ids)
        held_rows.append(rows)
        size += ids.nbytes + rows.nbytes
        if size > max_bytes:
            count = _stream(path, held_ids, held_rows, pieces)
            return ExportedTable(held_ids[0], held_rows[0], default, count)
    ids, rows = np.concatenate(held_ids), np.concatenate(held_rows)
    order = np.argsort(ids)
    table = ExportedTable(ids[order], rows[order], default)
    pq.write_table(_parquet(table.ids, table.rows), path, row_group_size=ROWS_PER_PIECE)
    return table


def _stream(
    path: Path,
    held_ids: list[Int64],
    held_rows: list[Float32],
    pieces: Iterator[tuple[Int64, Float32]],
) -> int:
    """Write what is held, which is let go, and then piece by piece; returns the rows."""
    count = 0
    with pq.ParquetWriter(path, _parquet(held_ids[0], held_rows[0]).schema) as writer:
        # The empty ones at the beginning stay, for the caller.
        while len(held_ids) > 1:
            ids = held_ids.pop(1)
            writer.write_table(_parquet(ids, held_rows.pop(1)))
            count += ids.size
        for ids, rows in pieces:
            writer.write_table(_parquet(ids, rows))
            count += ids.size
    return count


def _parquet(ids: Int64, rows: Float32) -> pa.Table:
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), rows.shape[1])
    return pa.table({"id": ids, "vector": vectors})
