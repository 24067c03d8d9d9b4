"""Which inputs the rows of a dense layer's kernel belong to, found by a trace of the model.

From the input of each product with a kernel the graph is searched back to the outputs of the
embedding layers, the features, and the results of other operations. Between them may only be
operations that move numbers. These are then run once, on numbers that name their places, so
that the layout is what the graph does and not what it looks like. Owns that search; what follows
from the layouts is shoal/tools/migration/migration_plan.py's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from shoal.checkpoints.migration_terms import Label, Layout
from shoal.errors import Error
from shoal.layers import Embedding, lookup_with
from shoal.worker.code.keras_internals import all_layers, taken_features
from shoal.worker.engines.tensorflow.model.dependencies import SHAPES
from shoal.worker.engines.tensorflow.model.lookups import RecordLookup
from shoal.worker.model.embeddings.keras_embeddings import is_served
from shoal.worker.model.refusals import Refusals

FIRST_INPUT = frozenset(
    {
        *("Identity", "Reshape", "ExpandDims", "Squeeze", "Cast", "Transpose", "StridedSlice"),
        *("Slice", "GatherV2", "StopGradient", "EnsureShape", "Unpack", "SplitV"),
    }
)
"""Operations that move the numbers of their first input."""

PRODUCTS = frozenset({"MatMul", "BatchMatMulV2"})

DIGITS, BASE = 3, 128
"""Places are told by so many numbers below the base, which float16 and bfloat16 hold exactly."""


@dataclass
class _Source:
    """A tensor where the search ends. kind, name, call: as of a Label."""

    tensor: tf.Tensor
    kind: str
    name: str
    call: str = ""


@dataclass
class Layouts:
    """layouts, elsewhere: as migration_terms.Described has them."""

    layouts: dict[str, Layout] = field(default_factory=dict)
    elsewhere: set[str] = field(default_factory=set)


class _UnknownError(Error):
    """The reason why a layout cannot be known."""


def kernel_layouts(model: Any, features_spec: Any) -> Layouts:
    """The layouts of all kernels of dense layers of a built model.

    features_spec: of a batch. Raises what calling the model raises.
    """
    record = RecordLookup(Refusals())
    outputs: list[tuple[Any, tf.Tensor, list[tf.Tensor]]] = []

    def call(features: Any) -> Any:
        with lookup_with(record), _noting(model, record, outputs):
            found = model(taken_features(model, features), training=False)
            return [tf.identity(each) for each in tf.nest.flatten(found)]

    traced = tf.function(
        call, input_signature=[features_spec], autograph=False
    ).get_concrete_function()
    return _Search(model, features_spec, traced.graph, outputs).found()


@contextmanager
def _noting(
    model: Any, record: RecordLookup, outputs: list[tuple[Any, tf.Tensor, list[tf.Tensor]]]
) -> Iterator[None]:
    """Note what the embedding layers of `model` give in the body, with the ids looked up."""
    layers = [
        each
        for each in all_layers(model)
        if (isinstance(each, Embedding) or is_served(each))
        # What a user's subclass makes of the rows is not known.
        and type(each).__module__.partition(".")[0] in ("keras", "keras_rs", "shoal")
    ]

    def noting(layer: Any, call: Any) -> Any:
        def called(*arguments: Any, **named: Any) -> Any:
            before = len(record.ids)
            given = call(*arguments, **named)
            if not isinstance(given, tf.Tensor) or given.shape[-1:] != [layer.output_dim]:
                return given
            # A tensor of this call alone.
            given = tf.identity(given)
            outputs.append((layer, given, record.ids[before:]))
            return given

        return called

    for layer in layers:
        object.__setattr__(layer, "call", noting(layer, layer.call))
    try:
        yield
    finally:
        for layer in layers:
            object.__delattr__(layer, "call")


class _Search:
    def __init__(
        self,
        model: Any,
        features_spec: Any,
        graph: Any,
        outputs: list[tuple[Any, tf.Tensor, list[tf.Tensor]]],
    ) -> None:
        self._graph = graph
        # Calls of one name are numbered in a graph.
        self._root = re.compile(rf"{re.escape(model.name)}(_\d+)?/")
        spec = features_spec if isinstance(features_spec, dict) else {"": features_spec}
        names = [
            name
            for name in sorted(spec)
            for _ in tf.nest.flatten(spec[name], expand_composites=True)
        ]
        self._placeholders = dict(
            zip([each.name for each in graph.inputs[: len(names)]], names, strict=True)
        )
        self._inputs = graph.inputs[: len(names)]
        handles = {id(each.value.handle): each.path for each in model.variables}
        self._variables = {
            inner.name: handles[id(outer)]
            for outer, inner in graph.captures
            if id(outer) in handles
        }
        self._sources = {
            tensor.name: _Source(tensor, "feature", self._placeholders[tensor.name])
            for tensor in self._inputs
        }
        calls: dict[tuple[str, str], int] = {}
        alone = [layer.table for layer, _, _ in outputs]
        for layer, tensor, ids in outputs:
            features = ",".join(sorted({name for each in ids for name in self._features(each)}))
            calls[layer.table, features] = number = calls.get((layer.table, features), -1) + 1
            told = "" if alone.count(layer.table) == 1 else features + f",#{number}" * bool(number)
            self._sources[tensor.name] = _Source(tensor, "table", layer.table, told)

    def found(self) -> Layouts:
        """All layouts, and what is read otherwise."""
        made = Layouts()
        for operation in self._graph.get_operations():
            if operation.type not in PRODUCTS:
                continue
            name = self._kernel(operation.inputs[1])
            if name is None:
                continue
            try:
                layout: Layout = self._layout(operation)
            except _UnknownError as error:
                layout = str(error)
            if made.layouts.setdefault(name, layout) != layout:
                made.layouts[name] = "it is called with several inputs"
        for source in self._sources.values():
            rows_or_numbers = source.kind == "table" or source.tensor.dtype.is_floating
            if rows_or_numbers and self._is_read_elsewhere(source.tensor, made):
                made.elsewhere.add(f"{source.kind} {source.name}")
        return made

    def _features(self, tensor: tf.Tensor) -> set[str]:
        """The features that a tensor is computed from."""
        seen, waiting, found = {tensor.name}, [tensor], set()
        while waiting:
            each = waiting.pop()
            if each.name in self._placeholders:
                found.add(self._placeholders[each.name])
            for source in each.op.inputs:
                if source.name not in seen:
                    seen.add(source.name)
                    waiting.append(source)
        return found

    def _kernel(self, tensor: tf.Tensor) -> str | None:
        """The variable that a factor is, if it is one."""
        while tensor.op.type in ("Identity", "Cast", "ReadVariableOp"):
            tensor = tensor.op.inputs[0]
        return self._variables.get(tensor.name)

    def _layout(self, product: Any) -> tuple[Label, ...]:
        given = product.inputs[0]
        flags = ("transpose_a", "transpose_b") if product.type == "MatMul" else ("adj_x", "adj_y")
        if any(product.get_attr(flag) for flag in flags):
            raise _UnknownError("the product transposes it")
        if given.shape.rank != 2 or given.shape[1] is None:
            raise _UnknownError(
                f"its input has the shape {given.shape}, not one row for each record"
            )
        leaves = self._leaves(given)
        labels: list[Label] = []
        places = {}
        for leaf in leaves:
            shape = leaf.tensor.shape
            if shape.rank is None or shape.rank == 0 or None in shape[1:]:
                raise _UnknownError(f"{leaf.kind} {leaf.name!r} has the shape {shape}")
            own = tuple(shape[1:])
            columns = own[-1] if leaf.kind == "table" and own else 1
            first = len(labels)
            labels += [
                Label(leaf.kind, leaf.name, leaf.call, place // columns, place % columns)
                for place in range(math.prod(own))
            ]
            # From 1 on: 0 is no place.
            places[leaf.tensor.name] = np.arange(first, len(labels)).reshape(1, *own) + 1
        if len(labels) + 1 >= BASE**DIGITS:
            raise _UnknownError(f"it is computed from {len(labels)} numbers")
        moved = self._moved(given, {leaf.tensor.name: leaf.tensor for leaf in leaves}, places)
        if moved.shape != (1, given.shape[1]) or moved.min(initial=1) < 1:
            raise _UnknownError("not all of its input is what was moved there")
        return tuple(labels[place - 1] for place in moved[0])

    def _leaves(self, tensor: tf.Tensor) -> list[_Source]:
        seen, waiting, found = {tensor.name}, [tensor], []
        while waiting:
            each = waiting.pop()
            if each.name in self._sources:
                found.append(self._sources[each.name])
                continue
            inputs = self._moved_by(each.op)
            if not inputs:
                root = self._root.match(each.name)
                name = each.name[root.end() if root else 0 :]
                found.append(_Source(each, "computed", name))
                continue
            for source in inputs:
                if source.name not in seen:
                    seen.add(source.name)
                    waiting.append(source)
        return found

    def _moved_by(self, operation: Any) -> list[tf.Tensor]:
        """The inputs whose numbers an operation moves, to the same places for each batch."""
        kind, inputs = operation.type, list(operation.inputs)
        if kind in FIRST_INPUT:
            moved, others = inputs[:1], inputs[1:]
        elif kind == "Split":
            moved, others = inputs[1:], inputs[:1]
        elif kind in ("ConcatV2", "Pack"):
            moved, others = (inputs, []) if kind == "Pack" else (inputs[:-1], inputs[-1:])
        else:
            return []
        numbers = all(each.dtype.is_floating or each.dtype.is_integer for each in moved)
        return moved if numbers and all(map(self._is_fixed, others)) else []

    def _is_fixed(self, tensor: tf.Tensor) -> bool:
        """True if a tensor follows from constants and shapes alone."""
        seen, waiting = {tensor.name}, [tensor]
        while waiting:
            each = waiting.pop()
            if each.op.type in SHAPES:
                continue
            if each.op.type != "Const" and not each.op.inputs:
                return False
            for source in each.op.inputs:
                if source.name not in seen:
                    seen.add(source.name)
                    waiting.append(source)
        return True

    def _moved(
        self, tensor: tf.Tensor, leaves: dict[str, tf.Tensor], places: dict[str, Any]
    ) -> Any:
        """The origin of the numbers of `tensor`, by running what lies between it and the leaves."""
        total = np.zeros((), np.int64)
        with tf.compat.v1.Session(graph=self._graph) as session:
            for digit in range(DIGITS):
                # Shapes may be taken of any feature.
                feeds = {each.name: _one(each) for each in self._inputs}
                for name, leaf in leaves.items():
                    numbers = places[name] // BASE**digit % BASE
                    feeds[name] = numbers.astype(leaf.dtype.as_numpy_dtype)
                try:
                    found = session.run(tensor, feeds)
                except (tf.errors.OpError, ValueError, TypeError) as error:
                    text = str(error).splitlines()[0]
                    raise _UnknownError(f"its input cannot be followed: {text}") from error
                total = total + np.asarray(found).astype(np.int64) * BASE**digit
        return total

    def _is_read_elsewhere(self, tensor: tf.Tensor, made: Layouts) -> bool:
        """True if `tensor` feeds anything but kernels of known layout, and shapes."""
        outputs = {each.name for each in self._graph.outputs}
        seen, waiting = {tensor.name}, [tensor]
        while waiting:
            each = waiting.pop()
            if each.name in outputs:
                return True
            for operation in each.consumers():
                if operation.type in SHAPES:
                    continue
                if operation.type in PRODUCTS:
                    name = self._kernel(operation.inputs[1])
                    known = name is not None and not isinstance(made.layouts[name], str)
                    if known and operation.inputs[0].name == each.name:
                        continue
                    return True
                if each.name not in {moved.name for moved in self._moved_by(operation)}:
                    return True
                for output in operation.outputs:
                    if output.name not in seen:
                        seen.add(output.name)
                        waiting.append(output)
        return False


def _one(feature: tf.Tensor) -> Any:
    """Any value of a feature, for one record."""
    shape = [size or 1 for size in feature.shape] if feature.shape.rank is not None else [1]
    return np.full(shape, b"" if feature.dtype == tf.string else 0, feature.dtype.as_numpy_dtype)
