"""The result of a job, as its users see it. Reads result.json, which master/ writes.

A result also gives what the job has made: its course, its tables, its Keras model.
"""

from __future__ import annotations

import contextlib
import html
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

from shoal.base.disk.job_folder import JobFolder
from shoal.base.disk.wholefile import reading
from shoal.base.metrics_columns import TYPES
from shoal.base.modules.libraries import library
from shoal.errors import (
    EXIT_HELD_BACK,
    EXIT_INTERRUPTED,
    EXIT_JOB_FAILED,
    EXIT_SUCCESS,
    EXIT_USER_ERROR,
    Error,
    UserError,
)

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pandas as pd
    import pyarrow as pa

    from shoal.exported import Exported


COMPLETE = ("succeeded", "degraded")
"""States of a job that has come to its end by itself."""


@dataclass(frozen=True, repr=False)
class JobResult:
    """The result of a job that has ended, however it ended.

    state: "succeeded", "degraded" (it came to its end, and updates stay lost), "failed" or
        "stopped".
    metrics: of the last evaluation, by name; None stands for a NaN.
    evaluations: all of them, {version, epoch, metrics, records, loss}.
    first_evaluation: one more, of the earlier model on the new training records, before it was
        trained on them (--evaluate-first); None if there was none.
    slices: of the last evaluation, the worst first: {metric, feature, value, records, auc,
        log_loss, calibration, label_mean}, of shoal.metrics.Slices.
    held_back: why --publish-if kept the link from this job, a sentence each.
    ledger: training records of all epochs: total, trained_once, repeated, failed, and
        pending where the job did not come to its end.
    bad_records: records given up, {data, source, record, place, error, records}.
    training_loss: its means over parts of the training in their order, each of as many steps.
    continued_from: the checkpoint of an earlier job that it began with; empty for none.
    diagnosis: what bounded training, {bound_by, evidence, advice}; None if nothing was trained.
    left_out: {minibatches, records, last}, left out by --nonfinite-gradients=skip.
    tables: by name, {rows, counting, memory_bytes, expired, evicted, counts}, at the end.
    failure: {kind, message, traceback, range}, or None.
    job_dir: the job's folder, with its configuration, logs and result.json.
    """

    job_name: str
    command: str
    state: str
    job_dir: Path
    metrics: dict[str, float | None] = field(default_factory=dict)
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    first_evaluation: dict[str, Any] | None = None
    slices: list[dict[str, Any]] = field(default_factory=list)
    held_back: list[str] = field(default_factory=list)
    ledger: dict[str, int] = field(default_factory=dict)
    bad_records: list[dict[str, Any]] = field(default_factory=list)
    left_out: dict[str, Any] = field(default_factory=dict)
    records: int = 0
    continued_from: str = ""
    seconds: float = 0.0
    training_seconds: float = 0.0
    samples_per_second: float = 0.0
    versions: dict[str, int] = field(default_factory=dict)
    staleness: dict[str, Any] = field(default_factory=dict)
    training_loss: list[float] = field(default_factory=list)
    stage_seconds: dict[str, float] = field(default_factory=dict)
    diagnosis: dict[str, str] | None = None
    tables: dict[str, dict[str, int]] = field(default_factory=dict)
    workers: dict[str, int] = field(default_factory=dict)
    servers: dict[str, int] = field(default_factory=dict)
    log: dict[str, Any] = field(default_factory=dict)
    sync: dict[str, int] = field(default_factory=dict)
    checkpoints: dict[str, Any] = field(default_factory=dict)
    failure: dict[str, Any] | None = None
    messages: list[str] = field(default_factory=list)
    output: str | None = None
    published: dict[str, Any] | None = None

    def __repr__(self) -> str:
        """The result of the job, a line each; `shoal status` has the whole report."""
        told = self._told()
        width = max(map(len, told))
        lines = [f"  {name:<{width}}  {value}" for name, value in told.items()]
        return "\n".join([self._title(), *lines])

    def _repr_html_(self) -> str:
        """The same as a notebook shows it."""
        rows = (
            f"<tr><th style='text-align: left'>{html.escape(name)}</th>"
            f"<td style='text-align: left'>{html.escape(value)}</td></tr>"
            for name, value in self._told().items()
        )
        return f"<table><caption>{html.escape(self._title())}</caption>{''.join(rows)}</table>"

    def _title(self) -> str:
        return f"JobResult of shoal {self.command}: {self.job_name}"

    def _told(self) -> dict[str, str]:
        told: dict[str, str] = {"state": self.state}
        if self.failure is not None:
            told["failure"] = str(self.failure.get("message", ""))
        told |= {n: "NaN" if v is None else f"{v:.4f}" for n, v in sorted(self.metrics.items())}
        if self.ledger.get("total"):
            counts = (f"{count:,} {kind.replace('_', ' ')}" for kind, count in self.ledger.items())
            told["training records"] = ", ".join(counts)
        elif self.records:
            told["records"] = f"{self.records:,}"
        told["seconds"] = f"{self.seconds:.1f}"
        told |= {"output": self.output} if self.output else {}
        told["job folder"] = str(self.job_dir)
        return told

    # ------------------------------------------------------------ what the job has made

    @property
    def history(self) -> dict[str, list[Any]]:
        """The evaluations as columns, by default one at the end of each epoch, as Keras has them.

        version, epoch, records; loss: that of training since the evaluation before, on average;
        val_loss, val_NAME: the metrics of the validation data. What an evaluation has not, or was
        no number, is None there.
        """
        return course_of(self.evaluations)

    @property
    def metrics_over_time(self) -> pd.DataFrame:
        """metrics.csv of the job, see `read_metrics`. Raises UserError."""
        return read_metrics(Path(self.job_dir))

    def plot(self, axes: Any = None) -> Any:
        """Draw `history` over the model's versions; returns matplotlib's axes.

        axes: where; new ones by default. Raises UserError without matplotlib, or if the job has
        evaluated nothing.
        """
        if not self.evaluations:
            raise UserError(
                "there is nothing to plot: the job has no evaluation; give validation_data"
            )
        if axes is None:
            pyplot = library("matplotlib.pyplot", "plot()", "matplotlib")
            _, axes = pyplot.subplots()
        course = self.history
        for name in sorted(course.keys() - {"version", "epoch", "records"}):
            values = [float("nan") if each is None else each for each in course[name]]
            if all(map(math.isnan, values)):
                continue
            axes.plot(course["version"], values, marker="o", label=name)
        axes.set_xlabel("version of the model (pushes)")
        axes.set_title(self.job_name)
        axes.legend()
        return axes

    def load(self) -> Any:
        """The trained Keras model, with its tables; of a torch.nn.Module that of model.pt2.

        The classes of its layers come with a model that was given by value: its functions, as the
        job's folder has them, are run. Raises UserError if it was not exported.
        """
        return self._exported().keras_model()

    def predict(self, features: Any) -> Any:
        """Predict in this process, by the exported SavedModel, or else by the model of `load`.

        features: a DataFrame of pandas or Polars, a dict of arrays and the like, whose columns are
        the model's inputs by name, ids as integers or strings as in training; further columns do
        not matter. Missing values are filled as in training; feed and feed_batch are not called.

        Returns an array of a row per record, or a dict of such by the names of the outputs. Raises
        UserError as `load`, or if a column is missing or of another type.
        """
        return self._exported().predict(features)

    def table(self, name: str) -> pa.Table:
        """A trained embedding table: columns id (int64) and vector (lists of float32).

        Vectors of an int8 export are already multiplied by their scales. The id of a string is a
        number made of it, from which the string cannot be had: `embedding` finds rows by strings.

        Raises UserError if there is none of this name, or it was not exported.
        """
        return self._exported().table(name)

    def embedding(self, name: str, ids: Any) -> npt.NDArray[np.float32]:
        """The trained rows of ids: float32, of the ids' shape with the table's width appended.

        ids: integers, or the strings that an Embedding of shoal's took. One that was never trained
        has the row that the exported model gives it. Raises UserError as `table`.
        """
        return self._exported().embedding(name, ids)

    def _exported(self) -> Exported:
        """The export of the job. Raises UserError if it has not."""
        # Late: few have use for it.
        from shoal.exported import Exported

        if not self.output or self.command != "train":
            raise UserError(
                f"job {self.job_name} has exported no model: give train() the argument output, or "
                f"run: shoal export {self.job_dir} --output FOLDER"
            )
        return Exported(self.output, Path(self.job_dir))

    @classmethod
    def read(cls, path: Path) -> JobResult:
        """Read a result.json. Raises OSError if there is none, ValueError if it is not a result."""
        try:
            with reading(path) as file:
                return cls.from_json(file.read().decode(), path.parent)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    @classmethod
    def from_json(cls, text: str, job_dir: Path) -> JobResult:
        """The content of a result.json. Keys that this version does not know are left out.

        Raises ValueError if it is not a result.
        """
        try:
            values = json.loads(text)
        except RecursionError as error:
            raise ValueError("not a job's result") from error
        if not isinstance(values, dict) or not values.keys() >= {"state", "job_name", "command"}:
            raise ValueError("not a job's result")
        known = {f.name for f in fields(cls)} - {"job_dir"}
        # A value that the job never came to is null, and stands for the default here.
        given = {key: value for key, value in values.items() if key in known and value is not None}
        kinds = get_type_hints(cls)
        for name, value in given.items():
            if not _fits(value, kinds[name]):
                raise ValueError(f"not a job's result: {name}")
        for each in given.get("evaluations", ()):
            if not each.keys() >= {"version", "epoch", "records", "metrics"}:
                raise ValueError("not a job's result: evaluations")
        if not isinstance(given.get("failure", {"message": ""}).get("message"), str):
            raise ValueError("not a job's result: failure")
        return cls(job_dir=job_dir, **given)

    @staticmethod
    def refused(job_name: str, command: str, message: str) -> dict[str, Any]:
        """The content of result.json for a job that could not begin: its input is wrong."""
        failure = {"kind": "USER_ERROR", "message": message, "traceback": "", "range": None}
        return {"job_name": job_name, "command": command, "state": "failed", "failure": failure}

    @property
    def last_checkpoint(self) -> tuple[int, str] | None:
        """Number and nonce of the newest checkpoint at the job's end; None if there was none."""
        with contextlib.suppress(LookupError, TypeError):
            newest = self.checkpoints["kept"][-1]
            return newest["number"], newest["nonce"]
        return None

    @property
    def exit_code(self) -> int:
        """The exit code of the command line."""
        if self.state == "succeeded":
            return EXIT_HELD_BACK if self.held_back else EXIT_SUCCESS
        if self.state == "stopped":
            return EXIT_INTERRUPTED
        user_error = self.failure is not None and self.failure.get("kind") == "USER_ERROR"
        return EXIT_USER_ERROR if user_error else EXIT_JOB_FAILED


def _fits(value: Any, kind: Any) -> bool:
    """True if a value of JSON is of the kind that an annotation says."""
    if kind is Any:
        return True
    parts = get_args(kind)
    origin = get_origin(kind)
    if origin is list:
        return isinstance(value, list) and all(_fits(each, parts[0]) for each in value)
    if origin is dict:
        return isinstance(value, dict) and all(_fits(each, parts[1]) for each in value.values())
    if parts:
        return any(_fits(value, each) for each in parts)
    return isinstance(value, (int, float) if kind is float else kind)


class JobFailedError(Error):
    """The job started, and did not succeed.

    message: what went wrong. result: the job's result, None if its master died.
    """

    def __init__(self, message: str, result: JobResult | None = None) -> None:
        super().__init__(message, result)
        self.message = message
        self.result = result

    def __str__(self) -> str:
        return self.message


def given_up(bad: Sequence[Mapping[str, Any]]) -> int:
    """The number of the records that were given up, of which an entry may have several."""
    return sum(each.get("records", 1) for each in bad)


def read_metrics(folder: Path, *, awaited: bool = False) -> pd.DataFrame:
    """The figures over time of the job in a folder, which may be running: its metrics.csv.

    Its column `time` is of timestamps in UTC. awaited: without the file there are no rows yet.
    Raises UserError without pandas, or if there is no such file.
    """
    pandas = library("pandas", "a table of the metrics", "pandas")
    path = JobFolder(folder).metrics
    try:
        frame = pandas.read_csv(path)
    except FileNotFoundError as error:
        if awaited:
            kinds = {"time": "datetime64[ns, UTC]", "int": "int64", "text": "str"}
            return pandas.DataFrame(columns=[*TYPES]).astype(
                {name: kinds.get(kind, kind) for name, kind in TYPES.items()}
            )
        raise UserError(
            f"there is no {path}: the job was run with metrics_seconds=0 (--metrics-seconds 0), or "
            "has not begun"
        ) from error
    # Not by read_csv, which leaves text where there is no row.
    return frame.assign(time=pandas.to_datetime(frame["time"], utc=True))


def course_of(evaluations: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Evaluations as columns, see JobResult.history."""
    names = sorted({name for each in evaluations for name in each["metrics"]})
    columns = {
        name: [each.get(name) for each in evaluations]
        for name in ("version", "epoch", "records", "loss")
    }
    return columns | {f"val_{n}": [each["metrics"].get(n) for each in evaluations] for n in names}
