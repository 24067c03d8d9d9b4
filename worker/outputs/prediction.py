"""Predictions of a task: to a Parquet part, and to the user's processor if there is one.

Owns which record a prediction belongs to, and what the processor is called with. The
output folder is prediction_output.py's.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pyarrow as pa

from shoal.config.job import JobConfig
from shoal.data.columns import ListColumn
from shoal.errors import UserError
from shoal.files.patience import Patience
from shoal.proto import shoal_pb2 as pb
from shoal.worker.code.module import UserModule, user_code
from shoal.worker.engines import chosen_engine
from shoal.worker.model.learning.outputs import leaves
from shoal.worker.outputs.prediction_output import write_part

OWN_COLUMNS = ("source", "record")
"""Of the predictions, which tell of which record each is."""

PROCESSOR = "PredictionOutputsProcessor"


@dataclass(frozen=True)
class PredictedRecords:
    """Which records predictions belong to: those of `source` from `start` to before `end`.

    position: of the first of them in the whole input, all sources one after the other in
        the order of their names. No other records have it, and a batch that comes again
        has it again.
    """

    source: str
    start: int
    end: int
    position: int

    def __len__(self) -> int:
        return self.end - self.start


class PredictionWriter:
    """Writes the predictions of one worker's tasks for --output.

    Raises UserError or UserCodeError if the module's processor cannot be used.
    """

    def __init__(
        self, config: JobConfig, module: UserModule, worker: int, patience: Patience
    ) -> None:
        """patience: with the storage of --output."""
        self._config = config
        self._patience = patience
        self._module = module
        made = module.prediction_outputs_processor is not None
        self._processor = _Processor(module, worker) if made else None

    def write(self, records: pb.Range, position: int, outputs: list[Any]) -> None:
        """Write the outputs of the batches of a task.

        position: of the first record in the whole input.

        Raises UserError if feed changed the number of records: a prediction would
        then belong to no record.
        """
        columns = _columns(outputs)
        length = records.end - records.start
        feed = self._module.describe(self._module.feed_name)
        for name, column in columns.items():
            if len(column) != length:
                raise UserError(
                    f"{feed} gave {len(column)} elements for the "
                    f"{length} records {records.start} to {records.end - 1} of "
                    f"{records.source} ({name}): in prediction it must keep every record"
                )
        task = PredictedRecords(records.source, records.start, records.end, position)
        if self._processor is not None:
            self._processor.process(task, outputs)
        table = pa.table(
            {
                "source": pa.array([records.source]).take(pa.array(np.zeros(length, np.int64))),
                "record": np.arange(records.start, records.end, dtype=np.int64),
                **columns,
            }
        )
        self._patience.call(lambda: write_part(self._config, position, table))
        # Last: what is committed is not predicted again, but for a death right here.
        if self._processor is not None:
            self._processor.commit(task)


def check_processor(processor: Any, module: UserModule) -> None:
    """Raises UserError for a PredictionOutputsProcessor, or a class of them, without process."""
    processor = getattr(processor, "func", processor)  # with --model-params
    if not callable(getattr(processor, "process", None)):
        raise UserError(f"{PROCESSOR} of {module.path.name} has no method process")


class _Processor:
    """The user's PredictionOutputsProcessor, called with as much as it takes."""

    def __init__(self, module: UserModule, worker: int) -> None:
        assert module.prediction_outputs_processor is not None
        self._module = module
        self._worker = worker
        with user_code(module.describe(PROCESSOR)):
            made = module.prediction_outputs_processor()
        check_processor(made, module)
        self._process = made.process
        self._commit: Callable[[PredictedRecords], Any] | None = getattr(made, "commit", None)
        if self._commit is not None and not callable(self._commit):
            raise UserError(f"{self._describe('commit')} must be a method")
        self._takes_records = _takes(self._process, 3)
        if not self._takes_records and not _takes(self._process, 2):
            raise UserError(
                f"{self._describe('process')} must take (predictions, worker_id) or "
                "(predictions, worker_id, records)"
            )

    def _describe(self, method: str) -> str:
        return self._module.describe(f"{PROCESSOR}.{method}")

    def process(self, task: PredictedRecords, outputs: list[Any]) -> None:
        """All batches of a task, in order."""
        start = task.start
        for output in outputs:
            end = start + int(leaves(output)[0].shape[0])
            position = task.position + start - task.start
            records = PredictedRecords(task.source, start, end, position)
            arguments = (records,) if self._takes_records else ()
            with user_code(self._describe("process")):
                self._process(output, self._worker, *arguments)
            start = end

    def commit(self, task: PredictedRecords) -> None:
        """The task's batches are all processed."""
        if self._commit is not None:
            with user_code(self._describe("commit")):
                self._commit(task)


def _takes(function: Callable[..., Any], count: int) -> bool:
    try:
        inspect.signature(function).bind(*[None] * count)
    except TypeError:
        return False
    return True


def _columns(outputs: list[Any]) -> dict[str, Any]:
    """Outputs of several batches as named Arrow columns."""
    if not outputs:
        return {"prediction": pa.array([], pa.float32())}
    first = outputs[0]
    if isinstance(first, dict):
        names = sorted(first)  # as `leaves` takes them
    elif isinstance(first, list | tuple):
        names = [f"prediction_{i}" for i in range(len(first))]
    else:
        names = ["prediction"]
    flat = [leaves(output) for output in outputs]
    if len(flat[0]) != len(names):
        raise UserError("predictions nested deeper than one dict, list or tuple cannot be written")
    if taken := [name for name in names if name in OWN_COLUMNS]:
        raise UserError(
            f"the output {taken[0]!r} has the name of a column that tells which record a "
            "prediction is of: rename it"
        )
    columns = {}
    for i, name in enumerate(names):
        try:
            columns[name] = _column([each[i] for each in flat])
        except (pa.ArrowException, TypeError) as error:
            raise UserError(f"the output {name!r} cannot be written as Parquet: {error}") from error
    return columns


def _column(parts: list[Any]) -> pa.Array:
    """An output of several batches, of a type that its dtype alone decides."""
    joined = chosen_engine().joined(parts)
    return _lists(joined) if isinstance(joined, ListColumn) else _dense(joined)


def _lists(lists: ListColumn) -> pa.Array:
    """Lists as those of their values' type, also where all are empty."""
    inner = lists.values
    values = _lists(inner) if isinstance(inner, ListColumn) else _dense(inner)
    ends = np.cumsum(lists.row_lengths, dtype=np.int32)
    return pa.ListArray.from_arrays(pa.array(np.concatenate([[0], ends]), pa.int32()), values)


def _dense(values: np.ndarray[Any, Any]) -> pa.Array:
    """An array; its further axes become a list of fixed size."""
    if values.dtype == ml_dtypes.bfloat16:
        values = values.astype(np.float32)  # which has all of its values, and Arrow has no other
    if values.ndim > 1 and values.shape[1:] == (1,):
        values = values[:, 0]
    flat = values.ravel()
    column = pa.array(flat.tolist(), pa.binary()) if flat.dtype == object else pa.array(flat)
    if values.ndim == 1:
        return column
    size = int(np.prod(values.shape[1:]))
    if not size:  # Arrow has no lists of the fixed size 0
        return pa.array([[]] * len(values), pa.list_(column.type))
    return pa.FixedSizeListArray.from_arrays(column, size)
