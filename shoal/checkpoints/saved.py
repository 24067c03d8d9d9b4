"""What `--restore-from` names, opened for reading: an export, or a checkpoint.

Owns finding out which it is, and the form of both as plain arrays. Values only: optimizer
slots begin anew. An export is written by worker/export.py; what is in a checkpoint is
ps/checkpoint.py's.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from shoal.checkpoints import arrow
from shoal.checkpoints.folders import Checkpoint, checkpoint_at
from shoal.checkpoints.manifests import CheckpointError
from shoal.errors import UserError
from shoal.proto import shoal_pb2 as pb

Int64 = npt.NDArray[np.int64]
Float32 = npt.NDArray[np.float32]

EXPORT_FORMAT = "shoal-export-1"

ROWS_PER_PIECE = 65_536
"""In one piece of a table."""


def open_saved(location: str) -> Export | SavedCheckpoint:
    """What is at `location`: an export, a checkpoint, or the newest of a folder of them.

    Raises UserError if it is none of these, or not whole.
    """
    try:
        checkpoint = checkpoint_at(location)
    except CheckpointError as error:
        raise UserError(f"--restore-from: {error}") from error
    return Export(location) if checkpoint is None else SavedCheckpoint(checkpoint)


class SavedCheckpoint:
    """A checkpoint, by whichever number of servers."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    def dense(self) -> dict[str, Float32]:
        """Dense values by variable name."""
        model = self._checkpoint.model
        return self._vector(-2, model.trainable) | self._vector(-1, model.non_trainable)

    def _vector(self, file: int, variables: Iterable[pb.VariableSpec]) -> dict[str, Float32]:
        """The values of variables, of which each server holds a slice, in their order."""
        parts = [np.zeros(0, np.float32)]
        for share in self._checkpoint.shares:
            parts += [columns["values"] for columns in self._read(share["files"][file])]
        flat = np.concatenate(parts)
        values = {}
        for each in variables:
            shape = tuple(each.shape)
            values[each.name] = flat[each.offset :][: math.prod(shape)].reshape(shape)
        return values

    def rows(self, table: str, dim: int) -> Iterator[tuple[Int64, Float32]]:
        """All rows of a table, in pieces: ids int64 [n], rows float32 [n, dim].

        Raises UserError if there is no such table, or it cannot be read.
        """
        saved = {t.name: (i, int(t.dim)) for i, t in enumerate(self._checkpoint.model.tables)}
        file, found = saved.get(table, (0, None))
        _check_table(table, dim, found, "checkpoint")
        for share in self._checkpoint.shares:
            for columns in self._read(share["files"][file]):
                ids, rows = columns["id"], columns["values"].astype(np.float32, copy=False)
                for start in range(0, ids.size, ROWS_PER_PIECE):
                    end = start + ROWS_PER_PIECE
                    yield ids[start:end], rows[start:end]

    def _read(self, described: dict[str, Any]) -> Iterator[dict[str, Any]]:
        try:
            yield from arrow.read(self._checkpoint.folder, described)
        except CheckpointError as error:
            raise UserError(f"--restore-from: {error}") from error


def _check_table(name: str, dim: int, saved: int | None, where: str) -> None:
    if saved != dim:
        raise UserError(
            f"--restore-from: the model has table {name!r} of dim {dim}, the {where} has "
            f"{'no such table' if saved is None else saved}"
        )


class Export:
    """An export folder, opened."""

    def __init__(self, folder: str) -> None:
        """Raises UserError if it is not a whole export."""
        self.folder = Path(folder)
        path = self.folder / "manifest.json"
        try:
            self.manifest: dict[str, Any] = json.loads(path.read_text())
        except FileNotFoundError as error:
            raise UserError(
                f"--restore-from: {folder} is not the output of a training job: "
                "it has no manifest.json"
            ) from error
        except json.JSONDecodeError as error:
            raise UserError(f"--restore-from: {path} is damaged: {error}") from error
        if self.manifest.get("format") != EXPORT_FORMAT:
            raise UserError(f"--restore-from: {path} is not of format {EXPORT_FORMAT}")

    def dense(self) -> dict[str, Float32]:
        """Dense values by variable name."""
        path = self.folder / self.manifest["dense"]
        try:
            rows = pq.read_table(path).to_pylist()
        except (OSError, pa.ArrowInvalid) as error:
            raise UserError(f"--restore-from: cannot read {path}: {error}") from error
        return {
            row["name"]: np.array(row["values"], np.float32).reshape(row["shape"]) for row in rows
        }

    def rows(self, table: str, dim: int) -> Iterator[tuple[Int64, Float32]]:
        """As SavedCheckpoint.rows."""
        exported = {each["name"]: each for each in self.manifest["tables"]}
        found = exported.get(table)
        _check_table(table, dim, found["dim"] if found else None, "export")
        assert found is not None
        path = self.folder / found["file"]
        try:
            yield from read_pieces(path)
        except (OSError, pa.ArrowInvalid) as error:
            raise UserError(f"--restore-from: cannot read {path}: {error}") from error


def read_pieces(path: Path) -> Iterator[tuple[Int64, Float32]]:
    """Ids and rows of an exported table, piece by piece."""
    for batch in pq.ParquetFile(path).iter_batches(ROWS_PER_PIECE):
        ids = batch.column("id").to_numpy()
        rows = batch.column("vector").flatten().to_numpy()
        yield ids, rows.reshape(ids.size, -1).astype(np.float32, copy=False)
