"""Records the figures of a job over time. The job neither waits for this nor fails by it.

Owns when figures are due. The files are metrics_file.py's and tensorboard.py's, a run of MLflow is
mlflow_run.py's, the figures are job/view/sample.py's.
"""

from __future__ import annotations

import math
import time
from collections import deque
from functools import partial
from typing import Any, Self

from shoal.base.disk.job_folder import JobFolder
from shoal.config.job import JobConfig, fields_of
from shoal.master.figures.metrics_file import MetricsFile, write_parquet
from shoal.master.figures.mlflow_run import MlflowRun
from shoal.master.figures.reporter import Reporter
from shoal.master.figures.tensorboard import EventFiles
from shoal.master.job.job import Job
from shoal.master.job.view.sample import evaluations_from, sample_of
from shoal.master.job.view.status import row_norms, staleness
from shoal.master.shared_job import SharedJob
from shoal.master.work.evaluation.evaluation import EvaluationResult
from shoal.master.work.evaluation.rules import Mlflow
from shoal.master.work.phases import Phase
from shoal.proto import shoal_pb2 as pb
from shoal.proto.values.distribution import Distribution

LOOK_SECONDS = 1.0
"""Between two looks for an evaluation that has ended, which has a row at once."""

FIRST_SECONDS = 0.1
"""Between two looks for the job to begin."""

BEGINNING_SECONDS = 60.0
"""Of a job, in which rows come more often."""

MOST_UNSHOWN = 1000
"""Rows that are kept for event files that cannot be written now."""

_Norms = dict[tuple[int, str], pb.Distribution]

_Row = tuple[float, dict[str, Any], Distribution, EvaluationResult | None, _Norms]
"""When, the figures, staleness, evaluation and norms of rows, as EventFiles.add takes them."""


class Recorder(Reporter):
    """Writes metrics.csv while it is entered, and at its end metrics.parquet.

    With --tensorboard-dir event files too, and a run of MLflow if callbacks() asks for it; see
    `wait_for_uploads`. config: of the job, as it is now.
    """

    END_SECONDS = 90.0
    LOST = "the job's last metrics are not written: a disk does not answer"

    def __init__(self, job: SharedJob, folder: JobFolder, config: JobConfig) -> None:
        super().__init__("the job's metrics cannot be written", job.warn)
        self._job, self._folder, self._config = job, folder, config
        self._seconds = config.metrics_seconds
        self._file: MetricsFile | None = None
        self._events: EventFiles | None = None
        self._run: MlflowRun | None = None
        self._evaluations = 0
        self._unshown: deque[_Row] = deque(maxlen=MOST_UNSHOWN)
        self._whole = False
        self._due, self._first = 0.0, math.inf

    def __enter__(self) -> Self:
        return super().__enter__() if self._seconds > 0 else self

    def __exit__(self, *error: object) -> None:
        super().__exit__()
        self.wait()

    def wait_for_uploads(self) -> None:
        """After it was left: wait for MLflow and the last event file's upload, for a limited time.

        Apart from that, so that the job's result does not wait for them.
        """
        if self._thread.is_alive():
            return
        if self._run is not None:
            self._run.wait()
        if self._events is not None and self._events.uploads is not None:
            self._events.uploads.wait()

    def report(self, ended: bool) -> bool:
        """See Reporter."""
        try:
            return self._look(ended)
        finally:
            if ended:
                self._end()

    def pause(self) -> float:
        """See Reporter."""
        wait = self._due - time.monotonic()
        return min(wait, LOOK_SECONDS) if wait > 0 else FIRST_SECONDS

    def _end(self) -> None:
        try:
            if self._whole:
                write_parquet(self._folder.metrics, self._folder.metrics_parquet)
        finally:
            if self._events is not None:
                self._events.close()
            if self._run is not None:
                self._run.close(self._job.look(_phase), self._config.output)

    def _look(self, ended: bool) -> bool:
        """Write a row if one is due, and one for each evaluation that has ended.

        Returns whether there was one to be written.
        """
        now = time.monotonic()
        # A job that has ended has its last row at the last look.
        due = ended or (now >= self._due and not self._job.look(_phase).ended)
        found = self._job.look(partial(_figures, due, self._evaluations))
        if found is None:
            return False
        if due:
            self._first = min(self._first, now)
            self._due = now + pause(self._seconds, now - self._first)
        sample, pushes, norms, evaluations, mlflow = found
        if mlflow is not None and self._run is None:
            self._run = MlflowRun(mlflow, self._config, self._folder.mlflow, self._job.warn)
        rows: list[EvaluationResult | None] = [*evaluations] or [None]
        self._whole = False
        if self._file is None:
            self._file = MetricsFile(self._folder.metrics)
        when = time.time()
        for each in rows:
            if self._file.add(when, sample, each):
                self._unshown.append((when, sample, pushes, each, norms))
                if self._run is not None:
                    self._run.add(when, sample, each)
        self._whole = True
        # The file goes on where the event files cannot be written.
        self._evaluations += len(evaluations)
        self._show()
        return True

    def _show(self) -> None:
        """Write to the event files what they lack. Raises OSError, UserError."""
        if not self._config.tensorboard_dir:
            self._unshown.clear()
            return
        self._events = self._events or self._event_files()
        while self._unshown:
            self._events.add(*self._unshown[0])
            self._unshown.popleft()

    def _event_files(self) -> EventFiles:
        config = self._config
        given = {f.name: getattr(config, f.name) for f in fields_of(config.command)}
        parameters = {name: value for name, value in given.items() if value not in ("", None)}
        work = self._folder.path / "tensorboard"
        return EventFiles(config.tensorboard_dir, config.job_name, parameters, work, self._job.warn)


def pause(seconds: float, since_first: float) -> float:
    """Seconds to the next row: fewer at first, so that a short job has a curve, too.

    seconds: of --metrics-seconds. since_first: since the first row.
    """
    return min(seconds, max(1.0, seconds / 10)) if since_first < BEGINNING_SECONDS else seconds


def _phase(job: Job, now: float) -> Phase:
    del now
    return job.phases.phase


def _figures(
    due: bool, known: int, job: Job, now: float
) -> tuple[dict[str, Any], Distribution, _Norms, list[EvaluationResult], Mlflow | None] | None:
    """The values to write, None for nothing: figures, staleness, norms, evaluations from `known`.

    The last is the MLflow target, if callbacks() asked for one.
    """
    if not job.record.started:
        return None  # its seconds do not count yet
    evaluations = evaluations_from(job, known)
    if not due and not evaluations:
        return None
    sample, mlflow = sample_of(job, now), job.work.rules.mlflow
    return sample, staleness(job), row_norms(job), evaluations, mlflow
