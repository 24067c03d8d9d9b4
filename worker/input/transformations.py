"""What the user's `feed` did with the dataset of records that it got.

Owns the search through the datasets, and the functions traced for them: whether the order is
kept, batches are made, and which columns are read. What is not known counts as read, so a
column that is left out changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

ONE_TO_ONE = frozenset(
    {"_MapDataset", "_ParallelMapDataset", "_PrefetchDataset", "_OptionsDataset"}
)
"""Transformations that give one element for each of theirs, in the same order. Any other (shuffle,
filter, repeat...) makes a batch's place in the range unknown, so progress counts by whole tasks."""

REORDERING = {
    "_ShuffleDataset": "shuffles",
    "_InterleaveDataset": "interleaves",
    "_ParallelInterleaveDataset": "interleaves",
}
"""Transformations after which it is not known which record is which, in words."""

BATCHING = frozenset({"_BatchDataset", "_ParallelBatchDataset", "_PaddedBatchDataset"})
"""Transformations that make batches."""

MAPPED = frozenset(
    {
        "_MapDataset",
        "_ParallelMapDataset",
        "_FlatMapDataset",
        "_InterleaveDataset",
        "_ParallelInterleaveDataset",
    }
)
"""Transformations behind which there is nothing of an element but what their function gave."""

PASSED_ON = frozenset(
    {
        "_BatchDataset",
        "_ParallelBatchDataset",
        "_CacheDataset",
        "_OptionsDataset",
        "_PrefetchDataset",
        "_RepeatDataset",
        "_ShuffleDataset",
        "_SkipDataset",
        "_TakeDataset",
        "_UnbatchDataset",
    }
)
"""Transformations that give elements as they are."""


def reordering(dataset: Any, records: Any) -> str | None:
    """What a transformation between `records` and `dataset` does to their order, if any."""
    pending = [dataset]
    while pending:
        each = pending.pop()
        if each is not records:
            if (what := REORDERING.get(type(each).__name__)) is not None:
                return what
            pending += each._inputs()
    return None


def makes_batches(dataset: Any, records: Any) -> bool:
    """Whether what comes last in `dataset`, but for what is one to one, is making batches."""
    while dataset is not records and type(dataset).__name__ in ONE_TO_ONE:
        (dataset,) = dataset._inputs()
    # A fixed number of records may be meant as one example.
    shapes = [spec.shape for spec in tf.nest.flatten(dataset.element_spec)]
    unknown = all(shape.rank is not None and shape.rank and shape[0] is None for shape in shapes)
    return unknown and dataset is not records and type(dataset).__name__ in BATCHING


def one_to_one(dataset: Any, records: Any) -> bool:
    """Whether `dataset` is `records` transformed element by element, in order."""
    while dataset is not records:
        if type(dataset).__name__ not in ONE_TO_ONE:
            return False
        inputs = dataset._inputs()
        if len(inputs) != 1:
            return False
        dataset = inputs[0]
    return True


def used_columns(dataset: Any, records: Any) -> frozenset[str] | None:
    """The columns that `dataset` is computed from; None if that is not known, or all of them.

    records: a dataset of dicts of columns, of which `dataset` was made.
    """
    steps = []
    while dataset is not records:
        inputs = dataset._inputs()
        if len(inputs) != 1:
            return None
        steps.append(dataset)
        (dataset,) = inputs
    names = sorted(records.element_spec)  # as TensorFlow orders the entries of a dict
    used: set[str] = set()
    for step in reversed(steps):
        kind = type(step).__name__
        if kind in MAPPED:
            read = _read_by(getattr(step, "_map_func", None), names)
            return None if read is None else frozenset(used | read)
        if kind == "_FilterDataset":
            read = _read_by(getattr(step, "_predicate", None), names)
            if read is None:
                return None
            used |= read
        elif kind not in PASSED_ON:
            return None
    return None


def _read_by(wrapped: Any, names: Sequence[str]) -> set[str] | None:
    """Those of the columns that the outputs or effects of a traced function depend on."""
    graph = getattr(getattr(wrapped, "function", None), "graph", None)
    # One input a column, and then what the function captured.
    if graph is None or len(graph.inputs) < len(names):
        return None
    waiting = [each.op for each in graph.outputs] + list(graph.control_outputs)
    seen = {each.name for each in waiting}
    while waiting:
        operation = waiting.pop()
        for each in (*(tensor.op for tensor in operation.inputs), *operation.control_inputs):
            if each.name not in seen:
                seen.add(each.name)
                waiting.append(each)
    return {name for name, each in zip(names, graph.inputs, strict=False) if each.op.name in seen}
