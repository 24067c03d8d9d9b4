"""The forms of an export that a model of Keras on JAX has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from shoal.base.nested import leaves
from shoal.worker.engines.jax.arrays import beyond
from shoal.worker.engines.keras_ops.exporter import OpsExporter


class JaxExporter(OpsExporter):
    """See the Protocol."""

    framework = "JAX"

    def predictions(
        self, folder: Path, written: Mapping[str, str | None], features: Any
    ) -> Iterator[tuple[str, Any]]:
        """See the Protocol. None of features that a model of Keras on JAX cannot be given."""
        if all(beyond(each) is None for each in leaves(features)):
            yield from super().predictions(folder, written, features)
