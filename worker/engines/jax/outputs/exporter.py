"""The forms of an export that a model of Keras on JAX has: model.keras, and a SavedModel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from shoal.base.nested import leaves
from shoal.worker.engines.jax.arrays import beyond
from shoal.worker.engines.jax.outputs import saved_models
from shoal.worker.engines.keras_ops.exporter import OpsExporter


class JaxExporter(OpsExporter):
    """See the Protocol."""

    framework = "JAX"
    makes_saved = saved_models

    def predictions(
        self, folder: Path, written: Mapping[str, str | None], features: Any
    ) -> Iterator[tuple[str, Any]]:
        """See the Protocol.

        None of a SavedModel, which TensorFlow would have to be imported for, and none of features
        that a model of Keras on JAX cannot be given.
        """
        if all(beyond(each) is None for each in leaves(features)):
            yield from super().predictions(folder, {**written, "saved_model": None}, features)
