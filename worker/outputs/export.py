"""The export: the trained model as files that need no shoal.

    model.keras        an ordinary Keras model, where Keras can read one
    saved_model/       a SavedModel, for TensorFlow Serving and any tf.saved_model.load
    model.pt2          of a torch.nn.Module, in their place, for torch.export.load
    state_dict.pt      of one, for shoal.torch.load
    tables/NAME.parquet  id and vector of every row; of int8 ones also a scale
    dense.parquet      name, shape and values of every dense variable
    manifest.json      what is here, with size and checksum of every file, written last

In both models a table is a lookup from the real ids to rows, with a default row for
ids that were never trained; evaluation uses the same default, so that both give the
job's own predictions. The Parquet files are what `--restore-from` reads. A table above
`--export-max-table-mb` is in its Parquet file only, and the SavedModel takes its vectors.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from shoal.checkpoints.formats import manifests
from shoal.checkpoints.formats.export_schema import EXPORT_FORMAT
from shoal.checkpoints.formats.manifests import MANIFEST
from shoal.checkpoints.outputs import replacing_output, written
from shoal.checkpoints.places import Place
from shoal.checkpoints.saved import DENSE_COLUMNS
from shoal.config.job import JobConfig
from shoal.files.patience import Patience
from shoal.files.storage import LocalStorage
from shoal.proto.errors import BrokenStreamError
from shoal.worker.engines import chosen_engine
from shoal.worker.model.model import ServedModel
from shoal.worker.outputs.export_tables import (
    ExportedTable,
    ServedTables,
    TableSource,
    file_names,
    write_parquet,
    write_tables,
)
from shoal.worker.outputs.row_forms import form_of, formed
from shoal.worker.servers.group import ServerGroup

logger = logging.getLogger(__name__)


def export(
    model: ServedModel,
    servers: ServerGroup,
    config: JobConfig,
    source: TableSource | None = None,
    patience: Patience | None = None,
) -> None:
    """Write the export to --output, whole or not at all.

    source: where the tables are read; by default from the servers.
    patience: with the storage of --output; all of it is written again. None: none.
    All of it is written again, too, if a server dies while its rows are read.
    config: says where, which models beside tables and dense values (`export_kinds`), and
        the bytes of ids and rows of a table that is put into the models.

    If the models cannot be written, and nothing is there that it would replace, tables and
    dense values stay, with the reason in the manifest.

    Raises StorageError if --output cannot be written, as on a full disk; UserError if it must
    not be replaced, or is not a place to write to; UserCodeError if Keras cannot save the model.
    """
    source = source or ServedTables(servers, list(model.tables.values()))
    left: list[str] = []

    def attempt() -> Exception | None:
        with replacing_output(config, MANIFEST) as place:
            return _write(model, servers.version, source, config, place)

    def whole() -> Exception | None:
        while True:
            try:
                failed = attempt()
                break
            except BrokenStreamError as error:
                # A server died while it was read. The next attempt waits for it.
                logger.warning("the export is written again: %s", error)
        if isinstance(failed, OSError):
            left.append("it has tables and dense values only")
            raise failed
        return failed

    failed = written(patience, config.output, whole, lambda: "".join(left[-1:]))
    if failed is not None:
        raise failed


def _write(
    model: ServedModel, version: int, source: TableSource, config: JobConfig, place: Place
) -> Exception | None:
    """Write all of an export.

    Returns the error for which the models are missing, if the export is kept without them.
    """
    folder = place.begin()
    model.pull_dense()
    max_bytes = config.export_max_table_mb * 1_000_000
    storage = LocalStorage(folder)
    specs = model.spec.tables
    tables = write_tables(storage, source, model.tables, max_bytes, specs, config.export_dtype)
    described = [table.file for table in tables.values() if table.file]
    described.append(write_parquet(storage, "dense.parquet", [_dense(model)]))
    failed: Exception | None = None
    models: dict[str, str | None] = {}
    signature: dict[str, dict[str, str]] = {}
    exporter = chosen_engine().exporter(model, config.export_kinds)
    try:
        models, signature = exporter.write(tables, folder)
    except Exception as error:
        if place.names():
            raise
        failed = error
        exporter.discard(folder)
    known = {file["name"] for file in described}
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    names = [path.relative_to(folder).as_posix() for path in paths]
    described += [manifests.describe(storage, name) for name in names if name not in known]
    manifest: dict[str, Any] = {
        "format": EXPORT_FORMAT,
        "job_name": config.job_name,
        "job_id": config.job_id,
        "version": version,
        "keras": models.get("keras"),
        "saved_model": models.get("saved_model"),
        **{name: models[name] for name in ("program", "state_dict") if name in models},
        "dense": "dense.parquet",
        "optimizer": model.optimizers.default.spec.to_json(),
        "tables": _described_tables(model, tables, signature),
        "files": described,
    }
    if failed is not None:
        manifest["partial"] = str(failed).splitlines()[0]
    manifests.write(storage, MANIFEST, manifest)
    return failed


def _described_tables(
    model: ServedModel,
    tables: Mapping[str, ExportedTable],
    signature: Mapping[str, dict[str, str]],
) -> list[dict[str, Any]]:
    """The tables as they stand in the manifest, in the model's order."""
    described = []
    for (name, served), file in zip(model.tables.items(), file_names(model.tables), strict=True):
        table = tables[name]
        entry: dict[str, Any] = {
            "name": name,
            "file": file,
            "dim": served.dim,
            "rows": table.count,
            "default": table.default.tolist(),
            "dtype": "float32" if table.scales is None else "int8",
            "in_models": not table.external,
        }
        if name in signature:
            entry["signature"] = signature[name]
        described.append(entry)
    return described


def check(model: ServedModel, config: JobConfig) -> list[str]:
    """Make an export of empty tables in a temporary folder, before the model is trained.

    Returns in words the parts that an export will lack. Raises UserError or UserCodeError if the
    model can have none of the forms of --export.
    """
    if config.command == "train" and not config.output:
        return []
    tables = {}
    for table in model.spec.tables:
        rows, scales = formed(
            np.zeros((0, table.dim), np.float32), form_of(table, config.export_dtype)
        )
        default = np.zeros(table.dim, np.float32)
        tables[table.name] = ExportedTable(np.zeros(0, np.int64), rows, default, scales=scales)
    return chosen_engine().exporter(model, config.export_kinds).lacking(tables)


def _dense(model: ServedModel) -> pa.Table:
    variables = [*model.trainable.variables, *model.state.variables]
    return pa.table(
        {
            "name": [variable.path for variable in variables],
            "shape": [list(variable.shape) for variable in variables],
            "values": [np.asarray(variable, np.float32).ravel() for variable in variables],
        },
        schema=pa.schema(DENSE_COLUMNS),
    )
