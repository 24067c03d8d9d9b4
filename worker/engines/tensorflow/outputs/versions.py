"""Whole SavedModels of what a job publishes: the process of `shoal follow URL --to FOLDER`.

    python -m shoal.worker.engines.tensorflow.outputs.versions URL --to FOLDER --every SECONDS ...

The published SavedModel takes the vectors of all tables as inputs. Here they become lookups in it,
as those of an export are. When and where versions are written is shoal/deltas/to_versions.py's.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import numpy as np
import tensorflow as tf

from shoal.base.signals import told_to_end
from shoal.deltas.following import Follower
from shoal.deltas.predicting import IDS, SERVING
from shoal.deltas.rows import Rows
from shoal.deltas.to_versions import Versions, follow_into
from shoal.errors import EXIT_USER_ERROR, UserError
from shoal.worker.engines.tensorflow.outputs.saved_model import (
    Signature,
    StaticLookup,
    errors_of_disks,
)
from shoal.worker.engines.tensorflow.outputs.signature_names import rename
from shoal.worker.outputs.export_tables import ExportedTable
from shoal.worker.outputs.row_forms import formed, row_bytes

ID_BYTES = 8


def save(follower: Follower, folder: Path, max_table_mb: float) -> None:
    """Write what a follower has as a SavedModel with its tables.

    max_table_mb: limit for ids and rows of all tables. Raises UserError for larger ones, and for a
    model that has no SavedModel; OSError for a disk that fails.
    """
    predictor, rows = follower.predictor, follower.rows
    _check_sizes(rows, max_table_mb * 1_000_000)
    tables = {name: _table(rows, name) for name in rows.tables}
    lookup = StaticLookup(tables, [n for n, table in rows.tables.items() if table.vocabulary])
    module = tf.Module()
    module.saved = predictor.saved
    module.ids, module.rows, module.scales = lookup.ids, lookup.rows, lookup.scales
    signatures = predictor.saved.signatures

    def serving(given: Mapping[str, Any]) -> dict[str, Any]:
        wanted = signatures[IDS](**given) if predictor.fed else {}
        vectors = {
            name: tf.cast(lookup.of(table.name, wanted[ids]), tf.float32)
            for ids, name, table in predictor.fed
        }
        return dict(signatures[SERVING](**given, **vectors))

    signature = Signature(serving, predictor.inputs)
    with errors_of_disks():
        tf.saved_model.save(module, str(folder), signatures={SERVING: signature.function})
    rename(folder, {SERVING: signature.arguments})


def _check_sizes(rows: Rows, most: float) -> None:
    """Raises UserError if all tables have more bytes of ids and rows than `most`."""
    sizes = {
        name: (table.vocabulary or len(table.store))
        * (ID_BYTES + row_bytes(table.store.value_dtype, table.dim))
        for name, table in rows.tables.items()
    }
    if sum(sizes.values()) > most:
        told = ", ".join(f"{name} {size / 1e6:.1f} MB" for name, size in sizes.items())
        raise UserError(
            f"--export-max-table-mb: the tables have more than {most / 1e6:g} MB ({told}): give "
            "more, keep the rows in Redis (--to redis://), or answer with shoal serve"
        )


def _table(rows: Rows, name: str) -> ExportedTable:
    """A table as an export has it: all rows of a vocabulary, else those that there are, by id."""
    table = rows.table(name)
    form = table.store.value_dtype
    if table.vocabulary:
        ids = np.arange(table.vocabulary)
        values, _ = formed(table.lookup(ids), form)
        return ExportedTable(ids, values, table.default)
    pieces = [(ids, formed(values, form)[0]) for ids, values, *_ in table.store.export()]
    ids = np.concatenate([np.zeros(0, np.int64), *(each for each, _ in pieces)])
    empty, _ = formed(np.zeros((0, table.dim), np.float32), form)
    order = np.argsort(ids)
    values = np.concatenate([empty, *(each for _, each in pieces)])[order]
    return ExportedTable(ids[order], values, table.default)


@click.command()
@click.argument("url")
@click.option("--to", required=True)
@click.option("--every", type=float, required=True)
@click.option("--until", type=int)
@click.option("--export-max-table-mb", type=float, required=True)
def main(url: str, to: str, every: float, until: int | None, export_max_table_mb: float) -> None:
    """Write versions until a signal; exit 2 for a wrong input."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    logging.getLogger("shoal").setLevel(logging.INFO)
    ends = told_to_end()

    def saved(follower: Follower, folder: Path) -> None:
        save(follower, folder, export_max_table_mb)
        gc.collect()  # a graph and its variables refer to each other, and would stay

    try:
        with contextlib.closing(Versions(to)) as versions:
            follow_into(url, versions, saved, every, until, ends)
    except (UserError, OSError) as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(EXIT_USER_ERROR)


if __name__ == "__main__":
    main()
