"""The Python API: a function per command, with the flags as keyword arguments.

    result = shoal.train(model_def="deepfm.custom_model", training_data="train.parquet")

The same jobs as the command line's: separate processes, the same display, the same
job folder.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
from typing import Any

from shoal.client import run_job
from shoal.config import JobConfig
from shoal.display import Display, default_display
from shoal.errors import UserError
from shoal.flags import flag
from shoal.result import JobFailedError, JobResult


def train(*, display: Display | None = None, **fields: Any) -> JobResult:
    """Train a model and return the result of the job.

    display: where progress is shown; by default as on the command line.
    fields: of JobConfig; model_def and training_data are required.

    Raises UserError if the job cannot be started, JobFailedError if it fails or is
    stopped.
    """
    return _run("train", display, fields)


def evaluate(*, display: Display | None = None, **fields: Any) -> JobResult:
    """Evaluate a trained model: `train`, with validation_data and restore_from required."""
    return _run("evaluate", display, fields)


def predict(*, display: Display | None = None, **fields: Any) -> JobResult:
    """Predict: `train`, with prediction_data, restore_from and output required."""
    return _run("predict", display, fields)


def _run(command: str, display: Display | None, fields: dict[str, Any]) -> JobResult:
    result = run_job(_config(command, fields), display or default_display())
    if result.state != "succeeded":
        failure = result.failure or {"message": _unsuccessful(result)}
        text = "\n".join(filter(None, (failure["message"], failure.get("traceback"))))
        raise JobFailedError(text, result)
    return result


def _unsuccessful(result: JobResult) -> str:
    if result.state == "degraded":
        records = result.servers.get("lost_records", 0)
        return f"the job is degraded: the updates of {records:,} records stay lost"
    return f"the job was {result.state}"


def _config(command: str, fields: dict[str, Any]) -> JobConfig:
    """A JobConfig of keyword arguments; UserError for a wrong name or type."""
    known = {
        field.name: type(field.default) if field.default is not dataclasses.MISSING else str
        for field in dataclasses.fields(JobConfig)
        if command in field.metadata.get("commands", ())
    }
    values: dict[str, Any] = {}
    for name, given in fields.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            raise UserError(f"shoal.{command} has no argument {name}{hint}")
        value = os.fspath(given) if isinstance(given, os.PathLike) else given
        kind = known[name]
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if type(value) is not kind:
            raise UserError(f"{flag(name)} must be of type {kind.__name__}, not {value!r}")
        values[name] = value
    if "model_def" not in values:
        raise UserError(f"shoal.{command} needs the argument model_def")
    return JobConfig(command=command, **values)
