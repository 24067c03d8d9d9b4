"""The saved model that `--restore-from` names, opened for reading: an export, or a checkpoint.

Owns finding out which it is, and the form of both as plain arrays. Values, and the uses of
ids that have no row yet: optimizer slots begin anew. An export is written by
worker/outputs/export.py, the contents of a checkpoint by ps/saved/checkpoint.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from shoal.checkpoints.contents import (
    Flags,
    Page,
    counting_pages,
    dense_slices,
    page_rows,
    state_slice,
    table_pages,
    table_pieces,
)
from shoal.checkpoints.continued import last_checkpoint_at
from shoal.checkpoints.folders import Checkpoint
from shoal.checkpoints.formats import manifests
from shoal.checkpoints.formats.manifests import MANIFEST, CheckpointError
from shoal.checkpoints.formats.quantized import dequantize
from shoal.errors import UserError
from shoal.files.storage import Storage, open_storage

if TYPE_CHECKING:
    from shoal.checkpoints.formats.export_schema import ExportManifest, ExportTable

Int64 = npt.NDArray[np.int64]
Float32 = npt.NDArray[np.float32]
Uint32 = npt.NDArray[np.uint32]

ROWS_PER_PIECE = 65_536
"""In one piece of a table."""

DENSE_COLUMNS = {
    "name": pa.string(),
    "shape": pa.list_(pa.int64()),
    "values": pa.list_(pa.float32()),
}
"""Of an export's file of dense variables."""

TABLE_COLUMNS: dict[str, Callable[[int], dict[str, pa.DataType]]] = {
    "float32": lambda dim: {"id": pa.int64(), "vector": pa.list_(pa.float32(), dim)},
    "int8": lambda dim: {
        "id": pa.int64(),
        "vector": pa.list_(pa.int8(), dim),
        "scale": pa.float32(),
    },
}
"""Of an export's file of a table, by the dtype of its values and their number in a row."""


@dataclass(frozen=True)
class Part:
    """A part of a table, to be read beside others.

    bytes: of the file. rows: how many it has. read: gives them in pieces, ids int64 [n] and rows
    float32 [n, dim]; raises UserError if it cannot be read.
    """

    bytes: int
    rows: int
    read: Callable[[], Iterator[tuple[Int64, Float32]]]


def dense_value(
    values: Mapping[str, Float32], variable: str, shape: tuple[int, ...], where: str
) -> Float32:
    """The saved value of a dense variable of the model. where: "export" or "checkpoint".

    Raises UserError if there is none, or it has another shape.
    """
    value = values.get(variable)
    if value is None or value.shape != shape:
        raise UserError(
            f"--restore-from: variable {variable} has shape {shape} in the model, but "
            f"{'is missing' if value is None else value.shape} in the {where}"
        )
    return value


def open_saved(
    location: str, opened: Callable[[str], Storage] = open_storage
) -> Export | SavedCheckpoint:
    """The saved model at `location`: an export, a checkpoint, or the newest of a folder of them.

    opened: opens the folder at a path or URL. Raises UserError if it is none of these, or not
    whole.
    """
    try:
        checkpoint = last_checkpoint_at(location, opened)
    except CheckpointError as error:
        raise UserError(f"--restore-from: {error}") from error
    return Export(location, opened) if checkpoint is None else SavedCheckpoint(checkpoint)


class SavedCheckpoint:
    """A checkpoint, by whichever number of servers."""

    kind = "checkpoint"
    by_slots = True  # its parts are of few routing slots each

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    def dense(self) -> dict[str, Float32]:
        """Dense values by variable name. Raises UserError if they cannot be read."""
        model, shards = self._checkpoint.model, range(len(self._checkpoint.shards))
        with _told():
            trainable = [dense_slices(self._checkpoint, shard)["values"] for shard in shards]
            state = [state_slice(self._checkpoint, shard) for shard in shards]
        values = {}
        for variables, parts in ((model.trainable, trainable), (model.non_trainable, state)):
            flat = np.concatenate(parts)
            for each in variables:
                shape = tuple(each.shape)
                values[each.name] = flat[each.offset :][: math.prod(shape)].reshape(shape)
        return values

    def rows(self, table: str, dim: int) -> Iterator[tuple[Int64, Float32]]:
        """All rows of a table, in pieces: ids int64 [n], rows float32 [n, dim].

        Raises UserError if there is no such table, or it cannot be read.
        """
        position = self._position(table, dim)
        for shard in range(len(self._checkpoint.shards)):
            with _told():
                for columns in table_pieces(self._checkpoint, shard, position):
                    yield columns["id"], columns["values"]

    def check_table(self, table: str, dim: int) -> None:
        """Raises UserError if there is no such table. Reads nothing but manifests."""
        self._position(table, dim)

    def size(self, table: str, dim: int, owned: Flags) -> int:
        """Bytes that `parts` and reading them tell of. Raises as `parts`."""
        return sum(part.bytes for part in self.parts(table, dim, owned))

    def parts(
        self,
        table: str,
        dim: int,
        owned: Flags,
        told: Callable[[int], object] = lambda _: None,
    ) -> list[Part]:
        """The parts of a table that may have rows of these routing slots, and others, too.

        owned: bool [16384]. told: is called with bytes that this reads already. Each part is
        compared with its checksum when it is read. Raises as `rows`.
        """
        del told  # nothing is read
        position = self._position(table, dim)
        with _told():
            return [
                Part(page.bytes, page.rows, partial(self._page, page))
                for shard in range(len(self._checkpoint.shards))
                for page in table_pages(self._checkpoint, shard, position, owned)
            ]

    def counted(self, table: str, dim: int, owned: Flags) -> Iterator[tuple[Int64, Uint32]]:
        """The ids of a table that have no row and are counted: ids int64 [n], uses uint32 [n].

        Those of these routing slots, and others, too. Raises as `rows`.
        """
        position = self._position(table, dim)
        with _told():
            for shard in range(len(self._checkpoint.shards)):
                for page in counting_pages(self._checkpoint, shard, position, owned):
                    columns = page_rows(self._checkpoint, page)
                    if columns is not None:
                        yield columns["id"], columns["uses"]

    def _page(self, page: Page) -> Iterator[tuple[Int64, Float32]]:
        with _told():
            columns = page_rows(self._checkpoint, page)
        if columns is not None:
            yield columns["id"], columns["values"]

    def _position(self, table: str, dim: int) -> int:
        saved = {t.name: (i, int(t.dim)) for i, t in enumerate(self._checkpoint.model.tables)}
        position, found = saved.get(table, (0, None))
        _check_table(table, dim, found, self.kind)
        return position


def _check_table(name: str, dim: int, saved: int | None, where: str) -> None:
    if saved != dim:
        raise UserError(
            f"--restore-from: the model has table {name!r} of dim {dim}, the {where} has "
            f"{'no such table' if saved is None else saved}"
        )


class Export:
    """An export folder, opened. A file is compared with its checksum before it is used."""

    kind = "export"
    by_slots = False

    def __init__(self, folder: str, opened: Callable[[str], Storage] = open_storage) -> None:
        """opened: as in `open_saved`. Raises UserError if it is not a whole export."""
        # Late: it takes the start of a server a while, and few have use for it.
        from shoal.checkpoints.formats.export_schema import EXPORT_FORMAT, checked_export

        try:
            self._storage = opened(folder)
            there = MANIFEST in self._storage.names()
        except OSError as error:
            raise UserError(f"--restore-from: {folder}: {manifests.reason(error)}") from error
        if not there:
            raise UserError(
                f"--restore-from: {folder} is not the output of a training job: "
                "it has no manifest.json"
            )
        with _told():
            self.manifest: ExportManifest = manifests.read(
                self._storage, MANIFEST, EXPORT_FORMAT, checked_export
            )
        self._files = {file["name"]: file for file in self.manifest["files"]}

    def verify(self) -> None:
        """Read every file. Raises UserError naming one that is not as written."""
        self.dense()
        for table in self.manifest["tables"]:
            for _ in self.rows(table["name"], table["dim"]):
                pass
        read = {self.manifest["dense"], *(table["file"] for table in self.manifest["tables"])}
        for name in self._files.keys() - read:
            with _told():
                manifests.check(self._storage, self._files[name])

    def dense(self) -> dict[str, Float32]:
        """Dense values by variable name. Raises UserError if they cannot be read."""
        name = self.manifest["dense"]
        values: dict[str, Float32] = {}
        with self._parquet(name) as file:
            self._require(file.schema_arrow, pa.schema(DENSE_COLUMNS))
            table = file.read()
            for variable, shape, flat in zip(*table.columns, strict=True):
                sizes = shape.as_py() or []
                if (
                    not (variable.is_valid and shape.is_valid and flat.is_valid)
                    or None in sizes
                    or min(sizes, default=0) < 0
                    or math.prod(sizes) != len(flat)
                    or flat.values.null_count
                    or variable.as_py() in values
                ):
                    raise ValueError(f"variable {variable} is not of its shape, or there twice")
                values[variable.as_py()] = flat.values.to_numpy().reshape(sizes)
        return values

    def rows(self, table: str, dim: int) -> Iterator[tuple[Int64, Float32]]:
        """See SavedCheckpoint.rows."""
        for part in self.parts(table, dim):
            yield from part.read()

    def check_table(self, table: str, dim: int) -> None:
        """See SavedCheckpoint.check_table."""
        self._table(table, dim)

    def size(self, table: str, dim: int, owned: Flags) -> int:
        """See SavedCheckpoint.size: `parts` reads the file once, and reading them once more."""
        del owned
        return 2 * self._files[self._table(table, dim)["file"]]["bytes"]

    def parts(
        self,
        table: str,
        dim: int,
        owned: Flags | None = None,
        told: Callable[[int], object] = lambda _: None,
    ) -> list[Part]:
        """See SavedCheckpoint.parts; but the file is compared with its checksum here.

        An export does not tell the slots of its rows: all parts may have rows of any.
        """
        del owned
        found = self._table(table, dim)
        name, rows = found["file"], found["rows"]
        with self._parquet(name, told) as file:
            self._require(file.schema_arrow, pa.schema(TABLE_COLUMNS[found["dtype"]](dim)))
            metadata = file.metadata
            groups = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
            if sum(groups) != rows:
                raise ValueError(f"{sum(groups)} rows, not {rows}")
        size, read = self._files[name]["bytes"], partial(self._group, name, metadata, dim)
        return [
            Part(size * count // max(rows, 1), count, partial(read, group))
            for group, count in enumerate(groups)
        ]

    def counted(self, table: str, dim: int, owned: Flags) -> Iterator[tuple[Int64, Uint32]]:
        """See SavedCheckpoint.counted: none, as an export has rows only."""
        del table, dim, owned
        return iter(())

    def _group(
        self, name: str, metadata: pq.FileMetaData, dim: int, group: int
    ) -> Iterator[tuple[Int64, Float32]]:
        count, wanted = 0, metadata.row_group(group).num_rows
        with self._reading(name, metadata) as file:
            for batch in file.iter_batches(ROWS_PER_PIECE, row_groups=[group], use_threads=False):
                vectors = batch.column("vector")
                flat = vectors.flatten()
                if flat.null_count or any(column.null_count for column in batch.columns):
                    raise ValueError("a value is missing")
                count += len(batch)
                rows = flat.to_numpy().reshape(len(batch), dim)
                if "scale" in batch.schema.names:
                    rows = dequantize(rows, batch.column("scale").to_numpy())
                yield batch.column("id").to_numpy(), rows
            if count != wanted:
                raise ValueError(f"{count} rows in row group {group}, not {wanted}")

    def _table(self, table: str, dim: int) -> ExportTable:
        exported = {each["name"]: each for each in self.manifest["tables"]}
        found = exported.get(table)
        _check_table(table, dim, found["dim"] if found else None, self.kind)
        assert found is not None
        return found

    @staticmethod
    def _require(found: pa.Schema, wanted: pa.Schema) -> None:
        # Not the fields' own names for a list's items, which differ between writers.
        if found.names != wanted.names or not all(
            a.equals(b) for a, b in zip(found.types, wanted.types, strict=True)
        ):
            raise ValueError(f"has columns {found.to_string(show_schema_metadata=False)!r}")

    @contextmanager
    def _parquet(
        self, name: str, told: Callable[[int], object] = lambda _: None
    ) -> Iterator[pq.ParquetFile]:
        """A file of the export, as it was written. What does not fit is a UserError."""
        with _told():
            manifests.check(self._storage, self._files[name], told)
        with self._reading(name) as file:
            yield file

    @contextmanager
    def _reading(
        self, name: str, metadata: pq.FileMetaData | None = None
    ) -> Iterator[pq.ParquetFile]:
        """A file that was compared. metadata: of it, where they were read."""
        try:
            with self._storage.read(name) as file:
                # The pages' own checksums: the file may change after it was compared.
                yield pq.ParquetFile(file, metadata=metadata, page_checksum_verification=True)
        except (OSError, ValueError, pa.ArrowException) as error:
            path = self._storage.path(name)
            raise UserError(f"--restore-from: cannot read {path}: {error}") from error


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except CheckpointError as error:
        raise UserError(f"--restore-from: {error}") from error
