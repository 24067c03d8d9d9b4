"""An export tried before a job: with the rows of one batch, loaded again, and compared.

Part of `shoal check`. That the models can be saved at all is export.check's, which the first
worker of a job does too.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.config.job import JobConfig
from shoal.errors import UserError
from shoal.worker.engines import chosen_engine
from shoal.worker.model.learning.outputs import leaves
from shoal.worker.model.model import ServedModel
from shoal.worker.outputs.export_tables import ExportedTable
from shoal.worker.outputs.row_forms import default_row, form_of, formed_table

if TYPE_CHECKING:
    from shoal.worker.servers.local import LocalServers

LARGEST_TABLE = 64_000_000
"""Bytes of a plain Keras embedding, all of whose rows are in an export."""

TOLERANCE = 1e-4
"""Relative and absolute: compiled in other ways, a sum may be added in another order."""


def try_export(
    model: ServedModel, config: JobConfig, servers: LocalServers, features: Any
) -> list[str]:
    """Export the model with the rows of one batch, load it, and have it predict the batch.

    Returns lines for the report. Raises UserError if it predicts otherwise than the model
    itself, UserCodeError if it cannot be saved, loaded or called.
    """
    for name, served in model.tables.items():
        if served.vocabulary * served.dim * 4 > LARGEST_TABLE:
            return [f"  not tried with rows: table {name} is large"]
    tables = _rows_of(model, servers, features, config.export_dtype)
    expected = model.predict_batch(features)
    if not _same(model.predict_batch(features), expected):
        return ["  not compared: the model predicts otherwise at each call"]
    with tempfile.TemporaryDirectory(prefix="shoal-export-") as name:
        folder = Path(name)
        model.pull_dense()
        exporter = chosen_engine().exporter(model, config.export_kinds)
        written, _ = exporter.write(tables, folder)
        loaded = []
        for file, found in exporter.predictions(folder, written, features):
            _compare(found, expected, file, model.file)
            loaded.append(file)
    if not loaded:
        return []
    verb = "predict" if len(loaded) > 1 else "predicts"
    return [f"  tried: {' and '.join(loaded)} {verb} this batch as the model does"]


def _rows_of(
    model: ServedModel, servers: LocalServers, features: Any, export_dtype: str
) -> dict[str, ExportedTable]:
    """The rows that a batch would have in training, as tables, and held by the servers."""
    pulled = model.pull(features, training=True)
    tables = {}
    for position, (name, served) in enumerate(model.tables.items()):
        ids, rows = pulled.ids[position].unique, pulled.rows[position]
        spec = model.spec.tables[position]
        default = np.zeros(served.dim, np.float32)
        if served.vocabulary:
            ids = np.arange(served.vocabulary)
            rows = servers.rows(position, ids)
        else:
            default = default_row(served.initializer.default_value, spec.dim, spec)
        order = np.argsort(ids)
        formed_rows, scales = formed_table(
            ids[order], rows[order], form_of(spec, export_dtype), name
        )
        table = ExportedTable(ids[order], formed_rows, default, scales=scales)
        servers.hold(position, table.ids, table.values())
        tables[name] = table
    return tables


def _compare(found: Any, expected: Any, what: str, file: str) -> None:
    if not _same(found, expected):
        raise UserError(
            f"the exported {what} of the model in {file} does not predict the same as the "
            "model: part of the model is not in the configurations or weights of its layers"
        )


def _same(found: Any, expected: Any) -> bool:
    ours, theirs = leaves(found), leaves(expected)
    return len(ours) == len(theirs) and all(
        a.shape == b.shape and np.allclose(a, b, TOLERANCE, TOLERANCE, equal_nan=True)
        for a, b in zip(ours, theirs, strict=True)
    )
