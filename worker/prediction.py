"""Predictions: to Parquet files, and to the user's processor if there is one.

One file per task, written under a temporary name and renamed when it is whole: a
task done twice because a worker died leaves one file, whichever ended last.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tensorflow as tf

from shoal.errors import UserError
from shoal.proto import shoal_pb2 as pb
from shoal.worker.module import UserModule, user_code

MANIFEST = "_manifest.json"
FORMAT = "shoal-predictions-1"


class PredictionWriter:
    """Writes the predictions of one worker's tasks below `output`."""

    def __init__(self, output: str, module: UserModule, worker: int) -> None:
        self._folder = Path(output)
        self._worker = worker
        self._module = module
        self._processor: Any = None
        if module.prediction_outputs_processor is not None:
            with user_code(module.describe("PredictionOutputsProcessor")):
                self._processor = module.prediction_outputs_processor()
        self._folder.mkdir(parents=True, exist_ok=True)
        manifest = {
            "format": FORMAT,
            "columns": "source, record (position in the source), then one per model output",
        }
        _write_atomically(self._folder / MANIFEST, json.dumps(manifest, indent=2).encode(), worker)

    def write(self, records: pb.Range, outputs: list[Any]) -> None:
        """Write the outputs of the batches of a task.

        Raises UserError if feed changed the number of records: a prediction would
        then belong to no record.
        """
        if self._processor is not None:
            with user_code(self._module.describe("PredictionOutputsProcessor.process")):
                for output in outputs:
                    self._processor.process(output, self._worker)
        columns = _columns(outputs) if outputs else {"prediction": ()}
        length = records.end - records.start
        feed = self._module.describe(self._module.feed_name)
        for name, column in columns.items():
            if len(column) != length:
                raise UserError(
                    f"{feed} gave {len(column)} elements for the "
                    f"{length} records {records.start} to {records.end - 1} of "
                    f"{records.source} ({name}): in prediction it must keep every record"
                )
        table = pa.table(
            {
                "source": pa.array([records.source]).take(pa.array(np.zeros(length, np.int64))),
                "record": np.arange(records.start, records.end, dtype=np.int64),
                **columns,
            }
        )
        # The path's digest, since files in different folders may have one name.
        path_digest = hashlib.sha256(records.source.encode()).hexdigest()[:8]
        name = f"{Path(records.source).name}-{path_digest}-{records.start:012d}.parquet"
        path = self._folder / name
        temporary = path.with_name(f".{name}.worker-{self._worker}")
        pq.write_table(table, temporary)
        os.replace(temporary, path)
        # A range is given to another worker only when the one before is dead: what that
        # one left half written would stay for ever.
        for left in self._folder.glob(f".{glob.escape(name)}.worker-*"):
            left.unlink(missing_ok=True)


def _write_atomically(path: Path, content: bytes, worker: int) -> None:
    temporary = path.with_name(f".{path.name}.worker-{worker}")
    temporary.write_bytes(content)
    os.replace(temporary, path)


def _columns(outputs: list[Any]) -> dict[str, Any]:
    """Outputs of several batches as named Arrow columns."""
    first = outputs[0]
    if isinstance(first, dict):
        names = list(first)
    elif isinstance(first, list | tuple):
        names = [f"prediction_{i}" for i in range(len(first))]
    else:
        names = ["prediction"]
    columns = {}
    for position, name in enumerate(names):
        parts = [tf.nest.flatten(output)[position].numpy() for output in outputs]
        values = np.concatenate(parts)
        if values.ndim > 1 and values.shape[1:] == (1,):
            values = values[:, 0]
        columns[name] = (
            pa.array(values)
            if values.ndim == 1
            else pa.FixedSizeListArray.from_arrays(
                pa.array(values.ravel()), int(np.prod(values.shape[1:]))
            )
        )
    return columns
