"""The features that a SavedModel takes: those that the model declares, of the types it declares.

Data tell other types from one month to the next, as an age with a missing value is a float.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from shoal.worker.code.of_keras import is_keras_own
from shoal.worker.engines.tensorflow.outputs.signature_names import paths_of
from shoal.worker.model.embeddings.integers import inputs_by_name


def served_spec(model: Any, features_spec: Any) -> Any:
    """`features_spec` with the types of a functional model's inputs, and no other features.

    A model that does not declare its inputs, or has a call() of its own, takes what the data have.
    """
    if not is_keras_own(type(model).call):
        return features_spec
    declared = inputs_by_name(model, features_spec)
    if isinstance(features_spec, Mapping) and declared:
        taken = {name.split("/")[0] for name in declared}
        features_spec = {name: spec for name, spec in features_spec.items() if name in taken}
    names = map("/".join, paths_of(features_spec))
    specs = [
        _of_type(spec, declared[name].dtype) if name in declared else spec
        for name, spec in zip(names, tf.nest.flatten(features_spec), strict=True)
    ]
    return tf.nest.pack_sequence_as(features_spec, specs)


def as_served(features: Any, spec: Any) -> Any:
    """Features of the job's data as the SavedModel takes them. spec: as `served_spec` gives it."""
    if isinstance(spec, Mapping):
        features = {name: features[name] for name in spec}
    return tf.nest.map_structure(lambda each, leaf: tf.cast(leaf, each.dtype), spec, features)


def _of_type(spec: Any, dtype: str) -> Any:
    if isinstance(spec, tf.RaggedTensorSpec):
        return tf.RaggedTensorSpec(spec.shape, dtype, spec.ragged_rank, spec.row_splits_dtype)
    return type(spec)(spec.shape, dtype)
