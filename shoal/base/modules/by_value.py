"""The form of a model that a Python program gives by value: a client writes it, workers read it.

It is a folder with a module like any user's (`MODULE`), whose names are what `PICKLE` holds, and
with the Keras model itself (`MODEL`) if it was given as an object.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

FILES = MODULE, PICKLE, MODEL = "model.py", "model.pickle", "model.keras"

MODEL_DEF = "model.custom_model"

LABEL = "label"
"""The column of the labels, where neither the program nor the model tells."""

FEATURES, WEIGHTS = "x", "sample_weight"
"""The columns of an array of features, and of the weights, which were given beside labels."""


@dataclass(frozen=True)
class MadeOf:
    """An object of Keras by its class and configuration: each process makes its own of them."""

    kind: Any
    config: dict[str, Any]


@dataclass(frozen=True)
class GivenModule:
    """A torch.nn.Module that was given as an object, with its values: a function that gives it."""

    module: Any

    @property
    def __name__(self) -> str:
        return type(self.module).__name__

    def __call__(self) -> Any:
        """The module."""
        return self.module


@dataclass(frozen=True)
class GivenOptimizer:
    """An optimizer of torch.optim by its class and options: a function that makes its own.

    Its `kind` and `options` are those of one whose parameters were of another module.
    """

    kind: Any
    options: dict[str, Any]

    def __call__(self, parameters: Any) -> Any:
        """One for these parameters."""
        return self.kind(parameters, **self.options)


@dataclass(frozen=True)
class Parts:
    """The arguments given, by their names; None for each that was not.

    model: a function or class without arguments; None if the model is in `MODEL`.
    metrics_of_compile: as Keras serialises those of a compiled model.
    custom_objects: classes and functions that configurations of Keras name.
    """

    model: Any
    loss: Any
    loss_weights: Any
    optimizer: Any
    feed: Any
    feed_batch: Any
    metrics: Any
    metrics_of_compile: Any
    callbacks: Any
    label: str | None
    custom_objects: dict[str, Any]
    class_weight: Any = None
    training_step: Any = None
    scheduler: Any = None
    sample_weight: str | None = None


@dataclass(frozen=True)
class Kept:
    """The content of `PICKLE`, which needs none of the user's modules to be read.

    parts: the `Parts`, pickled. path: where Python looked for modules. sources: the text of files
    that are none, such as a notebook's cells, by the name that their functions have for them.
    python: the version of Python, such as "3.11": another one cannot read its functions.
    """

    parts: bytes
    python: str
    path: list[str] = field(default_factory=list)
    sources: dict[str, str] = field(default_factory=dict)


def python_version() -> str:
    """The version of this Python that decides which functions it can read, such as "3.11"."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def named_code(file: str, make: Callable[..., CodeType], parts: tuple[Any, ...]) -> CodeType:
    """make(*parts), which says that it is of the file; pickles name this function."""
    return make(*parts).replace(co_filename=file)


def classes_of(model: Any) -> Iterator[tuple[str, Any]]:
    """The classes of a model and of its layers that are not Keras's, by name."""
    for each in (model, *model.layers):
        if not type(each).__module__.startswith("keras."):
            yield type(each).__name__, type(each)
    for layer in model.layers:
        if hasattr(layer, "layers"):
            yield from classes_of(layer)
