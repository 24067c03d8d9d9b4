"""A user's model in which each table is two of Keras's own layers.

Owns which models can be made so, and be read by Keras again. Reading the tables and saving is
export.py's.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FunctionType
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import numpy.typing as npt

from shoal.layers import Embedding
from shoal.worker.code.keras_internals import (
    all_layers,
    direct_layers,
    forgetting_calls,
    inputs_of_calls,
)
from shoal.worker.code.module import summary
from shoal.worker.code.of_keras import is_keras_own
from shoal.worker.model.embeddings.keras_embeddings import is_served, plain_copy, tables_above
from shoal.worker.model.embeddings.keras_rs_tables import (
    is_distributed,
    is_preprocessed,
    plain_distributed,
    tables_of_any_id,
    with_ids,
)
from shoal.worker.outputs.row_forms import as_float32

if TYPE_CHECKING:
    from shoal.worker.outputs.export_tables import ExportedTable


def _obstacle(model: Any) -> str | None:
    """The reason why Keras cannot rebuild the model with its own layers as tables, in words."""
    # Only a functional model knows its graph of operations. Tables within a layer of the
    # user's stay there, as what calls them is the user's code.
    if _holds_tables(model) and not _has_graph(model):
        return f"{type(model).__name__} {model.name!r} is a class of its own that holds tables"
    for layer in direct_layers(model):
        if is_served(layer) or not _holds_tables(layer):
            continue
        if isinstance(layer, Embedding):
            why = _without_plain_form(layer)
        elif is_distributed(layer):
            why = _without_plain_call(model, layer)
        elif _has_graph(layer):
            why = _obstacle(layer)
        else:
            why = f"{_told(layer)} holds tables in code of its own"
        if why is not None:
            return why
    return None


def own_objects(model: Any) -> dict[str, Any]:
    """By name, the user's classes and functions without which Keras may not read a model's file.

    None of Keras's own: its layer Add would stand for its operation Add.
    """
    own: dict[str, Any] = {}
    for layer in all_layers(model):
        values = [each for each in vars(layer).values() if isinstance(each, FunctionType)]
        given: list[Any] = [type(layer), *values]
        own |= {each.__name__: each for each in given if not is_keras_own(each)}
    return own


def unsaveable(model: Any, tables: Mapping[str, ExportedTable]) -> str | None:
    """The reason why Keras cannot write or read a file of the model with its own layers, in words.

    tables: without rows. Of the file's weights only the shapes are looked at: what becomes a
    table of the servers does so here too, and takes no memory.
    """
    if why := _obstacle(model):
        return why
    own = own_objects(model)
    try:
        with warnings.catch_warnings(), plain_model(model, tables) as plain:
            warnings.simplefilter("ignore")  # each of them has its result here, or is no matter
            config = json.loads(plain.to_json())
            read = keras.saving.deserialize_keras_object(config, own, safe_mode=False)
            unlike = _unlike(plain, read)
    except Exception as error:
        with keras.saving.custom_object_scope(own):
            return _without_configuration(model) or f"Keras would not read it ({summary(error)})"
    if unlike is None:
        return None
    return (
        f"{_told(unlike)} gets weights only when it is called, so Keras has no place for them when "
        "it reads a file: make them in its build()"
    )


def _without_configuration(model: Any) -> str | None:
    """Which layer Keras cannot make of its configuration, and why."""
    for layer in reversed([each for each in all_layers(model) if not _has_graph(each)]):
        try:
            type(layer).from_config(layer.get_config())
        except Exception as error:
            why = summary(error.__context__ or error)  # Keras says beside it only the configuration
            return (
                f"Keras cannot make {_told(layer)} of its get_config() ({why}): let its "
                "__init__() accept **kwargs and pass them to super().__init__(), and its "
                "get_config() return all other arguments"
            )
    return None


def _unlike(layer: Any, read: Any) -> Any:
    """The layer within `layer` that has other weights than its copy in `read`; None if none has."""
    if _has_graph(layer):
        pairs = zip(direct_layers(layer), direct_layers(read), strict=True)
        return next((found for pair in pairs if (found := _unlike(*pair)) is not None), None)
    if _holds_tables(read):
        return None
    ours, theirs = ([each.shape for each in part.weights] for part in (layer, read))
    return None if ours == theirs else layer


def _told(layer: Any) -> str:
    return f"layer {layer.name!r} ({type(layer).__name__})"


def _is_table(layer: Any) -> bool:
    return isinstance(layer, Embedding) or is_served(layer) or is_distributed(layer)


def _holds_tables(operation: Any) -> bool:
    layers = all_layers(operation) if isinstance(operation, keras.layers.Layer) else ()
    return any(_is_table(each) for each in layers)


def _has_graph(layer: Any) -> bool:
    return isinstance(layer, keras.Sequential) or hasattr(layer, "operations")


def _without_plain_call(model: Any, distributed: Any) -> str | None:
    """The reason why a DistributedEmbedding of the model cannot be keras-rs's own, in words."""
    if is_preprocessed(distributed):
        return f"{distributed.name!r} is called with what preprocess() gave"
    for name in tables_of_any_id(distributed):
        if isinstance(model, keras.Sequential):
            return f"table {name!r} in Sequential {model.name!r} takes any id"
    return None


def _without_plain_form(layer: Embedding) -> str | None:
    """The feature of a layer that no layer of Keras has: bags, masks of ids, strings. In words."""
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


@contextmanager
def plain_model(model: Any, tables: Mapping[str, ExportedTable]) -> Iterator[Any]:
    """A model in which `tables` are Keras layers.

    Layers that hold no table are the model's own. After the body they know nothing of it, so
    that they do not keep its tables in memory.
    """
    with forgetting_calls(model):
        yield _plain_model(model, tables) if _holds_tables(model) else model


def _plain_model(model: Any, tables: Mapping[str, ExportedTable]) -> Any:
    of_any_id = {
        name
        for layer in direct_layers(model)
        if is_distributed(layer)
        for name in tables_of_any_id(layer)
    }
    indexes: dict[str, Any] = {}
    of_ranks: list[Any] = []
    """Sequentials that are called with ids of several ranks, of which a Sequential takes one."""

    def values_of(name: str) -> Any:
        if name in of_any_id:
            _, rows, scales = tables[name].indexed()
            return as_float32(rows, scales)
        return tables[name].values()

    def plain(layer: Any) -> Any:
        made = made_of(layer)
        ranks = {len(ids.shape) for ids in inputs_of_calls(layer)} if _is_table(layer) else set()
        if len(ranks) > 1 and isinstance(made, keras.Sequential):
            of_ranks.append(made)
        return made

    def made_of(layer: Any) -> Any:
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
        if _holds_tables(layer):
            return _plain_model(layer, tables)
        return layer

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
        if any(layer is each for each in of_ranks):
            (ids,) = (*arguments, *named.values())
            return _in_turn(layer, ids)
        return layer(*arguments, **named)

    return keras.models.clone_model(
        model,
        clone_function=plain,
        call_function=None if isinstance(model, keras.Sequential) else call,
    )


def _in_turn(layer: Any, inputs: Any) -> Any:
    """Call a Sequential's layers one by one, without a call of the Sequential itself."""
    if not isinstance(layer, keras.Sequential):
        return layer(inputs)
    for each in layer.layers:
        inputs = _in_turn(each, inputs)
    return inputs


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
    with tables_above(math.inf):
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
