"""A user's model on PyTorch, of Keras or not; what cannot be trained of Keras's is refused."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import keras
import numpy as np

from shoal.base.nested import mapped
from shoal.errors import UserError
from shoal.worker.code.keras_internals import all_layers
from shoal.worker.engines.keras_ops.build import build_checked
from shoal.worker.engines.torch.build import build_module
from shoal.worker.engines.torch.plain_embeddings import tables_above
from shoal.worker.engines.torch.tensors import dtype_of
from shoal.worker.input.spec import ArraySpec
from shoal.worker.model import supported
from shoal.worker.model.built import BuiltModel, ToBuild

OLDEST = (3, 15)
"""The first version of Keras that the tests run with."""


class _OfPyTorchError(UserError):
    """A model that is none of Keras's. It passes through what tells of errors of the user's."""

    def __init__(self, model: Any) -> None:
        super().__init__("")
        self.model = model


def build(given: ToBuild) -> BuiltModel:
    """Build the model of a module, which may be any of PyTorch's; see Engine.build."""
    module, own = given.module, given.module.custom_model
    if isinstance(own, type) and not issubclass(own, keras.layers.Layer):
        return build_module(given)

    @functools.wraps(own)
    def custom_model() -> Any:
        with tables_above(given.config.embedding_threshold):  # of PyTorch, if it is one
            model = own()
        if not isinstance(model, keras.layers.Layer):
            raise _OfPyTorchError(model)
        return model

    try:
        return build_checked(
            replace(
                given,
                module=replace(module, custom_model=custom_model),
                features_spec=as_tensors(given.features_spec),
            ),
            "PyTorch",
            _refused,
        )
    except _OfPyTorchError as error:
        model = error.model
    made = functools.wraps(own)(lambda: model)
    return build_module(replace(given, module=replace(module, custom_model=made)))


def _refused(model: Any) -> str | None:
    """The reason why a model is not trained; None if it is."""
    if not isinstance(model, keras.Model):
        return None
    if tuple(map(int, keras.__version__.split(".")[:2])) < OLDEST:
        return (
            f"returned a keras.Model of Keras {keras.__version__}, which trains on PyTorch from "
            f"{'.'.join(map(str, OLDEST))} on: pip install --upgrade keras"
        )
    for layer in all_layers(model):
        if isinstance(layer, keras.layers.TorchModuleWrapper):
            kind = type(layer.module).__name__
            return (
                f"has a {kind}, a torch.nn.Module, in its layer {layer.name!r}, which no "
                "model.keras can hold: write it as layers of Keras, or the whole model as a "
                "torch.nn.Module with shoal.torch.Embedding"
            )
    return None


def as_tensors(features_spec: Any) -> Any:
    """The specs of the tensors that features become: texts are ids before the model sees them."""

    def of(spec: ArraySpec | None) -> ArraySpec | None:
        return None if spec is None else ArraySpec(spec.shape, np.dtype(dtype_of(spec.dtype)))

    return None if features_spec is None else mapped(of, features_spec)


def check_features(model: Any, features_spec: Any, feed: str) -> None:
    """Raises UserError for features that a model of Keras cannot take. feed: what gives them."""
    supported.check_features(model, as_tensors(features_spec), feed)
