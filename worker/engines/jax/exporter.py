"""The forms of an export that a model of Keras on JAX has: model.keras, and a SavedModel."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from typing import Any

from shoal.base.nested import leaves
from shoal.errors import UserCodeError, UserError
from shoal.worker.code.keras_internals import with_tensorflow
from shoal.worker.engines.jax import saved_models
from shoal.worker.engines.jax.arrays import beyond
from shoal.worker.model.model import ServedModel
from shoal.worker.outputs.export_tables import ExportedTable
from shoal.worker.outputs.keras_export import KERAS, KerasExporter

logger = logging.getLogger(__name__)


class JaxExporter(KerasExporter):
    """See the Protocol."""

    def __init__(self, model: ServedModel, kinds: Set[str]) -> None:
        """kinds: as of KerasExporter; auto is model.keras, or nothing where there can be none."""
        self._auto = "auto" in kinds
        chosen = (kinds - {"auto"}) | {KERAS} if self._auto else kinds
        super().__init__(model, chosen, saved_models)

    def write(
        self, tables: Mapping[str, ExportedTable], folder: Path
    ) -> tuple[dict[str, str | None], dict[str, dict[str, str]]]:
        """See the Protocol."""
        with with_tensorflow():  # tables of any id are an IntegerLookup, which needs it
            if self._auto and (why := self._missing(tables, {KERAS})):
                logger.warning(_without(why[KERAS]))
                return {"keras": None, "saved_model": None}, {}
            return super().write(tables, folder)

    def lacking(self, tables: Mapping[str, ExportedTable]) -> list[str]:
        """See the Protocol."""
        with with_tensorflow():
            if self._auto and (why := self._missing(tables, {KERAS})):
                return [_without(why[KERAS])]
            return super().lacking(tables)

    def predictions(
        self, folder: Path, written: Mapping[str, str | None], features: Any
    ) -> Iterator[tuple[str, Any]]:
        """See the Protocol.

        None of a SavedModel, which TensorFlow would have to be imported for, and none of features
        that a model of Keras on JAX cannot be given.
        """
        if all(beyond(each) is None for each in leaves(features)):
            with with_tensorflow():
                of_keras = {**written, "saved_model": None}
                found = list(super().predictions(folder, of_keras, features))
            yield from found


def _without(why: UserError | UserCodeError) -> str:
    text = getattr(why, "message", str(why))
    return (
        f"the export has no model, only tables and dense values: no model.keras: {text}. With "
        "shoal export --engine tensorflow, a SavedModel can be made of a checkpoint"
    )
