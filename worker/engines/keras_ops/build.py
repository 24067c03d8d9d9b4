"""A model of Keras that another framework than TensorFlow computes, with what is refused of it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np

from shoal.errors import UserError
from shoal.worker.input.spec import ArraySpec
from shoal.worker.model.built import BuiltModel, ToBuild
from shoal.worker.model.keras_models import build_keras_model

NO_LAYOUTS = (
    "which inputs the rows of a kernel belong to is known of TensorFlow's graphs only: describe "
    "both models with --engine tensorflow"
)
"""Why there are no kernel layouts, and what to do."""


def spec_of_input(tensor: Any, framework: str) -> ArraySpec:
    """The spec of features that a symbolic input of a model takes. framework: in words.

    Raises UserError for a ragged or sparse input.
    """
    if getattr(tensor, "ragged", False) or getattr(tensor, "sparse", False):
        raise UserError(
            f"the input {tensor.name!r} is ragged or sparse: {framework} has no such one"
        )
    dtype = "object" if tensor.dtype == "string" else tensor.dtype
    return ArraySpec(tuple(tensor.shape), np.dtype(dtype))


def as_raised(file: str) -> AbstractContextManager[Any]:
    """Raise errors of a framework in a file's code as they are."""
    del file
    return nullcontext()


def build_checked(
    given: ToBuild,
    framework: str,
    refused: Callable[[Any], str | None],
    told: Callable[[str], AbstractContextManager[Any]] = as_raised,
) -> BuiltModel:
    """Build the model of a module; see Engine.build.

    framework: that computes it, in words. refused: says of what custom_model() gave why it cannot
    be trained, and what to do; None if that is not for it to say. told: raises errors of the
    framework in a file's code in words of ours.
    """
    module, own = given.module, given.module.custom_model

    @functools.wraps(own)
    def custom_model() -> Any:
        try:
            with told(module.path.name):
                model = own()
        except ImportError as error:
            if "requires TensorFlow" not in str(error):
                raise
            raise UserError(
                f"{module.model_name}: {str(error).partition('.')[0]}, and the model is computed "
                f"by {framework}: use the layers of shoal.preprocessing in {module.feed_name}, or "
                "give --engine tensorflow"
            ) from error
        if (reason := refused(model)) is not None:
            raise UserError(f"{module.model_name} {reason}")
        return model

    return build_keras_model(replace(given, module=replace(module, custom_model=custom_model)))
