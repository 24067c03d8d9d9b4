"""Predictions beside the rows that they are of, labels as numbers, and bars of importances."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from shoal.errors import UserError
from shoal.sql import module
from shoal.sql.databases.engine import PIECE, Saved
from shoal.sql.jobs.registry import Model
from shoal.sql.models.plan import Plan

BAR = 30
"""Characters of the longest bar."""

_PLACES = ("source", "record")
"""Columns of predictions that tell which record they are of."""


class _Rows:
    """Rows of a Parquet file, some after the other."""

    def __init__(self, file: pq.ParquetFile, columns: Sequence[str]) -> None:
        self._batches = file.iter_batches(PIECE, columns=list(columns))
        self._left: pa.Table | None = None

    def take(self, count: int) -> pa.Table:
        """The next `count` rows."""
        parts, needed = [] if self._left is None else [self._left], count
        while sum(part.num_rows for part in parts) < needed:
            parts.append(pa.Table.from_batches([next(self._batches)]))
        table = pa.concat_tables(parts)
        self._left = table.slice(count)
        return table.slice(0, count)


def answered(
    model: Model, data: Saved, predictions: Path, column: str
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """The rows of a SELECT with the predictions, and their schema.

    A model of several outputs has a column for each, COLUMN_OUTPUT. A prediction takes the place
    of a column of its name, such as the label of known rows. Raises UserError if one is missing.
    """
    from shoal.api.importance import array_of  # late: a statement of SQL alone needs no jobs

    selected, predicted = pq.ParquetFile(data.path), pq.ParquetFile(predictions)
    if predicted.metadata.num_rows != data.records:
        raise UserError(
            f"{data.records:,} rows have {predicted.metadata.num_rows:,} predictions: shoal.FLAG="
            "value of WITH must not leave out bad records"
        )
    outputs = [name for name in predicted.schema_arrow.names if name not in _PLACES]
    names = {name: column if len(outputs) == 1 else f"{column}_{name}" for name in outputs}
    plan = None if model.module else Plan.from_json(model.plan)

    def rows() -> Iterator[pa.RecordBatch]:
        answers = _Rows(predicted, outputs)
        for batch in selected.iter_batches(PIECE):
            found = answers.take(batch.num_rows)
            arrays = dict(zip(batch.schema.names, batch.columns, strict=True))
            for name, new in names.items():
                value = found[name].combine_chunks()
                value = value.chunk(0) if isinstance(value, pa.ChunkedArray) else value
                if plan is not None:
                    value = module.answers(plan, model.algorithm, array_of(value))
                arrays[new] = value
            yield pa.RecordBatch.from_pydict(arrays)

    made = rows()
    first = next(made)
    return first.schema, itertools.chain([first], made)


def with_numbers(model: Model, data: Saved, path: Path) -> Path:
    """A file of the rows whose label is a number: of a class its place. Raises UserError."""
    if model.module:
        return data.path
    plan = Plan.from_json(model.plan)
    at = data.schema.names.index(model.label)
    writer: pq.ParquetWriter | None = None
    try:
        for batch in pq.ParquetFile(data.path).iter_batches(PIECE):
            labels = module.numbers(plan, model.algorithm, batch.column(at))
            if missing := labels.null_count - batch.column(at).null_count:
                raise UserError(
                    f"{missing:,} rows have a {model.label} that model {model.name} does not know"
                )
            table = pa.Table.from_batches([batch]).set_column(at, model.label, labels)
            writer = writer or pq.ParquetWriter(path, table.schema)
            writer.write_table(table)
    finally:
        if writer is not None:
            writer.close()
    return path


def bars(values: Sequence[float]) -> pa.Array:
    """A bar for each value; the largest has BAR characters, and nothing below 0 has any."""
    most = max([*values, 0.0]) or 1.0
    return pa.array(["█" * round(BAR * max(value, 0.0) / most) for value in values])
