"""The parts of Keras that the worker needs and Keras has no public name for.

Every private name of Keras that shoal uses is here and nowhere else, so that a new version of
Keras is a matter of one module and of its test.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import keras
from keras.src import backend
from keras.src.backend.common import global_state
from keras.src.saving import saving_lib
from keras.src.utils import module_utils

from shoal.worker.code.of_keras import is_keras_own

try:
    from keras.src.backend.common import masking
except ImportError:  # of an older Keras, whose only engine is TensorFlow
    masking = None


def hide_tensorflow() -> None:
    """Let Keras do without TensorFlow, which it imports to look for its types, if it is installed.

    Layers that cannot do without it raise ImportError. Nothing is done where it is Keras's backend.
    """
    if keras.backend.backend() != "tensorflow":
        module_utils.tensorflow._available = False


@contextmanager
def with_tensorflow() -> Iterator[None]:
    """Let Keras have TensorFlow in the body, if it is installed."""
    with mock.patch.object(module_utils.tensorflow, "_available", None):
        yield


def masks_of(tensors: Any) -> list[Any]:
    """The mask that Keras has noted on each tensor of a structure; None where there is none."""
    return [_mask_of(each) for each in keras.tree.flatten(tensors)]


def note_masks(tensors: Any, masks: Sequence[Any]) -> None:
    """Note masks, as `masks_of` gave them, on other tensors of the same structure."""
    for each, mask in zip(keras.tree.flatten(tensors), masks, strict=True):
        if mask is not None:
            _note_mask(each, mask)


def _mask_of(tensor: Any) -> Any:
    # Arrays of NumPy and JAX have no attributes: later versions of Keras keep their masks beside.
    found = getattr(tensor, "_keras_mask", None)
    return found if found is not None or masking is None else masking.get_keras_mask(tensor)


def _note_mask(tensor: Any, mask: Any) -> None:
    if masking is None:
        tensor._keras_mask = mask
    else:
        masking.set_keras_mask(tensor, mask)


def all_layers(layer: Any) -> Iterator[Any]:
    """A layer or model and all layers within it, at any depth."""
    yield from layer._flatten_layers()


def direct_layers(model: Any) -> list[Any]:
    """A model's layers, not those within them; of a Sequential its input layer too."""
    return list(model._layers) if isinstance(model, keras.Sequential) else list(model.layers)


def layers_under_way() -> list[Any]:
    """The layers whose build or call runs now, from the outermost to the innermost."""
    scopes = global_state.get_global_attribute("name_scope_stack") or []
    return [each.caller for each in scopes if isinstance(each.caller, keras.layers.Layer)]


@contextmanager
def drawing_without_generators() -> Iterator[None]:
    """Let PyTorch draw Keras's random numbers as its own in the body, which may be traced.

    A generator of Keras's is made of the value of a variable, which no trace has.
    """
    from keras.src.backend.torch import random  # where it is the backend

    with mock.patch.object(random, "torch_seed_generator", return_value=None):
        yield


@contextmanager
def forgetting_calls(model: Any) -> Iterator[None]:
    """Let layers and operations of a model forget, after the body, which calls it made of them.

    Each symbolic call stays with the layer, and with it whatever model was made of the call.
    """
    layers = list(all_layers(model))
    operations = [*layers, *(each for layer in layers for each in getattr(layer, "operations", ()))]
    calls = [nodes for each in operations for nodes in (each._inbound_nodes, each._outbound_nodes)]
    counts = [len(nodes) for nodes in calls]
    try:
        yield
    finally:
        for nodes, count in zip(calls, counts, strict=True):
            del nodes[count:]


def inputs_of_calls(layer: Any) -> Iterator[Any]:
    """The symbolic tensors that a layer was called with when models were made of it."""
    for node in layer._inbound_nodes:
        yield from node.input_tensors


def arguments_of_calls(layer: Any) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """The arguments, and the named ones, of each call of a layer when models were made of it."""
    for node in layer._inbound_nodes:
        yield node.arguments.args, node.arguments.kwargs


def inputs_structure(model: Any) -> Any:
    """The inputs of a functional or Sequential model as it was made with them, else None."""
    return getattr(model, "_inputs_struct", None)


def taken_features(model: Any, features: Any) -> Any:
    """Features without those that are no inputs of a functional model, where it names its inputs.

    Keras would take the others for inputs as well, all in the order of their names.
    """
    return _taken(inputs_structure(model), features) if is_keras_own(type(model).call) else features


def _taken(struct: Any, features: Any) -> Any:
    if not isinstance(struct, Mapping) or not isinstance(features, Mapping):
        return features
    return {name: _taken(inner, features.get(name)) for name, inner in struct.items()}


def outputs_structure(model: Any) -> Any:
    """The outputs of a functional model as it was made with them, else None."""
    return getattr(model, "_outputs_struct", None)


def excludes_from_weight_decay(optimizer: Any) -> bool:
    """True if exclude_from_weight_decay() was called, which no configuration tells."""
    return any(
        getattr(optimizer, name, None)
        for name in ("_exclude_from_weight_decay_pattern", "_exclude_from_weight_decay")
    )


def given_learning_rate(optimizer: Any) -> Any:
    """The learning rate as the optimizer was given it: a variable, a schedule or a function."""
    return optimizer._learning_rate


@contextmanager
def weights_from_disk() -> Iterator[None]:
    """Keep Keras from reading a file of weights into memory whole before it loads them in the body.

    It does where the model's own variables fit, to which the tables of servers do not belong.
    """
    with mock.patch.object(saving_lib, "is_memory_sufficient", create=True, return_value=False):
        yield


def unread(store: Any, key: str) -> Any:
    """A value of a file of weights, to be read in slices where the file lets it; else an array.

    store: as `load_own_variables` gets it.
    """
    group = getattr(store, "_h5_entry_group", None)
    if group is None or key not in group or group[key].attrs.get("dtype") == "bfloat16":
        return store[key]
    found = getattr(saving_lib, "safe_get_h5_dataset", lambda group, key: group[key])
    return found(group, key)


def compiled_with(model: Any) -> dict[str, Any]:
    """The arguments of compile() by name, as the user gave them; empty if it was not called."""
    return dict(model._compile_config.config) if getattr(model, "compiled", False) else {}


@dataclass(frozen=True)
class Crossentropy:
    """One call of a crossentropy of Keras, under whatever name a loss or a metric called it.

    name: such as binary_crossentropy. predictions: logits, where from_logits.
    """

    name: str
    labels: Any
    predictions: Any
    from_logits: bool


@contextmanager
def noting_crossentropies() -> Iterator[list[Crossentropy]]:
    """Note the crossentropies that are computed in the body, with their tensors."""
    noted: list[Crossentropy] = []

    def noting(name: str) -> Any:
        function = getattr(backend.nn, name)

        def call(target: Any, output: Any, from_logits: bool = False, **more: Any) -> Any:
            noted.append(Crossentropy(name, target, output, from_logits))
            return function(target, output, from_logits=from_logits, **more)

        return call

    names = ("binary", "categorical", "sparse_categorical")
    with mock.patch.multiple(
        backend.nn, **{name: noting(name) for name in (f"{each}_crossentropy" for each in names)}
    ):
        yield noted
