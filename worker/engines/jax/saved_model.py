"""The SavedModel of a model on JAX, which Keras writes where TensorFlow is installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shoal.errors import UserError
from shoal.worker.model.model import ServedModel
from shoal.worker.outputs.export_tables import ExportedTable


def save(
    model: ServedModel, tables: Mapping[str, ExportedTable], folder: Path
) -> dict[str, dict[str, str]]:
    """Write a SavedModel. Raises UserError: a graph of JAX has no 64-bit ids."""
    del model, tables, folder
    raise UserError(
        "a model that JAX computes is a SavedModel of 32-bit integers, which ids are not: export it "
        "with --engine tensorflow, by shoal export, or give --export keras"
    )


def predict_saved(folder: Path, model: ServedModel, features: Any) -> Any:
    """See engines/tensorflow/outputs/saved_model.py."""
    raise NotImplementedError
