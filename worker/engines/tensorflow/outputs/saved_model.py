"""The SavedModel of an export.

Tables that fit are in it, as a lookup from the real ids to rows. Of the others it takes
the vectors as inputs: its signature `ids` says of which ids, in which order, and whoever
serves it gets them from where the table was put.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tensorflow as tf

from shoal.errors import DISK_FAILS, UserError
from shoal.layers import Embedding, lookup_with
from shoal.worker.code.keras_internals import all_layers
from shoal.worker.engines.tensorflow.model.lookups import RecordLookup, integer_ids
from shoal.worker.engines.tensorflow.outputs.served_features import as_served, served_spec
from shoal.worker.engines.tensorflow.outputs.signature_names import (
    arguments_of,
    checked,
    names_of,
    parts_of,
    rename,
)
from shoal.worker.model.model import ServedModel
from shoal.worker.model.refusals import Refusals
from shoal.worker.outputs.export_tables import ExportedTable


class StaticLookup:
    """Embedding lookups in variables of the graph.

    ids: of each table, ascending. rows: that of ids[i] is rows[i + 1], and rows[0] the
        default; of a table without ids, the row of id i is rows[i]. scales: of int8 rows, by
        which each is multiplied.
    """

    def __init__(self, tables: Mapping[str, ExportedTable], matrices: Container[str]) -> None:
        """matrices: names of the tables that have a row for each of their ids."""
        self.ids: dict[str, tf.Variable] = {}
        self.rows: dict[str, tf.Variable] = {}
        self.scales: dict[str, tf.Variable] = {}
        for name, table in tables.items():
            rows, scales = table.rows, table.scales
            if name not in matrices:
                ids, rows, scales = table.indexed()
                # Variables, not a hash table made of constants: a graph holds at most 2 GB.
                self.ids[name] = tf.Variable(ids, trainable=False)
            self.rows[name] = tf.Variable(rows, trainable=False)
            if scales is not None:
                self.scales[name] = tf.Variable(scales, trainable=False)

    @property
    def variables(self) -> list[tf.Variable]:
        """The variables of all tables."""
        return [each for part in (self.ids, self.rows, self.scales) for each in part.values()]

    def __call__(self, layer: Embedding, ids: Any) -> tf.Tensor:
        """The rows of a layer's ids, in the dtype in which it computes."""
        ids = integer_ids(Refusals(), layer, ids)
        return tf.cast(self.of(layer.table, ids), layer.compute_dtype)

    def of(self, table: str, ids: Any) -> tf.Tensor:
        """The rows of ids of a table, [..., dim], in their form; int8 ones as float32."""
        positions = ids
        if table in self.ids:
            known = self.ids[table]
            flat = tf.reshape(ids, [-1])
            found = tf.searchsorted(known, flat, out_type=tf.int64)
            found = tf.minimum(found, tf.shape(known, tf.int64)[0] - 1)
            row = tf.where(tf.gather(known, found) == flat, found + 1, 0)
            positions = tf.reshape(row, tf.shape(ids))
        rows = tf.gather(self.rows[table], positions)
        if table in self.scales:
            rows = tf.cast(rows, tf.float32) * tf.gather(self.scales[table], positions)[..., None]
        return rows


class _GivenLookup:
    """Gives the calls of external tables their vectors, and the others what `inner` gives.

    vectors: of each external table float32 [ids, dim], those of all its calls in order.
    """

    def __init__(self, inner: StaticLookup, vectors: Mapping[str, tf.Tensor]) -> None:
        self._inner = inner
        self._left = dict(vectors)

    def __call__(self, layer: Embedding, ids: Any) -> tf.Tensor:
        if layer.table not in self._left:
            return self._inner(layer, ids)
        ids = integer_ids(Refusals(), layer, ids)
        count = tf.size(ids)
        left = self._left[layer.table]
        self._left[layer.table] = left[count:]
        rows = tf.reshape(left[:count], tf.concat([tf.shape(ids), [layer.output_dim]], 0))
        rows.set_shape([*ids.shape, layer.output_dim])
        return tf.cast(rows, layer.compute_dtype)


@contextmanager
def errors_of_disks() -> Iterator[None]:
    """Raise an OSError where a disk fails in the body.

    TensorFlow raises its own errors then, with the system's words in their text.
    """
    try:
        yield
    except tf.errors.OpError as error:
        for number in DISK_FAILS:
            if os.strerror(number) in error.message:
                raise OSError(number, os.strerror(number)) from error
        raise


@errors_of_disks()
def save(
    model: ServedModel, tables: Mapping[str, ExportedTable], folder: Path
) -> dict[str, dict[str, str]]:
    """Write the SavedModel.

    Returns, of each external table, what its ids are called among the outputs of the
    signature `ids`, and its vectors among the inputs of `serving_default`.
    """
    inside = {name: table for name, table in tables.items() if not table.external}
    lookup = StaticLookup(inside, [n for n, table in model.tables.items() if table.vocabulary])
    module = tf.Module()
    # What the graph uses must hang on the module to be saved with it: the variables, not
    # the Keras model, which would trace each layer by itself, outside `lookup`.
    module.dense = [variable.value for variable in model.model.variables]
    module.ids, module.rows, module.scales = lookup.ids, lookup.rows, lookup.scales
    module.of_layers = list(_held([vars(layer) for layer in all_layers(model.model)]))

    features_spec = served_spec(model.model, model.features_spec)
    inputs = _Inputs(features_spec)
    names = _external_names(model, tables, inputs.specs)
    specs = {n: tf.TensorSpec([None, model.tables[n].dim], tf.float32) for n in names}

    def predict(features: Any, vectors: Mapping[str, Any]) -> Any:
        with lookup_with(_GivenLookup(lookup, vectors)):
            return model.model(features, training=False)

    # The layers are traced once for all that predicts.
    signature = [features_spec, specs]
    serve: Any = tf.function(predict, input_signature=signature, autograph=False)

    def serving(given: Mapping[str, Any]) -> dict[str, Any]:
        vectors = {name: given[each["vectors"]] for name, each in names.items()}
        outputs = serve(inputs.packed(given), vectors)
        return dict(
            zip(names_of(outputs, "output", "output"), tf.nest.flatten(outputs), strict=True)
        )

    arguments = {each["vectors"]: specs[name] for name, each in names.items()}
    traced = {"serving_default": Signature(serving, inputs.specs | arguments)}
    if names:

        def ids(given: Mapping[str, Any]) -> dict[str, Any]:
            record = RecordLookup(Refusals())
            with lookup_with(record):
                model.model(inputs.packed(given), training=False)
            calls = list(zip(record.layers, record.ids, strict=True))
            return {
                each["ids"]: tf.concat([x for layer, x in calls if layer.table == name], 0)
                for name, each in names.items()
            }

        traced["ids"] = Signature(ids, inputs.specs)
    else:
        module.serve = tf.function(
            lambda features: serve(features, {}),
            input_signature=[features_spec],
            autograph=False,
        )
    signatures = {key: each.function for key, each in traced.items()}
    try:
        tf.saved_model.save(module, str(folder), signatures=signatures)
    except AssertionError as error:
        if "'untracked' resource" not in str(error):
            raise
        held = [*module.dense, *module.of_layers, *lookup.variables]
        raise UserError(_unheld(model.model, serve.get_concrete_function(), held)) from error
    rename(folder, {key: each.arguments for key, each in traced.items()})
    return names


def predict_saved(folder: Path, model: ServedModel, features: Any) -> Any:
    """The outputs of a SavedModel without external tables, for features as the job's data are."""
    saved = tf.saved_model.load(folder)  # holds the variables
    return saved.serve(as_served(features, served_spec(model.model, model.features_spec)))


def _held(value: Any) -> Iterator[Any]:
    """TensorFlow's variables and lookup tables within lists and dicts in each other."""
    if isinstance(value, tf.Variable | tf.saved_model.experimental.TrackableResource):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _held(part)


def _unheld(model: Any, function: Any, held: Iterable[Any]) -> str:
    """Which layer uses a variable or lookup table that nothing holds, and what to do, in words."""
    handles = [x.handle if isinstance(x, tf.Variable) else x.resource_handle for x in held]
    known = {id(each) for each in handles}
    scopes = [
        operation.name.split("/")
        for outside, inside in function.graph.captures
        if outside.dtype == tf.resource and id(outside) not in known
        for operation in inside.consumers()
    ]
    # TensorFlow numbers the scopes that layers of one name open.
    used = {re.sub(r"_\d+$", "", part) for scope in scopes for part in scope}
    layers = [layer for layer in all_layers(model) if layer.name in used]
    who = layers[-1] if layers else model
    return (
        f"layer {who.name!r} ({type(who).__name__}) uses a lookup table or variable of TensorFlow "
        "that no layer holds, so a SavedModel cannot have it: make it in __init__() and keep it as "
        "an attribute of the layer"
    )


class _Inputs:
    """The features as named inputs of a signature.

    specs: of each input, by name. Raises UserError for features that cannot be named.
    """

    def __init__(self, features: Any) -> None:
        self._features = features
        leaves = zip(names_of(features, "input", "inputs"), tf.nest.flatten(features), strict=True)
        names = checked([part for leaf in leaves for part in parts_of(*leaf)], "input")
        flat = tf.nest.flatten(features, expand_composites=True)
        self.specs = dict(zip(names, flat, strict=True))

    def packed(self, given: Mapping[str, Any]) -> Any:
        """The features that the named tensors are."""
        tensors = [given[name] for name in self.specs]
        return tf.nest.pack_sequence_as(self._features, tensors, expand_composites=True)


def _external_names(
    model: ServedModel, tables: Mapping[str, ExportedTable], taken: Container[str]
) -> dict[str, dict[str, str]]:
    names: dict[str, dict[str, str]] = {}
    used: set[str] = set()
    for name in model.tables:
        if tables[name].external:
            plain = re.sub(r"\W", "_", name)
            while f"{plain}_vectors" in taken or plain in used:
                plain += "_"
            used.add(plain)
            names[name] = {"ids": f"{plain}_ids", "vectors": f"{plain}_vectors"}
    return names


class Signature:
    """A traced function of named tensors, as a signature.

    arguments: argument of `function` -> name.
    """

    def __init__(
        self, body: Callable[[Mapping[str, Any]], dict[str, Any]], specs: Mapping[str, Any]
    ) -> None:
        self.arguments = arguments_of(specs)

        def function(**given: Any) -> dict[str, Any]:
            return body({name: given[argument] for argument, name in self.arguments.items()})

        named = {
            argument: tf.TensorSpec(specs[name].shape, specs[name].dtype, argument)
            for argument, name in self.arguments.items()
        }
        self.function = tf.function(function, autograph=False).get_concrete_function(**named)
