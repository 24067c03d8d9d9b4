"""A module for a model given by value: its functions, as a user's own module has them.

Owns all that follows from the arguments, such as the feed of a model that came without one.
client/by_value.py writes them into the folder.
"""

from __future__ import annotations

import json
import linecache
import pickle
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from shoal.base.modules.by_value import (
    FEATURES,
    LABEL,
    MODEL,
    PICKLE,
    Kept,
    MadeOf,
    Parts,
    python_version,
)
from shoal.base.words import near, shown
from shoal.errors import UserError
from shoal.worker.code.given_values import functions_of, is_value, metrics_by_name
from shoal.worker.code.of_keras import is_of_keras


def _keras() -> Any:
    """Keras, imported late: the model may be a PyTorch module, whose workers have none."""
    import keras

    return keras


def load(folder: Path) -> dict[str, Any]:
    """The names of a model's module -> what it has under them; for what was not given, None."""
    kept: Kept = pickle.loads(folder.joinpath(PICKLE).read_bytes())
    if kept.python != python_version():
        raise UserError(
            f"the model was given by value by Python {kept.python}, and workers have Python "
            f"{python_version()}, which cannot read its functions: use an image with Python "
            f"{kept.python}, or a module, which model_def names"
        )
    sys.path += [each for each in kept.path if each not in sys.path]
    for name, text in kept.sources.items():
        # AutoGraph and tracebacks read the text of functions there.
        linecache.cache.setdefault(name, (len(text), None, text.splitlines(True), name))
    parts: Parts = pickle.loads(kept.parts)
    if parts.custom_objects:
        _keras().saving.get_custom_objects().update(parts.custom_objects)
    model = _Model(parts.model, folder)
    loss = _made(parts.loss)
    if parts.feed is parts.feed_batch is None:
        made = Columns(_inputs(model), parts.label, parts.sample_weight)
        parts = replace(parts, feed_batch=made)
    return {
        "custom_model": model,
        "loss": loss,
        "loss_weights": parts.loss_weights,
        "optimizer": _optimizer(parts.optimizer),
        "feed": parts.feed,
        "feed_batch": parts.feed_batch,
        "eval_metrics_fn": _metrics(parts, loss),
        "callbacks": functions_of(callbacks=parts.callbacks)["callbacks"],
        "class_weight": parts.class_weight,
        "training_step": parts.training_step,
        "scheduler": parts.scheduler,
    }


def _inputs(model: _Model) -> Any:
    """The structure of the inputs of a model of Keras; None if only a call would tell it."""
    made = model.without_weights()
    if not is_of_keras(made, "Model"):
        return None
    from shoal.worker.code.keras_internals import inputs_structure

    found = inputs_structure(made)
    # The next model's layers get the names that they would have had.
    _keras().utils.clear_session()
    return found


def _made(value: Any) -> Any:
    """A value with objects of Keras in place of their configurations."""
    if isinstance(value, MadeOf):
        return value.kind.from_config(value.config)
    if isinstance(value, Mapping):
        return {name: _made(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_made(each) for each in value]
    return value


def _optimizer(given: Any) -> Any:
    """optimizer(), or None where the model's compile() has it; makes a new one at each call."""
    if given is None or callable(given):
        return given
    return lambda: functions_of(optimizer=_made(given))["optimizer"]()


class _Model:
    """custom_model(): makes the model, of the function that was given or of the file."""

    def __init__(self, function: Any, folder: Path) -> None:
        self._function = function
        self._path = folder / MODEL
        self.__name__ = getattr(function, "__name__", "custom_model")

    def __call__(self) -> Any:
        if self._function is None:
            return _keras().saving.load_model(self._path, compile=False, safe_mode=False)
        return self._made()

    def without_weights(self) -> Any:
        """The model as it is without what its file has for its weights."""
        if self._function is not None:
            return self._made()
        with zipfile.ZipFile(self._path) as file:
            config = json.loads(file.read("config.json"))
        config["compile_config"] = None
        with _keras().StatelessScope(initialize_variables=False):  # variables take no memory
            return _keras().saving.deserialize_keras_object(config, safe_mode=False)

    def _made(self) -> Any:
        model = self._function()
        if is_of_keras(model, "Model"):
            from shoal.worker.code.keras_internals import all_layers

            # A class of a notebook is found under its module's name there only.
            for each in (model, *all_layers(model)):
                if type(each).__module__ == "__main__":
                    found = _keras().saving.get_custom_objects()
                    found.setdefault(type(each).__name__, type(each))
        return model


class Columns:
    """feed_batch() of a model without a feed: the columns that are its inputs, by name."""

    __name__ = "feed_batch"

    def __init__(self, inputs: Any, label: str | None, weight: str | None) -> None:
        """inputs: the structure of the model's; None if only a call would tell it.

        label: the column of the labels; None if it is the only one that is no input. weight: the
        column of the records' weights; None if they have none.
        """
        self._inputs = inputs
        self._label = label
        self._weight = weight

    def __call__(self, columns: Mapping[str, Any], mode: str, metadata: Any) -> Any:
        """Features, labels and weights, as of any feed_batch()."""
        del metadata
        label = self._label_of(columns) if mode != "prediction" else self._label or LABEL
        features = self._features(columns, (label, self._weight))
        if mode == "prediction":
            return features
        labels = columns[label]
        # As models take them; a column of decimals is float64 where it was made in Python.
        whole = _dtype(labels).startswith(("int", "uint", "string", "object"))
        labels = labels if whole else _as_float32(labels)
        if self._weight is None:
            return features, labels
        return features, labels, _as_float32(_column(columns, self._weight))

    def _features(self, columns: Mapping[str, Any], others: tuple[str | None, ...]) -> Any:
        if self._inputs is None:
            return {name: columns[name] for name in columns if name not in others}
        names = self._names(columns)
        if isinstance(self._inputs, Mapping | list | tuple):
            # A dict, too, for inputs in a list: tf.data would make one tensor of a list.
            return {name: _column(columns, name) for name in names}
        return _column(columns, names[0])

    def _label_of(self, columns: Mapping[str, Any]) -> str:
        if self._label is not None:
            _column(columns, self._label)
            return self._label
        taken = {*self._names(columns), self._weight}
        others = [name for name in columns if name not in taken]
        if len(others) == 1:
            return others[0]
        if LABEL in others:
            return LABEL
        raise UserError(
            "the column of the labels is not known: name it with the argument label; the columns "
            f"that the model does not take are {', '.join(others) or 'none'}"
        )

    def _names(self, columns: Mapping[str, Any]) -> list[str]:
        """The columns that are inputs of the model; an array of a program is the only one."""
        if isinstance(self._inputs, Mapping):
            return list(self._inputs)
        if self._inputs is None:
            return []
        names = [each.name for each in _keras().tree.flatten(self._inputs) if each is not None]
        array = len(names) == 1 and FEATURES in columns and names[0] not in columns
        return [FEATURES] if array else names


def _dtype(values: Any) -> str:
    """The name of the dtype of an array, or of a tensor of TensorFlow's."""
    return str(getattr(values.dtype, "name", values.dtype))


def _as_float32(values: Any) -> Any:
    if isinstance(values, np.ndarray):
        return values.astype(np.float32)
    return _keras().ops.cast(values, "float32")


def _column(columns: Mapping[str, Any], name: str) -> Any:
    if name not in columns:
        raise UserError(
            f"there is no column {shown(name)}{near(name, columns)}; the data have "
            f"{', '.join(map(shown, columns))}. "
            "Without a feed, the inputs of the model are columns of these names"
        )
    return columns[name]


def _metrics(parts: Parts, loss: Any) -> Any:
    """eval_metrics_fn(), or None."""
    if parts.metrics_of_compile is not None:
        return lambda: metrics_by_name(_deserialized(parts.metrics_of_compile), loss)
    value = is_value("eval_metrics_fn", parts.metrics)
    if parts.metrics is None or (callable(parts.metrics) and not value):
        return parts.metrics
    return lambda: metrics_by_name(_made(parts.metrics), loss)


def _deserialized(config: Any) -> Any:
    return _keras().saving.deserialize_keras_object(config)
