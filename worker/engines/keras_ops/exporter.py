"""The forms of an export that a model of Keras has off TensorFlow: model.keras."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from typing import Any

from shoal.errors import UserCodeError, UserError
from shoal.worker.code.keras_internals import with_tensorflow
from shoal.worker.model.model import ServedModel
from shoal.worker.outputs.export_tables import ExportedTable
from shoal.worker.outputs.keras_export import KERAS, KerasExporter, SavedModels

logger = logging.getLogger(__name__)


class NoSavedModels:
    """The Protocol's functions about a SavedModel, which there is not."""

    def __init__(self, framework: str) -> None:
        """framework: that computes the model, in words."""
        self._framework = framework

    def save(
        self, model: ServedModel, tables: Mapping[str, ExportedTable], folder: Path
    ) -> dict[str, dict[str, str]]:
        """Raises UserError."""
        del model, tables, folder
        raise UserError(
            "the graph of a SavedModel is TensorFlow's, and the model is computed by "
            f"{self._framework}: shoal export --engine tensorflow makes one of a checkpoint"
        )

    def predict_saved(self, folder: Path, model: ServedModel, features: Any) -> Any:
        """Nothing calls it, as nothing is saved."""
        raise AssertionError(folder, model, features)


class OpsExporter(KerasExporter):
    """See the Protocol.

    framework: that computes the model, in words. makes_saved: what makes a SavedModel; None if
    nothing does.
    """

    framework: str
    makes_saved: SavedModels | None = None

    def __init__(self, model: ServedModel, kinds: Set[str]) -> None:
        """kinds: as of KerasExporter; auto is model.keras, or nothing where there can be none."""
        self._auto = "auto" in kinds
        chosen = (kinds - {"auto"}) | {KERAS} if self._auto else kinds
        super().__init__(model, chosen, self.makes_saved or NoSavedModels(self.framework))

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
        """See the Protocol."""
        with with_tensorflow():
            found = list(super().predictions(folder, written, features))
        yield from found


def _without(why: UserError | UserCodeError) -> str:
    text = getattr(why, "message", str(why))
    return (
        f"the export has no model, only tables and dense values: no model.keras: {text}. With "
        "shoal export --engine tensorflow, a SavedModel can be made of a checkpoint"
    )
