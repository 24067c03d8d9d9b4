"""Refuse unsupported parts of a user's Keras model by name, before anything is trained.

Owns the model's own training step, constraints of weights and features that do not fit.
Optimizers and initializers are optimizer.py's, lookups the engine's.
"""

from __future__ import annotations

import re
from typing import Any

import keras

from shoal.base.words import counted, near
from shoal.errors import UserError
from shoal.worker.code.keras_internals import (
    all_layers,
    inputs_structure,
    outputs_structure,
)
from shoal.worker.code.of_keras import is_keras_own
from shoal.worker.engines import backend_of_keras
from shoal.worker.input.spec import array_spec

_UNNAMED = re.compile(r"keras_tensor(_\d+)?")
"""The names that Keras gives to inputs by itself."""

OWN_STEPS = ("train_step", "compute_loss")


def check_model(model: Any, file: str) -> None:
    """Raises UserError for a step of the model's own, or layers that compute in float16.

    file: name of the user's file, for the message.
    """
    for name in OWN_STEPS:
        if getattr(type(model), name) is not getattr(keras.Model, name):
            raise UserError(
                f"{type(model).__name__} in {file} defines {name}(), which shoal would not call: "
                "workers compute gradients and servers apply them. Compute the loss in "
                "loss(labels, predictions), or with add_loss() where it needs values inside "
                f"layers, and remove {name}"
            )
    # Gradients of float16 vanish unless the loss is scaled, which Keras does by itself.
    for layer in all_layers(model):
        if layer.compute_dtype == "float16":
            raise UserError(
                f"layer {layer.name!r} of the model in {file} computes in float16 "
                "(mixed_float16), which needs loss scaling. shoal does not scale "
                "losses: use mixed_bfloat16, which works without, or bfloat16 for a table's rows"
            )


def with_named_input(model: Any, features_spec: Any) -> Any:
    """The model with its only input called as the only feature, if it was given no name.

    Keras 2, and ElasticDL with it, took features by order; Keras 3 wants names that fit.
    """
    if (
        not isinstance(features_spec, dict)
        or len(features_spec) != 1
        or not is_keras_own(model)
        or len(getattr(model, "inputs", None) or ()) != 1
        or isinstance(inputs_structure(model), dict)
        or not _UNNAMED.fullmatch(model.inputs[0].name)
    ):
        return model
    (feature,) = features_spec
    outputs = outputs_structure(model)
    if outputs is None:
        (outputs,) = model.outputs
    model.inputs[0].name = feature
    return keras.Model({feature: model.inputs[0]}, outputs, name=model.name)


def check_variables(model: Any, file: str) -> None:
    """Raises UserError for a constraint, which servers do not apply.

    model: built.
    """
    for variable in model.trainable_variables:
        if variable.constraint is not None:
            raise UserError(
                f"variable {variable.path} of the model in {file} has the constraint "
                f"{type(variable.constraint).__name__}, which the servers do not apply: remove "
                "it, or compute the constrained weight in the layer's call"
            )


def spec_of_inputs(model: Any, file: str) -> Any:
    """The specs of a functional model's inputs, of any number of records.

    Raises UserError for a model that does not say what its inputs are.
    """
    inputs = inputs_structure(model)
    if inputs is None:
        raise UserError(
            f"the model of {file} does not say what its inputs are, as a functional model does: "
            "give --training-data"
        )
    return keras.tree.map_structure(backend_of_keras().spec_of_input, inputs)


def check_features(model: Any, features_spec: Any, feed: str) -> None:
    """Raises UserError if feed lacks a feature, or gives text or lists where none are taken.

    Keras would fail at the first batch, with an error of a cast that names nothing, or
    behind a long traceback.
    """
    inputs = getattr(model, "inputs", None) or ()
    struct = inputs_structure(model)
    if not isinstance(features_spec, dict):
        count = len(keras.tree.flatten(features_spec))
        if len(inputs) > 1 and (isinstance(struct, dict) or count != len(inputs)):
            names = ", ".join(f"{tensor.name!r}: ..." for tensor in inputs)
            raise UserError(
                f"{feed} gives features without names, {counted(count, 'tensor')}, and the model "
                f"has {len(inputs)} inputs: give a dict, {{{names}}}. Of a list tf.data makes one "
                "tensor"
            )
        return
    # Keras takes the names of the dictionary that the model was made with.
    wanted = struct if isinstance(struct, dict) else {tensor.name: tensor for tensor in inputs}
    missing = [
        name
        for name in wanted
        if name not in features_spec and not getattr(wanted[name], "optional", False)
    ]
    if missing and inputs and all(_UNNAMED.fullmatch(tensor.name) for tensor in inputs):
        raise UserError(
            f"{feed} gives the features {', '.join(map(str, features_spec))}, and the model has "
            f"{len(inputs)} inputs without names: call them as the features, with "
            "keras.Input(..., name=...)"
        )
    if missing and inputs:
        given = [str(name) for name in features_spec]
        raise UserError(
            f"{feed} gives no feature {missing[0]!r}{near(str(missing[0]), given, most=1)}, which "
            f"the model takes; it gives {', '.join(given)}"
        )
    for tensor in inputs:
        feature: Any = features_spec.get(tensor.name)
        # Of features within others, only the outer ones are here.
        if (spec := array_spec(feature)) is None:
            continue
        if spec.is_text and tensor.dtype != "string":
            raise UserError(
                f"{feed} gives text as feature {tensor.name!r}, but the model's input takes "
                f"{tensor.dtype}: convert it in feed. If the column should be numeric, look "
                "for a value that is not a number"
            )
        deeper = len(spec.shape) - len(tensor.shape)
        if deeper > 1 or (deeper == 1 and spec.shape[-1] != 1):
            size = (None,) * (len(tensor.shape) + deeper - 1)
            lists = " of ".join(["lists"] * deeper)
            raise UserError(
                f"{feed} gives {lists} as feature {tensor.name!r}, and the model's input takes one "
                f"value in place of each, the shape {tuple(tensor.shape)}: make one value of each "
                f"in feed, or declare the input as keras.Input({size}, name={tensor.name!r}) for "
                "layers that take lists"
            )
        if hasattr(feature, "ragged_rank") and _is_fixed(tensor.shape, spec.shape):
            raise UserError(
                f"{feed} gives lists of several lengths as feature {tensor.name!r}, but the "
                f"model's input takes the shape {tuple(tensor.shape)}: make them of one length in "
                "feed, as with feature.to_tensor(shape=...), or declare the input as "
                f"keras.Input((None,), name={tensor.name!r}) for layers that take lists"
            )


def _is_fixed(taken: tuple[int | None, ...], given: tuple[int | None, ...]) -> bool:
    """True if an input's shape has a size where the given shape leaves it open."""
    return len(given) == len(taken) and any(
        size and one is None for size, one in zip(taken[1:], given[1:], strict=True)
    )


def rounded_features(model: Any, features_spec: Any, feed: str) -> list[str]:
    """Features that Keras casts to integers, in words: they may lose digits unseen."""
    if not isinstance(features_spec, dict):
        return []
    return [
        f"{feed} gives {spec.dtype.name} as feature {tensor.name!r}, and the model's input takes "
        f"{tensor.dtype}: Keras casts it: a fraction or NaN is refused at its "
        "record, and large ids may have lost digits. Have whole numbers in the column, by "
        "--fill-missing where values are missing"
        for tensor in getattr(model, "inputs", None) or ()
        if (spec := array_spec(features_spec.get(tensor.name))) is not None
        and spec.is_floating
        and "int" in tensor.dtype
    ]
