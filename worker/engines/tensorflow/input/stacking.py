"""A traced function of columns, with its stacks of columns made before it is called.

`tf.stack([columns[name] for name in names], axis=1)` is what most feed_batch functions begin
with. Within the function it takes a tensor and an input a column, and a copy of one number at a
time. Made before, a stack is one tensor and one input. What the function gives is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from shoal.native.arrays import aligned_empty
from shoal.worker.engines.tensorflow.tensors import SHARED, tensor_of

Packs = dict[str, tuple[str, ...]]
"""Names of the columns that an operation stacks, by the operation's name."""


def stacked(traced: Any, spec: Mapping[str, Any]) -> StackedFunction | None:
    """`traced` with its stacks of columns made before; None where there are none.

    traced: a concrete function of a dict of columns, of this spec. None also if it holds anything
    that cannot be moved into another function as it is: operations with effects, functions and
    tensors from outside.
    """
    graph = traced.graph
    places: dict[str, tuple[str, int]] = {}  # of inputs by operation: column and component
    inputs = iter(graph.inputs)
    for name in sorted(spec):
        for component, _ in enumerate(tf.nest.flatten(spec[name], expand_composites=True)):
            places[next(inputs).op.name] = name, component
    operations = graph.get_operations()
    if (
        next(inputs, None) is not None
        or any(each.op_def.is_stateful for each in operations)
        or graph.as_graph_def().library.function
        or len(tf.nest.flatten(traced.structured_outputs, expand_composites=True))
        != len(graph.outputs)
    ):
        return None
    packs: Packs = {}
    for each in operations:
        if each.type == "Pack" and each.get_attr("axis") in (1, -1):
            found = [places.get(tensor.op.name, ("", 0))[0] for tensor in each.inputs]
            if all(name and _stackable(spec[name]) for name in found):
                packs[each.name] = tuple(found)
    return StackedFunction(traced, spec, places, packs) if packs else None


def _stackable(spec: Any) -> bool:
    return (
        isinstance(spec, tf.TensorSpec)
        and spec.shape.rank == 1
        and np.dtype(spec.dtype.as_numpy_dtype) in SHARED
    )


class StackedFunction:
    """See `stacked`, which makes it."""

    def __init__(
        self,
        traced: Any,
        spec: Mapping[str, Any],
        places: Mapping[str, tuple[str, int]],
        packs: Packs,
    ) -> None:
        """places: of each input by its operation's name, the column and the component of it."""
        graph = traced.graph
        kept = _needed([each.op for each in graph.outputs], packs)
        used = {name: places[name] for name in kept if name in places}
        packs = {name: columns for name, columns in packs.items() if name in kept}
        self._stacks = {
            columns: np.dtype(spec[columns[0]].dtype.as_numpy_dtype) for columns in packs.values()
        }
        self._names = sorted({column for column, _ in used.values()})
        definition = graph.as_graph_def()
        nodes = [each for each in definition.node if each.name in kept - used.keys() - packs.keys()]
        del definition.node[:]
        definition.node.extend(nodes)
        asked_for = {name.lstrip("^").split(":")[0] for node in nodes for name in node.input}

        def function(stacks: Sequence[tf.Tensor], columns: Mapping[str, Any]) -> Any:
            of = dict(zip(self._stacks, stacks, strict=True))
            tensors = {pack: of[names] for pack, names in packs.items()}
            for place, (name, component) in used.items():
                parts = tf.nest.flatten(columns[name], expand_composites=True)
                tensors[place] = parts[component]
            outputs = tf.graph_util.import_graph_def(
                definition,
                {f"{name}:0": each for name, each in tensors.items() if name in asked_for},
                [each.name for each in graph.outputs],
            )
            return tf.nest.pack_sequence_as(
                traced.structured_outputs, outputs, expand_composites=True
            )

        self._function = tf.function(
            function,
            input_signature=[
                [tf.TensorSpec([None, len(names)], dtype) for names, dtype in self._stacks.items()],
                {name: spec[name] for name in self._names},
            ],
            autograph=False,
        ).get_concrete_function()

    def takes(self, columns: Mapping[str, Any]) -> bool:
        """True if the columns are of the types that the function was traced for."""
        return all(
            isinstance(column := columns.get(name), np.ndarray)
            and column.dtype == dtype
            and column.ndim == 1
            for names, dtype in self._stacks.items()
            for name in names
        )

    def __call__(
        self,
        columns: Mapping[str, Any],
        tensors: Callable[[dict[str, Any]], dict[str, Any]],
    ) -> Any:
        """Call the function on columns that it takes. tensors: makes tensors of some."""
        stacks = []
        for names, dtype in self._stacks.items():
            made = aligned_empty((len(columns[names[0]]), len(names)), dtype)
            np.stack([columns[name] for name in names], axis=1, out=made)
            stacks.append(tensor_of(made))
        return self._function(stacks, tensors({name: columns[name] for name in self._names}))


def _needed(operations: Sequence[Any], ends: Mapping[str, Any]) -> set[str]:
    """The names of these operations and of those that they are computed from, up to `ends`."""
    waiting = list(operations)
    seen = {each.name for each in waiting}
    while waiting:
        each = waiting.pop()
        if each.name in ends:
            continue
        for before in (*(tensor.op for tensor in each.inputs), *each.control_inputs):
            if before.name not in seen:
                seen.add(before.name)
                waiting.append(before)
    return seen
