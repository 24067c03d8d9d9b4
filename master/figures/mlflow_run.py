"""shoal.callbacks.MLflow: the figures of a job over time as a run of MLflow.

Owns what the run has. When there are figures is recorder.py's; a thread of its own talks to MLflow,
so that a server of it that does not answer holds up no file. The package is imported there alone.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from shoal.base.disk.wholefile import write_json
from shoal.config.job import JobConfig, fields_of
from shoal.config.model_params import params_of
from shoal.errors import UserError
from shoal.master.figures.reporter import Reporter
from shoal.master.job.view.sample import EVALUATION, SCALARS
from shoal.master.work.evaluation.evaluation import EvaluationResult
from shoal.master.work.evaluation.rules import Mlflow
from shoal.master.work.phases import Phase

MOST_UNWRITTEN = 1000
"""Rows that are kept while MLflow does not answer."""

ROWS, METRICS, PARAMS = 50, 1000, 100
"""Rows taken up together, and the most that MLflow takes in one call."""

LONGEST_PARAM = 500
"""Characters; older servers refuse more."""

MISSING = (
    "the package mlflow is missing where the master runs: install mlflow-skinny there, or leave "
    "out shoal.callbacks.MLflow"
)

STATUS = {Phase.SUCCEEDED: "FINISHED", Phase.STOPPED: "KILLED"}
"""MLflow's word for the end of a job; FAILED for any other."""

_Row = tuple[float, Mapping[str, Any], EvaluationResult | None]


class MlflowRun(Reporter):
    """Writes one run. A new master, or a resumption, goes on with the run that `file` names.

    tell: as of Reporter.
    """

    SECONDS, END_SECONDS = 5.0, 30.0
    LOST = "MLflow does not answer: the run lacks the last figures"

    def __init__(
        self, target: Mlflow, config: JobConfig, file: Path, tell: Callable[[str], None]
    ) -> None:
        super().__init__("MLflow does not take the job's figures", tell)
        self._target, self._config, self._file = target, config, file
        self._rows: deque[_Row] = deque(maxlen=MOST_UNWRITTEN)
        self._batch: list[_Row] = []
        self._client: Any = None
        self._run = ""
        self._phase: Phase | None = None
        self._output = ""
        self.__enter__()

    def add(
        self, when: float, sample: Mapping[str, Any], evaluation: EvaluationResult | None = None
    ) -> None:
        """Queue the figures of a moment to be written; returns at once.

        when, sample, evaluation: as EventFiles.add takes them.
        """
        self._rows.append((when, sample, evaluation))

    def close(self, phase: Phase, output: str) -> None:
        """Start to write the remaining figures, and to end the run if the job has; returns at once.

        phase, output: of the job.
        """
        self._phase, self._output = phase, output
        self.__exit__()

    def report(self, ended: bool) -> bool:
        """See Reporter."""
        if self._client is None:
            try:
                from mlflow import MlflowClient
            except ImportError as error:
                raise UserError(MISSING) from error
            self._client = MlflowClient(self._target.tracking_uri or None)
        if not self._run:
            self._run = self._known_run() or self._new_run()
        while self._rows or self._batch:
            while self._rows and len(self._batch) < ROWS:
                self._batch.append(self._rows.popleft())
            self._log([metric for row in self._batch for metric in _metrics(*row)])
            self._batch.clear()
        if ended and self._phase is not None and self._phase.ended:
            self._client.set_tag(self._run, "shoal.state", self._phase.state)
            if self._output and self._phase.complete:
                self._client.set_tag(self._run, "shoal.output", self._output)
            self._client.set_terminated(self._run, STATUS.get(self._phase, "FAILED"))
        return True

    def _log(self, metrics: list[tuple[str, float, int, int]]) -> None:
        from mlflow.entities import Metric

        for first in range(0, len(metrics), METRICS):
            chosen = [Metric(*each) for each in metrics[first : first + METRICS]]
            self._client.log_batch(self._run, metrics=chosen)

    def _known_run(self) -> str:
        """The run of an earlier master, which goes on; empty if there is none any more."""
        from mlflow.exceptions import MlflowException

        try:
            run = str(json.loads(self._file.read_text())["run_id"])
        except (OSError, ValueError, LookupError, TypeError):
            return ""
        try:
            if self._client.get_run(run).info.lifecycle_stage != "active":
                return ""
            self._client.update_run(run, status="RUNNING")
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return ""
        return run

    def _new_run(self) -> str:
        from mlflow.entities import Param

        client, config = self._client, self._config
        name = self._target.experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or "Default"
        found = client.get_experiment_by_name(name)
        experiment = client.create_experiment(name) if found is None else found.experiment_id
        tags = {"shoal.job": config.job_name, "shoal.command": config.command}
        tags |= self._target.tags
        run_name = self._target.run_name or config.job_name
        made = client.create_run(experiment, tags=tags, run_name=run_name)
        run = str(made.info.run_id)
        write_json(self._file, {"run_id": run})
        params = [Param(key, value[:LONGEST_PARAM]) for key, value in _params(config)]
        for first in range(0, len(params), PARAMS):
            client.log_batch(run, params=params[first : first + PARAMS])
        return run


def _params(config: JobConfig) -> Iterator[tuple[str, str]]:
    """The flags that have a value, and those of --model-params one by one."""
    for field in fields_of(config.command):
        if (value := getattr(config, field.name)) not in ("", None):
            yield field.name, str(value)
    for name, value in params_of(config.model_params).items():
        yield f"model_params.{name}", str(value)


def _metrics(
    when: float, sample: Mapping[str, Any], evaluation: EvaluationResult | None
) -> Iterator[tuple[str, float, int, int]]:
    """(name, value, milliseconds since 1970, step), as MLflow has metrics."""
    time = round(when * 1000)
    for name, shown in SCALARS.items():
        if (value := sample.get(name)) is not None and math.isfinite(value):
            yield shown, float(value), time, sample["version"]
    if evaluation is not None:
        for name, value in evaluation.metrics.items():
            if math.isfinite(value):
                # Other characters are refused.
                shown = EVALUATION + re.sub(r"[^\w\-. /]", "_", name, flags=re.ASCII)
                yield shown, float(value), time, evaluation.version
