"""`shoal.importance`: how much worse a model predicts once the values of a column are mixed up.

L. Breiman, "Random Forests", 2001, for any model: the same records are predicted again with one
column permuted, so nothing is trained. All of it is one prediction job.
"""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.base.modules.by_value import LABEL, WEIGHTS
from shoal.base.words import near_or_all
from shoal.errors import UserError
from shoal.result import JobResult

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    Numbers = npt.NDArray[Any]
    Score = Callable[[Numbers, Numbers], float]

RECORDS = 20_000
"""Records that are predicted at most, each time."""


def importance(
    model: JobResult | Callable[[pa.Table], Any],
    data: Any,
    *,
    label: str = LABEL,
    columns: Sequence[str] | None = None,
    metric: str | Score = "auto",
    repeats: int = 3,
    records: int = RECORDS,
    seed: int = 0,
    **arguments: Any,
) -> pa.Table:
    """Permutation importance: what a metric loses when one column's values change their records.

    model: the result of a training job, whose model predicts in one job; or any function from a
    pyarrow Table with the data's columns to predictions, [records] or [records, classes].
    data: a path, a URL or an object, as `train` takes it. label: its column of labels, numbers.
    columns: those to look at; all but the label by default.
    metric: "auc" or "log_loss" of probabilities, "accuracy", "rmse" or "mae"; "auto" is accuracy
    for a number each class, auc for labels of 0 and 1 with probabilities, else rmse. Or a function
    of labels and predictions that is higher for better ones.
    repeats: how often each column is permuted. records: at most so many, drawn by seed, are used.
    arguments: of `shoal.predict`, such as workers.

    Returns a table with a row for each column, the most important first: column, metric, drop (the
    mean loss of the metric; of rmse, mae and log_loss what they grow by) and stddev, that of the
    repeats. Two columns that tell the same hide each other: each alone loses little.

    Raises UserError, JobFailedError if the prediction fails.
    """
    import numpy as np
    import pyarrow as pa

    for name, value in (("repeats", repeats), ("records", records)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UserError(f"{name} must be a positive integer, not {value!r}")
    random = np.random.default_rng(seed)
    table = _sample(data, model, label, records, random)
    names = [name for name in table.column_names if name != label] if columns is None else columns
    for name in names:
        if name not in table.column_names or name == label:
            raise UserError(
                f"columns: the data have no column {name!r} beside the label"
                f"{near_or_all(name, table.column_names)}"
            )
    labels = _labels(table, label)
    variants = [(name, random.permutation(len(labels))) for name in names for _ in range(repeats)]
    if isinstance(model, JobResult):
        predicted = _by_job(model, _variants(table, variants), arguments)
    elif arguments:
        raise UserError(f"shoal.importance has no argument {min(arguments)} for a function")
    else:
        predicted = (np.asarray(model(each)) for each in _variants(table, variants))
    told, score, losses = "", None, []
    for predictions in predicted:
        if score is None:
            told, score = _metric(metric, labels, predictions)
            whole = score(labels, predictions)
        else:
            losses.append(whole - score(labels, predictions))
    drops = np.reshape(losses, [len(names), repeats])
    order = np.argsort(-drops.mean(axis=1), kind="stable")
    return pa.table(
        {
            "column": pa.array([names[at] for at in order], pa.string()),
            "metric": pa.array([told] * len(names), pa.string()),
            "drop": drops.mean(axis=1)[order],
            "stddev": drops.std(axis=1)[order],
        }
    )


# ------------------------------------------------------------ records


def _sample(
    data: Any, model: Any, label: str, records: int, random: np.random.Generator
) -> pa.Table:
    """Records of the data, drawn without order among all, in their order. Raises UserError."""
    import numpy as np
    import pyarrow as pa

    from shoal.config.groups.data_format import DataFormat
    from shoal.data.frames import is_path, paired, write_data
    from shoal.data.opening import open_reader
    from shoal.data.reader import CHUNK_ROWS
    from shoal.data.samples.analysis import arrow_columns

    said = DataFormat()
    if isinstance(model, JobResult):
        # The job that predicts fills what is missing, and adds the masks.
        said = dataclasses.replace(_config(model).format_of_data, columns=(), fill=(), masks=())
    with tempfile.TemporaryDirectory() as folder:
        if isinstance(data, tuple):
            data = paired("data", data, label, WEIGHTS)
        if not is_path(data):
            path, said = Path(folder) / "data.parquet", DataFormat()
            write_data("data", data, path, lambda _: None)
            data = path
        reader = open_reader(os.fspath(data), "data", data_format=said)
        sources = reader.sources()
        total = sum(source.records for source in sources)
        kept = np.sort(random.choice(total, min(records, total), replace=False, shuffle=False))
        parts, at = [], 0
        for source in sources:
            for start in range(0, source.records, CHUNK_ROWS):
                end = min(start + CHUNK_ROWS, source.records)
                places = kept[np.searchsorted(kept, at) : np.searchsorted(kept, at + end - start)]
                if len(places):
                    chunks = arrow_columns(reader.read(source.name, start, end), source.name)
                    whole = pa.concat_tables([pa.table(dict(chunk)) for chunk in chunks])
                    parts.append(whole.take(places - at))
                at += end - start
    return pa.concat_tables(parts)


def _labels(table: pa.Table, label: str) -> Numbers:
    """The labels. Raises UserError if they are none."""
    import pyarrow as pa

    if label not in table.column_names:
        raise UserError(
            f"label: the data have no column {label!r}{near_or_all(label, table.column_names)}"
        )
    column, kind = table[label], table[label].type
    if pa.types.is_boolean(kind):
        column = column.cast(pa.int64())
    elif not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise UserError(f"label: the column {label!r} is of type {kind}, and labels are numbers")
    if column.null_count:
        raise UserError(f"label: the column {label!r} has {column.null_count:,} missing values")
    labels: Numbers = column.to_numpy()
    return labels


def _variants(table: pa.Table, permuted: Sequence[tuple[str, Numbers]]) -> Iterator[pa.Table]:
    """The records as they are, then with one column of each variant in another order."""
    yield table
    for name, order in permuted:
        at = table.column_names.index(name)
        yield table.set_column(at, table.schema.field(at), table[name].take(order))


# ------------------------------------------------------------ predictions


def _config(result: JobResult) -> Any:
    from shoal.base.disk.job_folder import JobFolder
    from shoal.config.job import JobConfig

    return JobConfig.load(JobFolder(result.job_dir).config)


def _by_job(
    result: JobResult, variants: Iterator[pa.Table], arguments: Mapping[str, Any]
) -> Iterator[Numbers]:
    """The predictions of each variant, by one job for all of them."""
    import pyarrow.parquet as pq

    from shoal.api import predict

    config = _config(result)
    with tempfile.TemporaryDirectory() as folder:
        data, output = Path(folder) / "data.parquet", Path(folder) / "predictions"
        writer, records = None, 0
        for table in variants:
            writer = writer or pq.ParquetWriter(data, table.schema)
            writer.write_table(table)
            records = table.num_rows
        assert writer is not None
        writer.close()
        given: dict[str, Any] = {"verbose": 0, "job_dir": Path(folder) / "job", "batch_size": 4096}
        given |= {name: getattr(config, name) for name in ("fill_missing", "missing_mask")}
        whole = given | dict(arguments)
        predict(restore_from=result, prediction_data=data, output=output, in_order=True, **whole)
        table = pq.read_table(output / "predictions.parquet")
    names = [name for name in table.column_names if name not in ("source", "record")]
    if len(names) > 1:
        raise UserError(
            f"the model has the outputs {', '.join(names)}, and one has importances: give a "
            "function that predicts one of them"
        )
    column = table[names[0]]
    for start in range(0, table.num_rows, records):
        yield array_of(column.slice(start, records).combine_chunks())


def array_of(values: pa.Array) -> Numbers:
    """Predictions as an array [records], or [records, numbers]."""
    rows = len(values)
    while hasattr(values, "flatten") and hasattr(values.type, "value_type"):
        values = values.flatten()
    array: Numbers = values.to_numpy(zero_copy_only=False)
    return array if len(array) == rows else array.reshape(rows, -1)


# ------------------------------------------------------------ metrics


def _metric(metric: str | Score, labels: Numbers, predictions: Numbers) -> tuple[str, Score]:
    """The name of the metric, and a function of labels and predictions that is higher for better.

    Raises UserError.
    """
    if predictions.shape[:1] != labels.shape or predictions.ndim > 2:
        raise UserError(
            f"{len(labels):,} records have predictions of shape {predictions.shape}, which must be "
            "[records] or [records, classes]"
        )
    if not isinstance(metric, str):
        return getattr(metric, "__name__", "metric"), metric
    zero_one = set(labels.tolist()) <= {0, 1}
    if metric == "auto":
        probable = predictions.min() >= 0 and predictions.max() <= 1
        metric = "auc" if zero_one and probable else "rmse"
        metric = "accuracy" if _classes(predictions) else metric
    if metric not in METRICS:
        raise UserError(f"metric: there is no {metric!r}{near_or_all(metric, [*METRICS])}")
    if metric in ("auc", "log_loss") and not (zero_one and len(set(labels.tolist())) == 2):
        raise UserError(f"metric: {metric} needs labels of both 0 and 1")
    if _classes(predictions) and metric != "accuracy":
        raise UserError(f"metric: {metric} is of one number each record, and there are several")
    return metric, METRICS[metric]


def _classes(predictions: Numbers) -> bool:
    return predictions.ndim == 2 and predictions.shape[1] > 1


def _auc(labels: Numbers, predictions: Numbers) -> float:
    from shoal.base.group_auc import auc

    return auc(labels, predictions.ravel())


def _accuracy(labels: Numbers, predictions: Numbers) -> float:
    found = predictions.argmax(1) if _classes(predictions) else predictions.ravel() >= 0.5
    return float((found == labels).mean())


def _log_loss(labels: Numbers, predictions: Numbers) -> float:
    import numpy as np

    least = 1e-7  # of Keras
    chances = np.clip(predictions.ravel().astype(np.float64), least, 1 - least)
    return float(np.log(np.where(labels == 1, chances, 1 - chances)).mean())


def _rmse(labels: Numbers, predictions: Numbers) -> float:
    return -float(((predictions.ravel() - labels) ** 2).mean() ** 0.5)


def _mae(labels: Numbers, predictions: Numbers) -> float:
    return -float(abs(predictions.ravel() - labels).mean())


METRICS: dict[str, Score] = {
    "auc": _auc,
    "log_loss": _log_loss,
    "accuracy": _accuracy,
    "rmse": _rmse,
    "mae": _mae,
}
"""By name, a function of labels and predictions that is higher for better ones."""
