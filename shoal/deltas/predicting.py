"""Predictions of a followed model: its SavedModel without tables, fed by the rows that are here.

Owns the features' way into the SavedModel's inputs, and its dense values, which change in place.
Loads TensorFlow, and is loaded only where a model predicts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.base.modules.libraries import library
from shoal.base.words import near
from shoal.deltas.errors import DeltaError
from shoal.deltas.rows import Rows
from shoal.deltas.schema import LiveModelManifest
from shoal.errors import UserError

SERVING = "serving_default"
IDS = "ids"
"""The signature that says of which ids the vectors are wanted."""

OUTPUT = "output"
"""The name of an output that has none of its own."""

SPLITS = re.compile(r"_row_splits(_0)?$")
"""Inputs with where the list of each record begins and ends."""

PARTS = re.compile(r"_(values|row_splits_[1-9]\d*|indices|dense_shape)$")
"""Inputs with parts of a feature, of which there is not one for each record."""

Array = npt.NDArray[Any]


class Predictor:
    """A SavedModel and the rows that it is given.

    inputs: its inputs, a TensorSpec by name. saved: as TensorFlow has loaded it. fed: of each
    table, what its ids are called among the outputs of the signature `ids`, its vectors among the
    inputs of `serving_default`, and the table.
    """

    def __init__(self, folder: Path, model: LiveModelManifest, rows: Rows) -> None:
        """folder: of the SavedModel.

        Raises DeltaError if it is not the model's, UserError if TensorFlow is missing.
        """
        self._tf = library("tensorflow", "predict()", "'shoal[cpu]'")
        self.saved = self._tf.saved_model.load(str(folder))
        serving = self.saved.signatures[SERVING]
        taken: Mapping[str, Any] = serving.structured_input_signature[1]
        self.fed = [
            (each["ids"], each["vectors"], rows.table(each["name"]))
            for each in model["tables"]
            if "ids" in each and "vectors" in each
        ]
        if lacking := [vectors for _, vectors, _ in self.fed if vectors not in taken]:
            raise DeltaError(f"{folder}: the SavedModel has no input {lacking[0]!r}")
        vectors = {name for _, name, _ in self.fed}
        self.inputs = {name: taken[name] for name in sorted(taken) if name not in vectors}
        self.outputs = dict(serving.structured_outputs)
        dense = self.saved.dense
        if len(dense) != len(paths := model.get("variables", [])):
            raise DeltaError(
                f"{folder}: the SavedModel has {len(dense)} variables, not {len(paths)}"
            )
        self._dense = dict(zip(paths, dense, strict=True))
        self._call = self._fused(serving)

    def _fused(self, serving: Any) -> Any:
        """One graph of ids, lookups and predictions: calls from Python cost more than most."""
        tf, fed = self._tf, self.fed
        tables = [table for *_, table in fed]

        def look(*ids: Array) -> list[Array]:
            return [table.lookup(each) for table, each in zip(tables, ids, strict=True)]

        def call(features: dict[str, Any]) -> Any:
            given = dict(features)
            if fed:
                wanted = self.saved.signatures[IDS](**features)
                ids = [wanted[name] for name, *_ in fed]
                found = tf.numpy_function(look, ids, [tf.float32] * len(fed), stateful=True)
                for (_, name, table), rows in zip(fed, found, strict=True):
                    given[name] = tf.ensure_shape(rows, [None, table.dim])
            return serving(**given)

        specs = {name: tf.TensorSpec(each.shape, each.dtype) for name, each in self.inputs.items()}
        return tf.function(call, input_signature=[specs], autograph=False).get_concrete_function()

    def set_dense(self, values: Mapping[str, Array]) -> None:
        """Set dense variables to these values, one after the other, in place."""
        for name, value in values.items():
            variable = self._dense[name]
            variable.assign(self._tf.cast(value, variable.dtype))

    def predict(self, features: Any) -> dict[str, Array]:
        """The outputs by name. features: see Follower.predict. Raises UserError."""
        given = self._tensors(features)
        try:
            outputs = self._call(given)
        except self._tf.errors.InvalidArgumentError as error:
            line = error.message.strip().splitlines()[0]
            raise UserError(f"the model does not take these features: {line}") from error
        return {name: each.numpy() for name, each in outputs.items()}

    # ------------------------------------------------------------ features

    def _tensors(self, features: Any) -> dict[str, Any]:
        if not isinstance(features, Mapping):
            if len(self.inputs) != 1:
                raise UserError(f"features must be a dict of {', '.join(self.inputs)}")
            features = {next(iter(self.inputs)): features}
        given: dict[str, Any] = {}
        for name, value in features.items():
            if name in self.inputs:
                given[name] = self._tensor(name, value)
            elif f"{name}_values" in self.inputs and f"{name}_row_splits" in self.inputs:
                given |= self._lists(name, value)
            else:
                raise UserError(
                    f"the model has no input {name!r}{near(str(name), self.inputs)}; it takes "
                    f"{', '.join(self.inputs)}"
                )
        if missing := [name for name in self.inputs if name not in given]:
            raise UserError(
                f"input {missing[0]!r} is missing; the model takes {', '.join(self.inputs)}"
            )
        self._check_records(given)
        return {name: self._tf.constant(value) for name, value in given.items()}

    def _tensor(self, name: str, value: Any) -> Array:
        spec = self.inputs[name]
        if spec.dtype == self._tf.string:
            array = np.asarray(value, object)  # NumPy's own strings end before a zero
            if not all(isinstance(each, str | bytes) for each in array.flat):
                raise UserError(f"input {name!r} must be of strings, in records of one length")
        else:
            try:
                array = np.asarray(value)
            except ValueError as error:
                raise UserError(f"input {name!r}: its records have several lengths") from error
            array = _cast(name, array, spec.dtype.as_numpy_dtype, spec.dtype.name)
        if not spec.shape.is_compatible_with(array.shape):
            raise UserError(
                f"input {name!r} has shape {_shape(array.shape)}, the model takes "
                f"{_shape(spec.shape.as_list())}"
            )
        return array

    def _lists(self, name: str, value: Any) -> dict[str, Array]:
        """The parts of a feature of lists, which a signature takes one by one."""
        values, splits = f"{name}_values", f"{name}_row_splits"
        try:
            texts = self.inputs[values].dtype == self._tf.string
            rows = [np.asarray(each, object if texts else None) for each in value]
            some = [each for each in rows if each.size]  # an empty list has no dtype of its own
            flat = np.concatenate(some) if some else np.zeros(0)
        except (TypeError, ValueError) as error:
            raise UserError(f"input {name!r} must be a list for each record: {error}") from error
        lengths = np.cumsum([0, *(len(each) for each in rows)])
        return {values: self._tensor(values, flat), splits: self._tensor(splits, lengths)}

    def _check_records(self, given: Mapping[str, Array]) -> None:
        """Raises UserError if inputs are not of the same number of records."""
        counts = {
            SPLITS.sub("", name): len(array) - bool(SPLITS.search(name))
            for name, array in given.items()
            if array.ndim and not PARTS.search(name)
        }
        if len(set(counts.values())) > 1:
            told = ", ".join(f"{name} {count}" for name, count in counts.items())
            raise UserError(f"the inputs have different numbers of records: {told}")


def _cast(name: str, array: Array, dtype: Any, called: str) -> Array:
    """An array as a model takes it. Raises UserError if that would change what it says."""
    wanted = np.dtype(dtype)
    if array.size == 0 or array.dtype == wanted:
        return array.astype(wanted, copy=False)
    kinds = {"i": "iub", "u": "iub", "f": "iufb", "b": "b"}.get(wanted.kind, wanted.kind)
    if wanted.name == "bfloat16":
        kinds = "iufb"
    if array.dtype.kind not in kinds:
        found = "strings or mixed values" if array.dtype.kind in "OSU" else array.dtype
        raise UserError(f"input {name!r} must be of {called}, not of {found}")
    if wanted.kind in "iu":
        limits = np.iinfo(wanted)
        if array.dtype.kind != "b" and (array.min() < limits.min or array.max() > limits.max):
            raise UserError(f"input {name!r} has numbers that {called} does not hold")
    return array.astype(wanted)


def _shape(dims: Any) -> str:
    return f"[{', '.join('any' if each is None else str(each) for each in dims)}]"
