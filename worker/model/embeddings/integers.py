"""Features that Keras casts to integers on their way into the model: whether they survive it.

A functional model casts what feed gives to the type of its inputs, without a word: of an id
1.5 becomes 1, NaN and what does not fit become another id. Owns finding such features, and
looking at their values. An explicit cast in feed or in the model is the user's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.base.nested import named_leaves
from shoal.worker.code.keras_internals import inputs_structure
from shoal.worker.input.spec import array_spec


@dataclass(frozen=True)
class CastFeature:
    """A feature of one type for which the model takes an integer of another.

    name: the feature's, outer/inner if nested; "" if there is only one, without a name.
    """

    name: str
    given: str
    taken: str


def no_integers(layer: Any, dtype: str, feed: str) -> str:
    """That an embedding layer was called with ids of this type, and what to do. feed: in words."""
    return (
        f"embedding {layer.name!r} was called with {dtype} ids: they must be integers or strings; "
        f"convert them in {feed}, and begin a keras.Sequential model with keras.Input(shape, "
        "dtype='int64'), as it casts to float32 otherwise"
    )


def inputs_by_name(model: Any, features_spec: Any) -> dict[str, Any]:
    """The symbolic inputs of a functional model, by the names of the features that they take.

    Names are those of `named_leaves`. Empty for a model that does not declare its inputs.
    """
    inputs = getattr(model, "inputs", None) or ()
    struct = inputs_structure(model)
    if not isinstance(features_spec, Mapping):
        names = [name for name, _ in named_leaves(features_spec)]
        return dict(zip(names, inputs, strict=True)) if len(names) == len(inputs) else {}
    if isinstance(struct, Mapping):
        return dict(named_leaves(struct))
    return {tensor.name: tensor for tensor in inputs}


def is_number(dtype: str) -> bool:
    """True for the name of a type of integers or floats."""
    return dtype.startswith(("int", "uint", "float", "bfloat"))


def cast_features(model: Any, features_spec: Any) -> list[CastFeature]:
    """The features whose values a cast to the model's inputs may change, of numbers."""
    specs = dict(named_leaves(features_spec))
    found = []
    for name, tensor in inputs_by_name(model, features_spec).items():
        spec = array_spec(specs.get(name))
        if spec is None or not (spec.is_floating or spec.is_integer) or "int" not in tensor.dtype:
            continue
        if not np.can_cast(spec.dtype, tensor.dtype):
            found.append(CastFeature(name, spec.dtype.name, tensor.dtype))
    return found


def not_kept(features: Any, cast: list[CastFeature]) -> str | None:
    """Which value of a batch of features a cast would change, in words; None if none."""
    if not cast:
        return None
    values = dict(named_leaves(features))
    for each in cast:
        leaf = values[each.name]
        # Of ragged and sparse features, their values alone.
        flat = getattr(leaf, "flat_values", getattr(leaf, "values", leaf))
        numbers = np.asarray(flat)
        bad = _changed(numbers, np.iinfo(each.taken))
        if bad is None:
            continue
        feature = f"feature {each.name!r}" if each.name else "the feature"
        row = f" in row {bad[0]} of a minibatch" if flat is leaf and numbers.ndim else ""
        return (
            f"{feature} is {numbers[bad]}{row}, but the model's input takes {each.taken}, and the "
            f"cast from {each.given} would make another number of it: mend the data, or convert "
            "the feature in feed"
        )
    return None


def _changed(numbers: npt.NDArray[Any], limits: Any) -> tuple[int, ...] | None:
    """The index of the first number that a cast to these integer limits changes; None if none."""
    if numbers.dtype.kind == "f":
        # NaN is equal to nothing. As a float, the limit of int64 would be rounded up.
        kept = (np.trunc(numbers) == numbers) & (numbers >= limits.min)
        kept &= numbers < float(limits.max) + 1.0
    else:
        if not numbers.size or (
            int(numbers.min()) >= limits.min and int(numbers.max()) <= limits.max
        ):
            return None
        kept = (numbers >= limits.min) & (numbers <= limits.max)
    if kept.all():
        return None
    return tuple(int(index) for index in np.unravel_index(int(np.argmin(kept)), kept.shape))
