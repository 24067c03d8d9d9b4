"""Which ids a model looks up: of which tables, in which calls, for given features.

Owns the one trace that says so, and the order of calls and tables, by which rows find
their layers again. Pulling the rows is servers/group.py's, the step that uses them steps.py's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from shoal.errors import UserError
from shoal.layers import lookup_with
from shoal.worker.code.keras_internals import taken_features
from shoal.worker.engines.tensorflow.model import dependencies
from shoal.worker.engines.tensorflow.model.lookups import RecordLookup
from shoal.worker.engines.tensorflow.tensors import tensor_of
from shoal.worker.model.embeddings.integers import cast_features, not_kept
from shoal.worker.model.embeddings.keras_embeddings import out_of_range
from shoal.worker.model.embeddings.sharing import sharing_refused, wrapped
from shoal.worker.model.refusals import Refusals
from shoal.worker.servers.ids import TableIds

Int64 = npt.NDArray[np.int64]

RESHAPING = frozenset({"Identity", "Reshape", "ExpandDims", "Squeeze"})
"""Operations that leave all numbers of their first input in their order."""


class IdTrace:
    """The lookups of a Keras model.

    tables: the first embedding layer of each table by the table's name, in the order of
        the tables on the servers.
    calls: the table of each call of an embedding layer, in the order of the calls.
    frozen: the tables that no layer trains.
    """

    def __init__(self, model: Any, features_spec: Any, refusals: Refusals, file: str) -> None:
        """Trace nothing yet. features_spec: of a batch. file: of the user's, for messages."""
        self._model = model
        self._refusals = refusals
        self._file = file
        self._cast = cast_features(model, features_spec)
        # A dict also where there is one feature alone.
        self._spec = features_spec if isinstance(features_spec, dict) else {"": features_spec}
        self._names = sorted(self._spec)  # in the order of the graph's inputs
        self._sources: list[int] | None = None
        self._ids = tf.function(self._trace, input_signature=[features_spec], autograph=False)
        self.calls: list[str] = []
        self.tables: dict[str, Any] = {}
        self.frozen: set[str] = set()

    def trace(self) -> None:
        """Trace the model. Raises what it raises, and UserError for a lookup that is refused."""
        # Called as it is: tf.function would look for it by the features' specs each time.
        self._traced = self._ids.get_concrete_function()
        if all(isinstance(each, tf.TensorSpec) for each in self._spec.values()):
            self._sources = _sources(self._traced.graph, len(self._names))

    def _trace(self, features: Any) -> list[tf.Tensor]:
        features = taken_features(self._model, features)
        if not self._model.built:
            # Keras builds a model by tracing its layers in graphs of its own, whose
            # tensors cannot be returned from here.
            with lookup_with(RecordLookup(self._refusals)):
                self._model(features, training=False)
        record = RecordLookup(self._refusals)
        # Not in training mode: batch statistics and dropout seeds must not move here,
        # and TensorFlow prunes all that remains but the ids.
        with lookup_with(record):
            self._model(features, training=False)
        self.calls = [layer.table for layer in record.layers]
        self._record = record
        for layer in record.layers:
            known = self.tables.setdefault(layer.table, layer)
            if (reason := sharing_refused(known, layer)) is not None:
                self._refusals.refuse(reason)
        self.frozen = set(self.tables) - {each.table for each in record.layers if each.trainable}
        return record.ids

    def check(self) -> None:
        """Raise UserError if ids cannot be known from the features alone."""
        reason = dependencies.refused(
            self._traced.graph,
            self._record.ids,
            [layer.name for layer in self._record.layers],
            {rows.name: table for rows, table in zip(self._record.rows, self.calls, strict=True)},
            self._model.trainable_variables,
        )
        if reason is not None:
            raise UserError(f"{self._file}: {reason}")

    def by_table(self, features: Any) -> list[list[Int64]]:
        """For each table, the ids int64 [n] that each call looks up in `features`.

        Raises UserError for an id that a table cannot have.
        """
        by_name: dict[str, list[Int64]] = {name: [] for name in self.tables}
        if (reason := not_kept(features, self._cast)) is not None:
            self._refusals.refuse(f"{self._file}: {reason}")
        for name, numbers, unsigned in zip(
            self.calls, self._numbers(features), self._record.unsigned, strict=True
        ):
            reason = out_of_range(self.tables[name], numbers)
            if unsigned and reason is None:
                reason = wrapped(self.tables[name], numbers)
            if reason is not None:
                self._refusals.refuse(f"{self._file}: {reason}")
            by_name[name].append(numbers)
        return list(by_name.values())

    def _numbers(self, features: Any) -> list[Int64]:
        """The ids int64 [n] of each call; calls that take the same feature share an array."""
        if self._sources is not None:
            flat = features if isinstance(features, dict) else {"": features}
            if flat.keys() == self._spec.keys() and all(
                getattr(flat[name], "dtype", None) == spec.dtype
                for name, spec in self._spec.items()
            ):
                given = [flat[name] for name in self._names]
                of = {
                    place: np.asarray(given[place]).reshape(-1).astype(np.int64, copy=False)
                    for place in set(self._sources)
                }
                return [of[place] for place in self._sources]
        return [np.asarray(each) for each in self._traced(features)]  # without numpy()'s copy

    def inverses(self, ids: Sequence[TableIds]) -> list[tf.Tensor]:
        """For each call, where its ids are among those pulled, `ids`, one a table."""
        remaining = {name: list(each.inverses) for name, each in zip(self.tables, ids, strict=True)}
        of_calls = [remaining[name].pop(0) for name in self.calls]
        # Tables may share their ids.
        tensors = {id(each): tensor_of(each) for each in of_calls}
        return [tensors[id(each)] for each in of_calls]


def _sources(graph: Any, count: int) -> list[int] | None:
    """For each output of a graph, the index of the input among the first `count` with its numbers.

    None if any output is computed from its inputs by more than a new shape or a cast to int64.
    Where the ids are features as they are, calling the graph would only copy them.
    """
    inputs = {tensor.op.name: place for place, tensor in enumerate(graph.inputs[:count])}
    found = []
    for tensor in graph.outputs:
        operation = tensor.op
        while operation.name not in inputs:
            if operation.type not in RESHAPING and not (
                operation.type == "Cast"
                and operation.get_attr("DstT") == tf.int64
                and operation.inputs[0].dtype in (tf.int32, tf.int64)
            ):
                return None
            operation = operation.inputs[0].op
        found.append(inputs[operation.name])
    return found


def activation(predictions: Any) -> tuple[str, str] | None:
    """The operation that made chances of logits in a graph, and its scope; None if none did."""
    operation = predictions.op
    while operation.type in RESHAPING | {"Cast", "StridedSlice"}:
        operation = operation.inputs[0].op
    if operation.type not in ("Sigmoid", "Softmax"):
        return None
    return operation.type.lower(), f"/{operation.name}".split("/")[-2]
