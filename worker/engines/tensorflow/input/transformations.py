"""The transformations that the user's `feed` applied to the dataset of records.

Owns the search through the datasets, and the functions traced for them: what a `feed` may do,
whether the order is kept, batches are made, and which columns are read. What is not known counts as
read, so a column that is left out changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

ALLOWED = {
    "_MapDataset": "",
    "_ParallelMapDataset": "",
    "_PrefetchDataset": "",
    "_OptionsDataset": "",
    "_RestructuredDataset": "",
    "_ShuffleDataset": "shuffles",
    "_InterleaveDataset": "interleaves",
    "_ParallelInterleaveDataset": "interleaves",
    "_FilterDataset": "filters",
    "_FlatMapDataset": "has flat_map()",
    "_RepeatDataset": "repeats",
    "_BatchDataset": "batches",
    "_ParallelBatchDataset": "batches",
    "_PaddedBatchDataset": "batches",
    "_DenseToRaggedDataset": "batches",
    "_UnbatchDataset": "unbatches",
}
"""TensorFlow's classes of what may stand between records and elements, each a function of the
records of one task alone. With what is empty, there is one element for each of theirs, in the same
order; else this says in words why it is not known which record is which, so that progress counts
by whole tasks. Any other class is refused: it may keep something from one task to the next."""

_OF_A_TASK = (
    "sees the records of one task, not all data. Choose records with filter(), or in the data files"
)
_KEPT = (
    "keeps the records of the first task, and gives them again for each later one. Remove it: "
    "shoal reads the records of each task itself"
)
_COUNTED = (
    "begins anew with each task, and no worker knows how many records others had. Compute what is "
    "needed from the record, in map()"
)
_TWO_INPUTS = (
    "has more than one input. Make what you need of each record with map(), or several elements of "
    "it with flat_map()"
)
_GROUPED = (
    "groups records that happen to be in one task. shoal makes the batches (--batch-size); "
    "code for whole batches belongs in feed_batch(columns, mode, metadata)"
)

REFUSED = {
    "CacheDataset": ("cache()", _KEPT),
    "_CacheDataset": ("cache()", _KEPT),
    "_SnapshotDataset": ("snapshot()", _KEPT),
    "_SaveDataset": ("save()", _KEPT),
    "_TakeDataset": ("take()", _OF_A_TASK),
    "_TakeWhileDataset": ("take_while()", _OF_A_TASK),
    "_SkipDataset": ("skip()", _OF_A_TASK),
    "_ShardDataset": ("shard()", _OF_A_TASK),
    "_UniqueDataset": ("unique()", _OF_A_TASK),
    "_ScanDataset": ("scan()", _COUNTED),
    "_ZipDataset": ("enumerate() or zip()", _TWO_INPUTS),
    "_ConcatenateDataset": ("concatenate()", _TWO_INPUTS),
    "_DirectedInterleaveDataset": ("sample_from_datasets()", _TWO_INPUTS),
    "_WindowDataset": ("window()", _GROUPED),
    "_RebatchDataset": ("rebatch()", _GROUPED),
    "_GroupByWindowDataset": ("group_by_window() or bucket_by_sequence_length()", _GROUPED),
    "_IgnoreErrorsDataset": (
        "ignore_errors()",
        "also hides data that cannot be read. Remove it: with --max-bad-records, shoal leaves out "
        "records that raise, and counts them",
    ),
}
"""The best known of all others: what the user calls each, and what is wrong with it."""

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
        "_OptionsDataset",
        "_PrefetchDataset",
        "_RepeatDataset",
        "_ShuffleDataset",
        "_UnbatchDataset",
    }
)
"""Transformations that give elements as they are."""


def refusal(dataset: Any, records: Any) -> str | None:
    """The reason why `dataset` may not be run on any task; None if it may.

    Such a sentence lacks its subject, the function of the user's.
    """
    while dataset is not records:
        kind = type(dataset).__name__
        if kind not in ALLOWED:
            if not dataset._inputs():
                return (
                    "returned a dataset that is not made of the records it got: transform the "
                    "dataset that it gets as its first argument"
                )
            name, wrong = REFUSED.get(
                kind,
                (kind.strip("_"), "is nothing that shoal knows. Use map(), filter() or flat_map()"),
            )
            return f"uses {name}, which {wrong}"
        if kind == "_RepeatDataset" and int(dataset._count) < 0:
            return "uses repeat() without a count, which never ends. Use --epochs for epochs"
        (dataset,) = dataset._inputs()
    return None


def makes_batches(dataset: Any, records: Any) -> bool:
    """True if making batches is the last step of `dataset`, apart from one-to-one steps."""
    while dataset is not records and ALLOWED[type(dataset).__name__] == "":
        (dataset,) = dataset._inputs()
    # A fixed number of records may be meant as one example.
    shapes = [spec.shape for spec in tf.nest.flatten(dataset.element_spec)]
    unknown = all(shape.rank is not None and shape.rank and shape[0] is None for shape in shapes)
    return unknown and dataset is not records and type(dataset).__name__ in BATCHING


def misaligned(dataset: Any, records: Any) -> str | None:
    """The step of `dataset` that may misalign its n-th element and the n-th of `records`, in words.

    None if it is one to one, in order. `dataset` is one without `refusal`.
    """
    if dataset.options().deterministic is False:
        return "sets deterministic to False"
    while dataset is not records:
        if getattr(dataset, "_deterministic", None) == "false":
            return "uses deterministic=False"
        if what := ALLOWED[type(dataset).__name__]:
            return what
        (dataset,) = dataset._inputs()
    return None


def used_columns(dataset: Any, records: Any) -> frozenset[str] | None:
    """The columns that `dataset` is computed from; None if that is not known, or all of them.

    records: a dataset of dicts of columns, of which `dataset` was made.
    """
    steps = []
    while dataset is not records:
        steps.append(dataset)
        (dataset,) = dataset._inputs()
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
    """The columns that the outputs or effects of a traced function depend on; None if unknown."""
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
