"""The rows that the user's model brings, written once, for each server to begin with its own.

They are an export's tables, in a folder beside the checkpoints: a server that is started again
before the first checkpoint, and a job that is resumed before it, begin with them once more. Owns
writing them. Reading them is ps/saved/saved_rows.py's, which rows they are
model/embeddings/initial_rows.py's.
"""

from __future__ import annotations

import logging
import secrets
from typing import Any

import pyarrow as pa

from shoal.checkpoints.formats import manifests
from shoal.checkpoints.formats.export_schema import EXPORT_FORMAT
from shoal.checkpoints.formats.manifests import MANIFEST
from shoal.checkpoints.saved import DENSE_COLUMNS
from shoal.config.job import JobConfig
from shoal.errors import UserError
from shoal.files.storage import open_storage
from shoal.worker.model.model import ServedModel
from shoal.worker.outputs.export_tables import Counted, write_parquet
from shoal.worker.outputs.row_forms import columns

logger = logging.getLogger(__name__)


def write_first_rows(model: ServedModel, config: JobConfig) -> None:
    """Write the rows that the model brings, unless they are there already.

    Raises UserError for rows that no table can begin with, and where pods share no folder;
    UserCodeError, and OSError where they cannot be written.
    """
    if not config.first_rows:
        table = model.spec.tables[next(model.given_rows())[0]].name
        raise UserError(
            f"{model.file}: table {table!r} begins with given rows, which the servers read from a "
            "folder that all pods share: name one with --checkpoint-dir, or a --volume that holds "
            "--job-dir"
        )
    storage = open_storage(config.first_rows)
    if MANIFEST in storage.names():
        return
    storage.make()
    nonce = secrets.token_hex(4)  # another worker may have begun, and have been given up
    tables: list[dict[str, Any]] = []
    dense = pa.table({name: [] for name in DENSE_COLUMNS}, schema=pa.schema(DENSE_COLUMNS))
    files = [write_parquet(storage, f"dense.{nonce}.parquet", [dense])]
    for position, pieces in model.given_rows():
        spec = model.spec.tables[position]
        counted = Counted(columns(ids, rows, None) for ids, rows in pieces)
        files.append(write_parquet(storage, f"{position}.{nonce}.parquet", counted))
        tables.append(
            {
                "name": spec.name,
                "file": files[-1]["name"],
                "dim": spec.dim,
                "rows": counted.rows,
                "default": [0.0] * spec.dim,
                "dtype": "float32",
                "in_models": False,
            }
        )
        logger.info("wrote the %d rows that table %r begins with", counted.rows, spec.name)
    manifest = {
        "format": EXPORT_FORMAT,
        "job_name": config.job_name,
        "job_id": config.job_id,
        "version": 0,
        "keras": None,
        "saved_model": None,
        "dense": files[0]["name"],
        "optimizer": model.optimizers.default.spec.to_json(),
        "tables": tables,
        "files": files,
    }
    if MANIFEST not in storage.names():  # of a worker that took over, whose rows servers have read
        manifests.write(storage, MANIFEST, manifest)
