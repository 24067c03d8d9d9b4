"""The vectors that a table begins with, by id, of a Parquet file of the user's.

Owns the form of the file: a column `id`, of integers or texts, and a column `vector`, of as many
numbers as a row of the table has.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from shoal.errors import UserError
from shoal.files.storage import open_storage
from shoal.native.strings import string_ids
from shoal.worker.model.embeddings.given_weights import ROWS_PER_PIECE

Int64 = npt.NDArray[np.int64]
Float32 = npt.NDArray[np.float32]


class VectorFile:
    """The vectors of one table. where: names layer and file, for messages."""

    def __init__(self, path: str, dim: int, layer: str) -> None:
        self._path = path
        self._dim = dim
        self.where = f"embedding {layer!r} begins with {path}"

    def pieces(self) -> Iterator[tuple[Int64, Float32]]:
        """All of them in the file's order: ids int64 [n], vectors float32 [n, dim].

        Holds ids only. Raises UserError for a file that cannot be read or is of another form, and
        for an id that is missing or there twice.
        """
        seen: list[Int64] = []
        start = 0
        with self._opened() as file:
            for batch in file.iter_batches(ROWS_PER_PIECE, columns=["id", "vector"]):
                ids = self._ids(batch.column("id"), start)
                yield ids, self._vectors(batch.column("vector"), start)
                seen.append(ids)
                start += len(ids)
        if not start:
            raise UserError(f"{self.where}, which has no rows: remove initial, or fill the file")
        ids = np.sort(np.concatenate(seen))
        if (same := ids[:-1][ids[1:] == ids[:-1]]).size:
            raise UserError(
                f"{self.where}, which has the id {same[0]} twice: keep one row for each id"
            )

    @contextmanager
    def _opened(self) -> Iterator[pq.ParquetFile]:
        folder, _, name = self._path.rpartition("/")
        try:
            with open_storage(folder or ".").read(name) as opened:
                file = pq.ParquetFile(opened)
                names = file.schema_arrow.names
                if lacking := [each for each in ("id", "vector") if each not in names]:
                    raise UserError(
                        f"{self.where}, which has no column {lacking[0]!r}; its columns are "
                        f"{', '.join(names)}: name the columns id and vector"
                    )
                yield file
        except (OSError, pa.ArrowException) as error:
            raise UserError(
                f"{self.where}, which cannot be read: {error}. Name a Parquet file by a path or "
                "URL that the workers see"
            ) from error

    def _ids(self, column: Any, start: int) -> Int64:
        if column.null_count:
            row = start + pc.index(column.is_null(), True).as_py()
            raise UserError(f"{self.where}, which has no id in row {row}: give each row an id")
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            return string_ids(column.to_numpy(zero_copy_only=False))
        if not pa.types.is_integer(column.type):
            raise UserError(
                f"{self.where}, whose column id is {column.type}: ids are integers or texts"
            )
        try:
            return np.asarray(column.cast(pa.int64()))
        except pa.ArrowInvalid as error:
            raise UserError(f"{self.where}: ids are int64: {error}") from error

    def _vectors(self, column: Any, start: int) -> Float32:
        kind = column.type
        if not (
            (pa.types.is_list(kind) or pa.types.is_large_list(kind))
            or pa.types.is_fixed_size_list(kind)
        ):
            raise UserError(f"{self.where}, whose column vector is {kind}: it is to be a list")
        lengths = np.asarray(pc.fill_null(pc.list_value_length(column), -1))
        if (wrong := np.flatnonzero(lengths != self._dim)).size:
            length = lengths[wrong[0]]
            has = "no vector" if length < 0 else f"{length} numbers"
            raise UserError(
                f"{self.where}, which has {has} in row {start + wrong[0]}: output_dim is "
                f"{self._dim}"
            )
        values = pc.fill_null(column.flatten().cast(pa.float32()), float("nan"))
        rows: Float32 = np.asarray(values).reshape(-1, self._dim)
        if (bad := np.flatnonzero(~np.isfinite(rows).all(axis=1))).size:
            raise UserError(
                f"{self.where}, which has a number that is missing or not finite in row "
                f"{start + bad[0]}: give numbers without NaN and infinity"
            )
        return rows
