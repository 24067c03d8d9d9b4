"""The Python API: a function per command, with the flags as keyword arguments.

    result = shoal.train(model_def="deepfm.custom_model", training_data="train.parquet")

The same jobs as the command line's: separate processes, the same display, the same
job folder. Their arguments, help and messages are signatures.py's.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from shoal.base.words import near
from shoal.client.display import Display, default_display
from shoal.client.inspection import CheckReport, checked_report
from shoal.client.local import run_job
from shoal.config.flags import kind_of
from shoal.config.job import JobConfig, fields_of
from shoal.config.signatures import checked, documented, in_python
from shoal.errors import UserError
from shoal.result import JobFailedError, JobResult


@documented("train")
def train(*, display: Display | None = None, **fields: Any) -> JobResult:
    """Train a model and return the result of the job.

    model_def and training_data are required. display: where progress is shown; by default as
    on the command line.

    Raises UserError if the job cannot be started, JobFailedError if it fails or is
    stopped.
    """
    return _run("train", display, fields)


@documented("evaluate")
def evaluate(*, display: Display | None = None, **fields: Any) -> JobResult:
    """Evaluate a trained model, as `train`; validation_data and restore_from are required."""
    return _run("evaluate", display, fields)


@documented("predict")
def predict(*, display: Display | None = None, **fields: Any) -> JobResult:
    """Predict, as `train`; prediction_data, restore_from and output are required."""
    return _run("predict", display, fields)


@documented("check")
def check(**fields: Any) -> CheckReport:
    """Look at a model and its data without a job: what would live where, what is unsupported.

    With training_data, one batch is read, trained and evaluated. The report tells it when it is
    shown or printed, and is true if nothing is at fault. Raises UserError for what is found
    before the model is built.
    """
    with _in_python():
        return checked_report(_config("check", fields))


def _run(command: str, display: Display | None, fields: dict[str, Any]) -> JobResult:
    with _in_python():
        result = run_job(_config(command, fields), display or default_display())
    if result.state != "succeeded":
        failure = result.failure or {"message": _unsuccessful(result)}
        text = "\n".join(filter(None, (in_python(failure["message"]), failure.get("traceback"))))
        raise JobFailedError(text, result)
    return result


@contextmanager
def _in_python() -> Iterator[None]:
    """A wrong input is told by the names of the arguments."""
    try:
        yield
    except UserError as error:
        # Not the chain of what led to it: the message says what to do.
        raise UserError(in_python(str(error))) from None


def _unsuccessful(result: JobResult) -> str:
    if result.state == "degraded":
        records = result.servers.get("lost_records", 0)
        return f"the job is degraded: the updates of {records:,} records stay lost"
    return f"the job was {result.state}"


def _config(command: str, fields: dict[str, Any]) -> JobConfig:
    """A JobConfig of keyword arguments; UserError for a wrong name or type."""
    known = {field.name: field for field in fields_of(command)}
    values: dict[str, Any] = {}
    for name, given in fields.items():
        if name not in known:
            raise UserError(f"shoal.{command} has no argument {name}{near(name, known, most=1)}")
        value = os.fspath(given) if isinstance(given, os.PathLike) else given
        values[name] = checked(command, name, value, kind_of(known[name]))
    if "model_def" not in values:
        raise UserError(f"shoal.{command} needs the argument model_def")
    return JobConfig(command=command, **values)
