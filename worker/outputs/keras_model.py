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
from shoal.worker.model.keras_rs_tables import (
    is_distributed,
    is_preprocessed,
    plain_distributed,
    tables_of_any_id,
    with_ids,
)
from shoal.worker.outputs.row_forms import as_float32

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
        elif is_distributed(layer):
            why = _without_plain_call(model, layer)
        elif isinstance(layer, keras.Sequential) or hasattr(layer, "operations"):
            why = obstacle(layer)
        else:
            why = f"layer {layer.name!r} ({type(layer).__name__}) holds tables in code of its own"
        if why is not None:
            return why
    return None


def _is_table(layer: Any) -> bool:
    return isinstance(layer, Embedding) or is_served(layer) or is_distributed(layer)


def _without_plain_call(model: Any, distributed: Any) -> str | None:
    """Why a DistributedEmbedding of the model cannot be keras-rs's own, in words."""
    if is_preprocessed(distributed):
        return f"{distributed.name!r} is called with what preprocess() gave"
    for name in tables_of_any_id(distributed):
        if isinstance(model, keras.Sequential):
            return f"table {name!r} in Sequential {model.name!r} takes any id"
    return None


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
    of_any_id = {
        name
        for layer in direct_layers(model)
        if is_distributed(layer)
        for name in tables_of_any_id(layer)
    }
    indexes: dict[str, Any] = {}

    def values_of(name: str) -> Any:
        if name in of_any_id:
            _, rows, scales = tables[name].indexed()
            return as_float32(rows, scales)
        return tables[name].values()

    def plain(layer: Any) -> Any:
        if isinstance(layer, Embedding):
            return _plain_embedding(layer, tables[layer.table])
        if is_served(layer):
            table = tables[layer.table]
            if table.scales is not None and type(layer) is keras.layers.Embedding:
                options = {"mask_zero": layer.mask_zero, "name": layer.name}
                return _quantized(layer, table.rows, table.scales, options)
            return plain_copy(layer, table.values())
        if is_distributed(layer):
            return plain_distributed(layer, values_of)
        if rebuildable(layer):
            return plain_model(layer, tables)
        if hasattr(layer, "adapt"):
            return layer  # what it learnt is in neither its configuration nor its weights
        return layer.__class__.from_config(layer.get_config())

    def index(name: str, ids: Any) -> Any:
        if name not in of_any_id:
            return ids
        if name not in indexes:
            indexes[name] = _index(name, tables[name])
        return indexes[name](ids)

    def call(layer: Any, *arguments: Any, **named: Any) -> Any:
        if is_distributed(layer) and arguments:
            arguments = (with_ids(layer, arguments[0], index), *arguments[1:])
        elif is_distributed(layer):
            named["inputs"] = with_ids(layer, named["inputs"], index)
        return layer(*arguments, **named)

    clone = keras.models.clone_model(
        model, clone_function=plain, call_function=call if of_any_id else None
    )
    # Both have the same layers; the clone has more of them, and its tables have weights.
    targets = {each.name: each for each in direct_layers(clone)}
    for source in direct_layers(model):
        weights = source.get_weights()
        if weights and not _is_table(source) and not rebuildable(source):
            targets[source.name].set_weights(weights)
    return clone


def _index(name: str, table: ExportedTable) -> Any:
    """The layer that gives the place of an id in a table's indexed rows."""
    ids = table.indexed_ids
    return keras.layers.IntegerLookup(vocabulary=ids, oov_token=_unused(ids), name=f"{name}_index")


def _plain_embedding(layer: Embedding, table: ExportedTable) -> Any:
    """IntegerLookup and keras Embedding; row 0 is the default row."""
    lookup = _index(layer.name, table)
    _, rows, scales = table.indexed()
    name = f"{layer.name}_rows"
    if scales is not None:
        quantized = _quantized(layer, rows, scales, {"name": name})
        return keras.Sequential([lookup, quantized], name=layer.name)
    embedding = keras.layers.Embedding(*rows.shape, dtype=layer.dtype_policy, name=name)
    embedding.build()
    embedding.embeddings.assign(rows.astype(np.float32, copy=False))
    return keras.Sequential([lookup, embedding], name=layer.name)


def _quantized(layer: Any, rows: Any, scales: Any, options: Mapping[str, Any]) -> Any:
    """Keras's own int8 Embedding of these rows, which gives what `layer` computes in.

    rows: int8 [n, dim]; no row: the layer's own form, not built. options: of the Embedding.
    """
    if not len(rows):
        return plain_copy(layer, rows)
    policy = keras.dtype_policies.QuantizedDTypePolicy("int8", "float32")
    name = options["name"]
    if layer.compute_dtype != "float32":
        options = {**options, "name": f"{name}_int8"}
    embedding = keras.layers.Embedding(*rows.shape, dtype=policy, **options)
    embedding.build()
    values, divisors = embedding.weights
    values.assign(rows)
    # Keras divides by what it calls the scale.
    divisors.assign(1 / np.where(scales == 0, np.float32(1), scales))
    if layer.compute_dtype == "float32":
        return embedding
    # A policy of that dtype would have Keras round the scales to it.
    cast = keras.layers.Activation("linear", dtype=layer.compute_dtype)
    return keras.Sequential([embedding, cast], name=name)


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
