"""Data that a Python program holds, written to a Parquet file for the workers.

Owns what is taken for data: pandas and Polars DataFrames, pyarrow Tables, Datasets and streams,
tf.data Datasets, and dicts of arrays. Neither pandas nor TensorFlow is imported here: who has an
object of theirs has imported them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.base.modules.by_value import FEATURES, LABEL
from shoal.base.words import counted, size
from shoal.errors import UserError

if TYPE_CHECKING:
    import pyarrow as pa

GROUP_ROWS = 65_536
"""Records in a row group of the file: a task reads the groups that it touches."""

BATCH = 1024
"""Records that are taken at once from a tf.data.Dataset that is not batched."""

INFINITE = -1
"""The cardinality of a tf.data.Dataset without an end."""


def is_path(value: Any) -> bool:
    """True if a value names data, and is no data itself."""
    return value is None or isinstance(value, str | bytes | int | float | os.PathLike)


@dataclass(frozen=True)
class _Records:
    """Records to be written. rows, bytes: in memory; None where not known."""

    batches: Iterable[pa.RecordBatch]
    rows: int | None = None
    bytes: int | None = None


def write_data(
    name: str, value: Any, path: Path, tell: Callable[[str], None], most: int | None = None
) -> None:
    """Write data to a Parquet file, and tell their size first.

    name: of the argument. most: how many records are written; all of them where None.
    Raises UserError naming the argument if they are no data, have no record, or a type that
    Parquet has not; OSError if the file cannot be written.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    from shoal.data.plain_types import of_schema, plain_schema

    rows = 0
    try:
        records = _records(name, value)
        if most is None:
            tell(f"{name}: {_size(records)} to be written to the job folder as Parquet")
        writer: pq.ParquetWriter | None = None
        try:
            for batch in records.batches:
                # Only newer versions of Arrow read some types.
                table = pa.Table.from_batches([of_schema(batch, plain_schema(batch.schema))])
                table = table if most is None else table.slice(0, most - rows)
                writer = writer or pq.ParquetWriter(path, table.schema)
                writer.write_table(table, row_group_size=GROUP_ROWS)
                rows += table.num_rows
                if most is not None and rows >= most:
                    break
        finally:
            if writer is not None:
                writer.close()
    except (pa.ArrowException, ArithmeticError, TypeError, ValueError) as error:
        # Arrow tells of a column in a second text.
        why = ": ".join(map(str, reversed(error.args))) or str(error)
        raise UserError(f"{name}: {_kind(value)} cannot be written as Parquet: {why}") from error
    if not rows:
        raise UserError(f"{name}: {_kind(value)} has no records")


def paired(name: str, value: Any, label: str, weight: str) -> pa.Table:
    """A tuple (x, y) or (x, y, sample_weight), as Keras's `fit` takes them, as one table.

    name: of the argument. label, weight: the columns of y and sample_weight. An array x is the
    column `FEATURES`. Raises UserError if it is of another form, or its parts differ in length.
    """
    import numpy as np
    import pyarrow as pa

    if not 2 <= len(value) <= 3:
        raise UserError(f"{name}: give (x, y) or (x, y, sample_weight), not {len(value)} parts")
    x, *others = value
    x = {FEATURES: x} if isinstance(x, np.ndarray) else x
    try:
        table = pa.Table.from_batches(_records(f"{name}: x", x).batches)
        for column, part in zip((label, weight), others, strict=False):
            if column in table.column_names:
                raise UserError(f"{name}: x has a column {column!r} already: rename it")
            array = part.to_arrow() if hasattr(part, "to_arrow") else _listed(part)
            table = table.append_column(column, pa.array(array) if array is part else array)
    except (pa.ArrowException, ArithmeticError, TypeError, ValueError) as error:
        raise UserError(f"{name}: x, y cannot be put side by side: {error}") from error
    return table


def split_data(name: str, value: Any, fraction: float) -> tuple[pa.Table, pa.Table]:
    """Data without its last records, and these, as Keras's validation_split divides them.

    fraction: how many of the records are the last ones, between 0 and 1. Raises UserError if that
    leaves no record in one of the two, or as `write_data`.
    """
    import pyarrow as pa

    if not 0 < fraction < 1:
        raise UserError(f"validation_split must be between 0 and 1, not {fraction:g}")
    try:
        table = pa.Table.from_batches(_records(name, value).batches)
    except (pa.ArrowException, ArithmeticError, TypeError, ValueError) as error:
        raise UserError(f"{name}: {_kind(value)} cannot be split: {error}") from error
    first = math.floor(table.num_rows * (1 - fraction))
    if first in (0, table.num_rows):
        raise UserError(
            f"validation_split: {fraction:g} of {counted(table.num_rows, 'record')} leaves none "
            f"for {'validation' if first else 'training'}"
        )
    return table.slice(0, first), table.slice(first)


def _size(records: _Records) -> str:
    known = [] if records.rows is None else [counted(records.rows, "record")]
    known += [] if records.bytes is None else [size(records.bytes) + " in memory"]
    return ", ".join(known) or "records of unknown number"


def _kind(value: Any) -> str:
    module, name = type(value).__module__.partition(".")[0], type(value).__name__
    return f"a {name}" if module == "builtins" else f"a {module}.{name}"


def _records(name: str, value: Any) -> _Records:
    import pyarrow as pa
    import pyarrow.dataset

    kind = type(value).__module__.partition(".")[0]
    if kind == "pandas" and isinstance(getattr(value, "columns", None), Iterable):
        named = [each for each in value.index.names if each is not None]
        if named and not set(named) <= set(value.columns):
            raise UserError(
                f"{name}: the index {named[0]!r} of the DataFrame is no column, and would be left "
                "out: make it one with reset_index(), or leave it out with "
                "reset_index(drop=True)"
            )
        _check_names(name, [str(each) for each in value.columns])
        value = pa.Table.from_pandas(value, preserve_index=False)
    elif isinstance(value, Mapping):
        _check_names(name, [str(column) for column in value])
        value = pa.table({str(column): _listed(each) for column, each in value.items()})
    if isinstance(value, pa.RecordBatch):
        value = pa.Table.from_batches([value])
    if isinstance(value, pa.Table):
        _check_names(name, value.column_names)
        return _Records(value.to_batches(GROUP_ROWS), value.num_rows, value.nbytes)
    if isinstance(value, pyarrow.dataset.Dataset):
        _check_names(name, value.schema.names)
        return _Records(value.to_batches(), value.count_rows())
    if hasattr(value, "element_spec") and hasattr(value, "as_numpy_iterator"):
        return _Records(_of_tensorflow(name, value), _known_rows(value))
    if hasattr(value, "__arrow_c_stream__") and type(value).__name__ != "Series":
        reader = pa.RecordBatchReader.from_stream(value)
        _check_names(name, reader.schema.names)
        held = getattr(value, "estimated_size", None)
        rows = len(value) if hasattr(value, "__len__") else None
        return _Records(reader, rows, int(held()) if callable(held) else None)
    raise UserError(
        f"{name} must be a path, a URL, a DataFrame of pandas or Polars, a pyarrow Table or "
        f"Dataset, a tf.data.Dataset, or a dict of arrays, not {_kind(value)}"
    )


def _check_names(name: str, columns: Sequence[str]) -> None:
    """Raises UserError if two columns have one name."""
    from shoal.data.plain_types import name_there_twice

    if twice := name_there_twice(columns):
        raise UserError(f"{name}: {twice}: rename one of the columns")


def _listed(values: Any) -> Any:
    """A column of a dict as Arrow takes it: arrays of two dimensions are lists of one length."""
    import numpy as np

    return _column(values) if isinstance(values, np.ndarray) else values


def _known_rows(dataset: Any) -> int | None:
    count = int(dataset.cardinality())
    return count if count >= 0 and not _batched(dataset.element_spec) else None


def _of_tensorflow(name: str, dataset: Any) -> Iterator[pa.RecordBatch]:
    """The elements of a tf.data.Dataset: dicts of tensors, or pairs of such a dict and labels."""
    import pyarrow as pa

    if int(dataset.cardinality()) == INFINITE:
        raise UserError(f"{name}: the tf.data.Dataset has no end: give it one with take()")
    _named(name, dataset.element_spec)
    whole = dataset if _batched(dataset.element_spec) else dataset.batch(BATCH)
    for element in whole.as_numpy_iterator():
        columns = {column: _column(each) for column, each in _named(name, element).items()}
        yield pa.RecordBatch.from_pydict(columns)


def _batched(spec: Any) -> bool:
    """True if an element is a batch: the first axis of each tensor has no fixed length."""
    features, *labels = spec if isinstance(spec, tuple) else (spec,)
    tensors = [*(features.values() if isinstance(features, Mapping) else [features]), *labels]
    shapes = [getattr(each, "shape", None) for each in tensors]
    return all(shape is not None and shape.rank and shape[0] is None for shape in shapes)


def _named(name: str, element: Any) -> dict[str, Any]:
    """An element's tensors by column, those of its second part under `LABEL`.

    Raises UserError if it is of another form.
    """
    features, *labels = element if isinstance(element, tuple) else (element,)
    simple = isinstance(features, Mapping) and len(labels) <= 1
    if not simple or any(isinstance(each, Mapping | list | tuple) for each in labels):
        raise UserError(
            f"{name}: the elements of a tf.data.Dataset must be dicts of tensors by column, or "
            "pairs of such a dict and a tensor of labels"
        )
    if labels and LABEL in features:
        raise UserError(f"{name}: the features have {LABEL!r}, which is the labels' column")
    return {**features, **({LABEL: labels[0]} if labels else {})}


def _column(array: Any) -> pa.Array:
    """An array of records, [n] or [n, width], as a column. Raises ValueError for other shapes."""
    import pyarrow as pa

    if getattr(array, "ndim", 0) == 1:
        return pa.array(_values(array))
    if getattr(array, "ndim", 0) == 2:
        return pa.FixedSizeListArray.from_arrays(pa.array(_values(array.ravel())), array.shape[1])
    raise ValueError(f"a column must have the shape [records] or [records, length], not {array!r}")


def _values(array: Any) -> Any:
    """An array of one dimension as Arrow takes it: it cuts NumPy's texts and bytes at a NUL."""
    return array.tolist() if array.dtype.kind in "OSU" else array
