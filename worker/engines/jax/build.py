"""A user's model of Keras on JAX; what only JAX's own libraries compute is refused."""

from __future__ import annotations

from typing import Any

from shoal.worker.engines.jax.by_values import values_told
from shoal.worker.engines.keras_ops.build import build_checked
from shoal.worker.model.built import BuiltModel, ToBuild

_LIBRARIES = ("flax", "haiku")


def build(given: ToBuild) -> BuiltModel:
    """Build the model of a module; see Engine.build."""
    return build_checked(given, "JAX", _refused, values_told)


def _refused(model: Any) -> str | None:
    for kind in type(model).__mro__:
        if kind.__module__.partition(".")[0] in _LIBRARIES:
            return (
                f"returned a {type(model).__name__} of {kind.__module__.partition('.')[0]}: put "
                "everything but the tables into a keras.layers.FlaxLayer or keras.layers.JaxLayer, "
                "which gets the vectors of shoal.layers.Embedding, and give a keras.Model of these "
                "layers"
            )
    return None
