"""A user's model rebuilt of Keras's own layers, each table as two of them.

Owns which models can be rebuilt so. Reading the tables and saving is export.py's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import numpy.typing as npt

from shoal.layers import Embedding
from shoal.worker.keras_internals import all_layers, direct_layers, inputs_of_calls
from shoal.worker.model.keras_embeddings import is_served, plain_copy

if TYPE_CHECKING:
    from shoal.worker.outputs.export_tables import ExportedTable


def rebuildable(model: Any) -> bool:
    """Whether Keras can make the model anew with layers of its own for the tables."""
    return obstacle(model) is None


def obstacle(model: Any) -> str | None:
    """Why Keras cannot make the model anew with layers of its own for the tables, in words."""
    # Only a functional model knows its graph of operations. Tables within a layer of the
    # user's stay there, as what calls them is the user's code.
    if not (isinstance(model, keras.Sequential) or hasattr(model, "operations")):
        return f"{type(model).__name__} {model.name!r} is a class of its own that holds tables"
    for layer in direct_layers(model):
        if is_served(layer) or not any(_is_table(each) for each in all_layers(layer)):
            continue
        if isinstance(layer, Embedding):
            why = _without_plain_form(layer)
        elif isinstance(layer, keras.Sequential) or hasattr(layer, "operations"):
            why = obstacle(layer)
        else:
            why = f"layer {layer.name!r} ({type(layer).__name__}) holds tables in code of its own"
        if why is not None:
            return why
    return None


def _is_table(layer: Any) -> bool:
    return isinstance(layer, Embedding) or is_served(layer)


def _without_plain_form(layer: Embedding) -> str | None:
    """What Keras has no layer of its own for, in words: bags, masks of ids, strings."""
    what = f"embedding {layer.name!r}"
    if layer.combiner is not None:
        return f"{what} combines bags of ids (combiner={layer.combiner!r})"
    if layer.mask_zero:
        return f"{what} has mask_zero"
    for ids in inputs_of_calls(layer):
        if getattr(ids, "ragged", False):
            return f"{what} takes ragged ids"
        if ids.dtype == "string":
            return f"{what} takes strings as ids"
    return None


def plain_model(model: Any, tables: Mapping[str, ExportedTable]) -> Any:
    """A copy of a rebuildable model in which `tables` are Keras layers."""

    def plain(layer: Any) -> Any:
        if isinstance(layer, Embedding):
            return _plain_embedding(layer, tables[layer.table])
        if is_served(layer):
            return plain_copy(layer, tables[layer.table].rows)
        if rebuildable(layer):
            return plain_model(layer, tables)
        if hasattr(layer, "adapt"):
            return layer  # what it learnt is in neither its configuration nor its weights
        return layer.__class__.from_config(layer.get_config())

    clone = keras.models.clone_model(model, clone_function=plain)
    # Both have the same layers in the same order; only the clone's tables have weights.
    for target, source in zip(direct_layers(clone), direct_layers(model), strict=True):
        if not _is_table(source) and not rebuildable(source):
            target.set_weights(source.get_weights())
    return clone


def _plain_embedding(layer: Embedding, table: ExportedTable) -> Any:
    """IntegerLookup and keras Embedding; row 0 is the default row."""
    ids, weights = table.indexed()
    lookup = keras.layers.IntegerLookup(
        vocabulary=ids, oov_token=_unused(ids), name=f"{layer.name}_index"
    )
    embedding = keras.layers.Embedding(*weights.shape, name=f"{layer.name}_rows")
    embedding.build()
    embedding.embeddings.assign(weights)
    return keras.Sequential([lookup, embedding], name=layer.name)


def _unused(ids: npt.NDArray[np.int64]) -> int:
    """A number that is no id: IntegerLookup wants one to stand for unknown ids.

    ids: ascending.
    """
    candidate = -1
    for value in ids[: np.searchsorted(ids, -1, "right")][::-1]:
        if value != candidate:
            break
        candidate -= 1
    return candidate
