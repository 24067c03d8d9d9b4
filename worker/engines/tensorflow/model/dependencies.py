"""The dependencies of the ids in a traced model.

Ids are computed ahead of the step, before any row or newer weight is there. So they must
follow from the features alone; a model in which they do not is refused here, where it
would otherwise be trained on rows of other ids. Owns the search through the graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

SHAPES = frozenset({"Shape", "ShapeN", "Size", "Rank", "ZerosLike", "OnesLike"})
"""Operations that do not look at the values they are given."""

DRAWN = ("Random", "Multinomial", "TruncatedNormal")
"""Parts of the names of operations that draw numbers."""


def refused(
    graph: Any,
    ids: Sequence[tf.Tensor],
    layers: Sequence[str],
    rows: Mapping[str, str],
    variables: Iterable[Any],
) -> str | None:
    """The reason why ids cannot be known before the step; None if they follow from the features.

    graph: the traced function's. ids: of each embedding call, tensors of it.
    layers: the name of the layer of each call. rows: name of a tensor that holds rows ->
    the name of their table. variables: Keras variables that training changes.
    """
    handles = {id(variable.value.handle): variable.path for variable in variables}
    captured = {
        inner.name: handles[id(outer)] for outer, inner in graph.captures if id(outer) in handles
    }
    drawing = _drawing_functions(graph)
    for layer, tensor in zip(layers, ids, strict=True):
        for each in _sources(tensor):
            if (table := rows.get(each.name)) is not None:
                return _message(layer, f"the rows of table {table!r}")
            if (variable := captured.get(each.name)) is not None:
                return _message(layer, f"the variable {variable}, which is being trained")
            operation = each.op
            if _draws(operation.type) or drawing.intersection(_called(operation)):
                return _message(layer, "random numbers drawn inside the model")
    return None


def _message(layer: str, what: str) -> str:
    return (
        f"the ids of embedding {layer!r} are computed from {what}: shoal looks ids up before "
        "the step, so they must follow from the features alone; compute them in feed"
    )


def _sources(tensor: tf.Tensor) -> Iterator[tf.Tensor]:
    """`tensor` and all that its value is computed from."""
    seen = {tensor.name}
    waiting = [tensor]
    while waiting:
        each = waiting.pop()
        yield each
        if each.op.type in SHAPES:
            continue
        for source in each.op.inputs:
            if source.name not in seen:
                seen.add(source.name)
                waiting.append(source)


def _draws(kind: str) -> bool:
    return any(part in kind for part in DRAWN)


def _called(operation: Any) -> set[str]:
    """Names of the functions that an operation (a condition, a loop, a call) runs."""
    return _functions_of(operation.node_def)


def _functions_of(node: Any) -> set[str]:
    names: set[str] = set()
    for value in node.attr.values():
        names.update(each.name for each in (value.func, *value.list.func) if each.name)
    return names


def _drawing_functions(graph: Any) -> set[str]:
    """Names of the graph's functions that draw numbers, in themselves or in what they call."""
    calls: dict[str, set[str]] = {}
    drawing = set()
    for function in graph.as_graph_def().library.function:
        name = function.signature.name
        calls[name] = set().union(*(_functions_of(node) for node in function.node_def), set())
        if any(_draws(node.op) for node in function.node_def):
            drawing.add(name)
    while more := {name for name in calls if name not in drawing and calls[name] & drawing}:
        drawing |= more
    return drawing
