"""The model of a job for those who follow its deltas: a SavedModel without tables, and what it is.

Written once a job, before training, by the worker that describes the data: a delta has rows and
dense values, and this has how they become predictions.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from shoal.checkpoints.folders import text
from shoal.checkpoints.formats import manifests
from shoal.config.job import JobConfig
from shoal.deltas import chain
from shoal.deltas.schema import MODEL_FORMAT, LiveTable
from shoal.errors import StorageError, UserCodeError, UserError
from shoal.files.storage import LocalStorage, open_storage, upload
from shoal.worker.engines import chosen_engine, engine_name
from shoal.worker.model.model import ServedModel
from shoal.worker.outputs.export_tables import ExportedTable
from shoal.worker.outputs.row_forms import default_row

SAVED_MODEL = "saved_model"
"""The folder of the SavedModel, as an export has it."""


def write_live_model(model: ServedModel, config: JobConfig) -> list[str]:
    """Write the folder of the job's model into --publish, whole or not at all.

    Returns in words what its followers cannot do. Raises StorageError if it cannot be written.
    """
    with tempfile.TemporaryDirectory(prefix="shoal-live-") as name:
        made = Path(name)
        signature, lacks = _saved_model(model, made)
        try:
            root = open_storage(config.publish)
            root.make()
            folder = root.child(chain.model_name(config.job_id))
            local = LocalStorage(made)
            paths = sorted(path for path in made.rglob("*") if path.is_file())
            names = [path.relative_to(made).as_posix() for path in paths]
            upload(made, names, folder)
            content: dict[str, Any] = {
                "format": MODEL_FORMAT,
                "job": config.job_id,
                "engine": engine_name(),
                "created": time.time(),
                "spec": text(model.spec),
                "tables": _tables(model, signature),
                "saved_model": None if lacks else SAVED_MODEL,
                "files": [manifests.describe(local, each) for each in names],
            }
            if lacks:
                content["lacks"] = lacks
            else:
                content["variables"] = [each.path for each in model.model.variables]
            manifests.write(folder, chain.MODEL_MANIFEST, content)
        except OSError as error:
            where = error.filename or config.publish
            raise StorageError(f"--publish: {where}: {manifests.reason(error)}") from error
    return [f"followers of --publish look rows up, and predict nothing: {lacks}"] if lacks else []


def _saved_model(model: ServedModel, folder: Path) -> tuple[dict[str, dict[str, str]], str]:
    """Save the model; returns the names of its inputs by table, or why it cannot be had."""
    tables = {}
    for table in model.spec.tables:
        nothing = np.zeros((0, table.dim), np.float32)
        # Of a row that is elsewhere: so the SavedModel takes the vectors.
        default = np.zeros(table.dim, np.float32)
        tables[table.name] = ExportedTable(np.zeros(0, np.int64), nothing, default, count=1)
    try:
        exporter = chosen_engine().exporter(model, frozenset({"savedmodel"}))
        written, signature = exporter.write(tables, folder)
    except (UserError, UserCodeError) as error:
        shutil.rmtree(folder / SAVED_MODEL, ignore_errors=True)
        return {}, getattr(error, "message", str(error)).partition("\n")[0]
    assert written["saved_model"] == SAVED_MODEL
    return signature, ""


def _tables(model: ServedModel, signature: dict[str, dict[str, str]]) -> list[LiveTable]:
    found: list[LiveTable] = []
    for spec, (name, served) in zip(model.spec.tables, model.tables.items(), strict=True):
        default = np.zeros(served.dim, np.float32)
        if not served.vocabulary:
            default = default_row(served.initializer.default_value, spec.dim, spec)
        table: LiveTable = {
            "name": name,
            "dim": served.dim,
            "default": [float(each) for each in default],
            "vocabulary": served.vocabulary,
        }
        if inputs := signature.get(name):
            table["ids"], table["vectors"] = inputs["ids"], inputs["vectors"]
        found.append(table)
    return found
