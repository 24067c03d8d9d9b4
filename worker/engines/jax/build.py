"""A user's model of Keras on JAX; what only JAX's own libraries compute is refused."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

from shoal.errors import UserError
from shoal.worker.code.module import UserModule
from shoal.worker.engines.jax.by_values import values_told
from shoal.worker.model.built import BuiltModel
from shoal.worker.model.keras_models import build_keras_model

_LIBRARIES = ("flax", "haiku")


def build(module: UserModule, *more: Any) -> BuiltModel:
    """Build the model of a module; see Engine.build."""
    given = module.custom_model

    @functools.wraps(given)
    def custom_model() -> Any:
        try:
            with values_told(module.path.name):
                model = given()
        except ImportError as error:
            if "requires TensorFlow" not in str(error):
                raise
            raise UserError(
                f"{module.describe(custom_model.__name__)}: {str(error).partition('.')[0]}, and "
                "the model is computed by JAX: use the layers of shoal.preprocessing in "
                f"{module.feed_name}, or give --engine tensorflow"
            ) from error
        for kind in type(model).__mro__:
            if kind.__module__.partition(".")[0] in _LIBRARIES:
                raise UserError(
                    f"{module.describe(custom_model.__name__)} returned a {type(model).__name__} "
                    f"of {kind.__module__.partition('.')[0]}: put everything but the tables into a "
                    "keras.layers.FlaxLayer or keras.layers.JaxLayer, which gets the vectors of "
                    "shoal.layers.Embedding, and give a keras.Model of these layers"
                )
        return model

    return build_keras_model(replace(module, custom_model=custom_model), *more)
