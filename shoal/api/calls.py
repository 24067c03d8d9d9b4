"""The functions of the Python API, from their arguments to a job."""

from __future__ import annotations

import dataclasses
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from shoal.api.jobs import Job
from shoal.base.disk.job_folder import JobFolder
from shoal.base.modules.by_value import FILES, LABEL, MODEL_DEF, MODULE, WEIGHTS
from shoal.base.modules.engines import AUTO
from shoal.client import by_value
from shoal.client.found.claim import numbered
from shoal.client.found.following import Interruptions
from shoal.client.run.inspection import CheckReport, checked_report
from shoal.client.run.local import run_job
from shoal.client.show.display import Display
from shoal.client.show.notebook import default_display
from shoal.cluster import given_model
from shoal.config.flags import kind_of
from shoal.config.job import CHECK_FLAGS, JobConfig, fields_of
from shoal.config.signatures import checked, in_python
from shoal.data.frames import is_path, paired, split_data, write_data
from shoal.errors import UserError
from shoal.result import JobFailedError, JobResult

AnyPath = str | os.PathLike[str]
"""A path, a pattern or a URL."""

Data = Any
"""A path, or an object with records: what `data/frames.py` takes. Its type would import it."""

DATA = ("training_data", "validation_data", "prediction_data")

OUTPUT = "output"
"""Folder in that of a job whose model was given by value, where its export is by default."""


def begun(command: str, arguments: dict[str, Any]) -> JobResult | Job:
    """Run a job to its end, or, without the argument wait, until it goes on by itself."""
    return run(command, arguments) if arguments.pop("wait") else start(command, arguments)


def run(command: str, arguments: dict[str, Any]) -> JobResult:
    """Run a job to its end. arguments: of the function, by name.

    Raises UserError if the job cannot be started, JobFailedError if it does not succeed.
    """
    with in_python_words():
        shown = default_display(arguments.pop("verbose"))
        display: Display = arguments.pop("display") or shown
        given = _given(command, arguments)
    return _run(given, display)


def start(command: str, arguments: dict[str, Any]) -> Job:
    """Start a job as `run` does, and return while it goes on."""
    with in_python_words():
        arguments.pop("verbose")  # nothing is shown
        if arguments.pop("display") is not None:
            raise UserError("display is not for wait=False: the job's status() tells how it goes")
        given = _given(command, arguments)
    return Job(partial(_run, given))


def _run(given: _Given, display: Display, interruptions: Interruptions | None = None) -> JobResult:
    with (
        in_python_words(),
        _written(given, _beside(given.config), display) as (config, written),
        _in_its_place(config, given) as config,
    ):
        return succeeded(run_job(config, display, interruptions, written))


def succeeded(result: JobResult) -> JobResult:
    """The result of a job that has succeeded. Raises JobFailedError of any other."""
    if result.state != "succeeded":
        failure = result.failure or {"message": _unsuccessful(result)}
        text = "\n".join(filter(None, (in_python(failure["message"]), failure.get("traceback"))))
        raise JobFailedError(text, result)
    return result


def checking(arguments: dict[str, Any]) -> CheckReport:
    """The report of `shoal.check`. Raises UserError for what is found before the model is built."""
    with in_python_words():
        given = _given("check", arguments)
        looked_at = {name: getattr(given.config, name) for name in ("command", *CHECK_FLAGS)}
        given = dataclasses.replace(given, config=JobConfig(**looked_at))
        # One batch is read.
        most = given.config.batch_size
        with _written(given, None, default_display(), most) as (config, _):
            report = checked_report(config)
        if not given.frames:
            return report
        # Not by the file that is gone again.
        faults = report.faults
        for name in given.frames:
            faults = faults.replace(getattr(config, name), name)
        return dataclasses.replace(report, faults=in_python(faults))


@contextmanager
def in_python_words() -> Iterator[None]:
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


# ------------------------------------------------------------ arguments


@dataclass(frozen=True)
class _Given:
    """The arguments of a call.

    model: those given by value. kept: the folder of the model of an earlier job, in their place.
    frames: data that are no paths.
    """

    config: JobConfig
    model: dict[str, Any]
    kept: Path | None
    frames: dict[str, Any]

    @property
    def has_model(self) -> bool:
        """True if the model is given by value."""
        return bool(self.model or self.kept)


def _given(command: str, arguments: dict[str, Any]) -> _Given:
    """The arguments, with paths of nothing yet for what is given by value.

    Raises UserError for a wrong type, or without a model.
    """
    known = {each.name: each for each in fields_of("train" if command == "check" else command)}
    kept = None
    if isinstance(arguments.get("restore_from"), JobResult):
        arguments, kept = _restored(arguments, arguments["restore_from"])
    if isinstance(given := arguments.get("continue_from"), JobResult):
        arguments = arguments | {"continue_from": given.job_dir}
    arguments = _paired(arguments)
    model = {n: arguments[n] for n in by_value.NAMES if arguments.get(n) is not None}
    arguments = _split(arguments)
    frames = {n: arguments[n] for n in DATA if n in arguments and not is_path(arguments[n])}
    values: dict[str, Any] = {}
    for name, field in known.items():
        given = arguments[name]
        value = os.fspath(given) if isinstance(given, os.PathLike) else given
        values[name] = f"{name}.parquet" if name in frames else checked(name, value, kind_of(field))
    if model and values["model_def"]:
        raise UserError(f"give either model_def or {min(model)}: both name the model")
    if model and values.get("model_params"):
        raise UserError(
            "model_params is for a module, which model_def names: give the values to your function "
            "itself, such as model=functools.partial(build, dim=8)"
        )
    if not model and not values["model_def"]:
        raise UserError(
            f"shoal.{command} needs the argument model_def"
            + (", or model" if "model" in arguments else "")
        )
    if frames and values.get("image"):
        raise UserError(
            f"image: {min(frames)} is given by value, which works on this machine only: on "
            "Kubernetes give a URL, or a path on a volume of the pods"
        )
    if model:
        values["model_def"] = MODEL_DEF
        values["engine"] = by_value.engine_of(model, values["engine"])
    return _Given(JobConfig(command=command, **values), model, kept, frames)


def _paired(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments with data (x, y) or (x, y, sample_weight) as one table each. Raises UserError.

    Their labels are in the column `label`, their weights in `sample_weight`.
    """
    found = dict(arguments)
    for name in DATA:
        if isinstance(value := arguments.get(name), tuple):
            label = arguments.get("label") or LABEL
            weight = arguments.get("sample_weight") or WEIGHTS
            found[name] = paired(name, value, label, weight)
            found |= {"sample_weight": weight} if len(value) > 2 else {}
    return found


def _split(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments with the last records of the training data as validation data, if so wanted.

    Raises UserError.
    """
    fraction = checked("validation_split", arguments.get("validation_split", 0.0), float)
    if not fraction:
        return arguments
    if not is_path(arguments["validation_data"]) or arguments["validation_data"]:
        raise UserError("validation_split: validation_data is given, too: remove one of them")
    if is_path(arguments["training_data"]):
        raise UserError(
            "validation_split is for data that the program holds, such as a DataFrame, and "
            "training_data is a path: give validation_data"
        )
    first, last = split_data("training_data", arguments["training_data"], fraction)
    return arguments | {"training_data": first, "validation_data": last}


def _restored(arguments: dict[str, Any], result: JobResult) -> tuple[dict[str, Any], Path | None]:
    """The arguments with the trained values of a job, and with its model where none is given.

    Also returns the folder of that model if it was given by value and runs on Kubernetes.
    """
    kept = None
    values = result.output or result.checkpoints.get("folder")
    if not values:
        raise UserError(f"restore_from: job {result.job_name} has neither output nor checkpoints")
    found = arguments | {"restore_from": values}
    if not any(arguments.get(name) for name in ("model_def", "model")):
        config = JobConfig.load(JobFolder(result.job_dir).config)
        found |= {n: getattr(config, n) for n in ("model_def", "model_zoo", "embedding_threshold")}
        if found.get("engine", AUTO) == AUTO:
            found["engine"] = config.engine
        for name in ("model_params", "table"):
            found[name] = found.get(name) or getattr(config, name)
        folder = JobFolder(result.job_dir).given
        if given_model.is_given(config) or (arguments.get("image") and (folder / MODULE).is_file()):
            kept, found["model_zoo"] = folder, str(folder)
    return found, kept


def _beside(config: JobConfig) -> str:
    """The folder that holds that of the job, on this machine."""
    if config.image:
        return os.path.abspath("shoal-jobs")
    return os.path.dirname(os.path.abspath(config.job_dir or os.path.join("shoal-jobs", "job")))


@contextmanager
def _written(
    given: _Given, beside: str | None, display: Display, most: int | None = None
) -> Iterator[tuple[JobConfig, Path | None]]:
    """Write what is given by value to a temporary folder; None where nothing is.

    beside: where that folder is made. most: how many records of each data set are written.
    Raises UserError.
    """
    if not (given.has_model or given.frames):
        yield given.config, None
        return
    with ExitStack() as stack:
        try:
            if beside is not None:
                if not os.path.exists(beside):
                    stack.callback(_remove_empty, beside)
                os.makedirs(beside, exist_ok=True)
            made = tempfile.TemporaryDirectory(
                prefix=".given-", dir=beside, ignore_cleanup_errors=True
            )
            folder = Path(stack.enter_context(made))
            changes: dict[str, Any] = {}
            if given.has_model:
                if given.kept is not None:
                    for name in FILES:
                        if given.kept.joinpath(name).is_file():
                            shutil.copy(given.kept / name, folder)
                else:
                    by_value.write_model(folder, given.model)
                image = given.config.image
                changes["model_zoo"] = given_model.FOLDER if image else str(folder)
            for name, value in given.frames.items():
                path = folder / f"{name}.parquet"
                write_data(name, value, path, display.event, most)
                changes[name] = str(path)
        except OSError as error:
            raise UserError(f"job_dir: {beside} cannot be written: {error}") from error
        yield dataclasses.replace(given.config, **changes), folder


def _remove_empty(folder: str) -> None:
    """Remove a folder in which nothing has been left."""
    with suppress(OSError):
        os.rmdir(folder)


@contextmanager
def _in_its_place(config: JobConfig, given: _Given) -> Iterator[JobConfig]:
    """The configuration with a job name that is free, so that a cell can be run twice.

    A model that was given by value is exported into the job's folder, if nowhere else: not on
    Kubernetes, where that folder may go with its pod. Raises UserError.
    """
    named = config.resolved()
    with ExitStack() as stack:
        if not (config.job_name or config.job_dir or config.overwrite):
            name = stack.enter_context(numbered(named.job_name))
            config = dataclasses.replace(config, job_name=name)
            named = config.resolved()
        if config.command == "train" and given.model and not (config.output or config.image):
            config = dataclasses.replace(config, output=os.path.join(named.job_dir, OUTPUT))
        yield config
