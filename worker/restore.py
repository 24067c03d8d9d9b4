"""From an export back to the servers: what `--restore-from` reads.

Owns checking that an export fits the model. Formats are export.py's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from shoal.errors import UserError
from shoal.worker.export import FORMAT
from shoal.worker.export_tables import ROWS_PER_PIECE
from shoal.worker.model import ServedModel
from shoal.worker.servers import ServerGroup


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
        if self.manifest.get("format") != FORMAT:
            raise UserError(f"--restore-from: {path} is not of format {FORMAT}")

    def dense(self) -> dict[str, npt.NDArray[np.float32]]:
        """Dense values by variable name."""
        path = self.folder / self.manifest["dense"]
        try:
            rows = pq.read_table(path).to_pylist()
        except (OSError, pa.ArrowInvalid) as error:
            raise UserError(f"--restore-from: cannot read {path}: {error}") from error
        return {
            row["name"]: np.array(row["values"], np.float32).reshape(row["shape"]) for row in rows
        }

    def load_tables(self, model: ServedModel, servers: ServerGroup) -> None:
        """Fill the servers' tables. Raises UserError if tables do not fit the model."""
        exported = {table["name"]: table for table in self.manifest["tables"]}
        for position, (name, layer) in enumerate(model.tables.items()):
            table = exported.get(name)
            if table is None or table["dim"] != layer.output_dim:
                raise UserError(
                    f"--restore-from: the model has table {name!r} of dim {layer.output_dim}, "
                    f"the export has {table['dim'] if table else 'no such table'}"
                )
            path = self.folder / table["file"]
            try:
                for ids, rows in read_pieces(path):
                    servers.assign_rows(position, ids, rows)
            except (OSError, pa.ArrowInvalid) as error:
                raise UserError(f"--restore-from: cannot read {path}: {error}") from error


def read_pieces(path: Path) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]]:
    """Ids and rows of an exported table, piece by piece."""
    for batch in pq.ParquetFile(path).iter_batches(ROWS_PER_PIECE):
        ids = batch.column("id").to_numpy()
        rows = batch.column("vector").flatten().to_numpy()
        yield ids, rows.reshape(ids.size, -1).astype(np.float32, copy=False)
