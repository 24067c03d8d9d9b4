"""Callbacks that a user's `callbacks()` may return beside Keras's own, decided once for a job.

Each acts the same however many workers there are. The numbers here are handed to the
master, which has the count of steps and the evaluations; a schedule is called by the workers
with a number that all of them agree on. worker/model/callbacks.py reads these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from shoal.errors import holds_secret

MODES = ("auto", "min", "max")
UNITS = ("version", "epoch")


@dataclass(frozen=True)
class MaxSteps:
    """End the training after this many minibatches, counted over all workers.

    The tasks of the job are cut to that length beforehand, so it is exact. Minibatches of
    records that a dead worker left are trained again and not counted twice.
    """

    steps: int

    def __post_init__(self) -> None:
        """Raises ValueError for a number below 1."""
        if isinstance(self.steps, bool) or not isinstance(self.steps, int) or self.steps < 1:
            raise ValueError(f"MaxSteps: steps must be a positive integer, not {self.steps!r}")


@dataclass(frozen=True)
class EarlyStopping:
    """End the training when a metric of the evaluations has stopped improving.

    monitor: name of the metric, as the report gives it.
    patience: evaluations without an improvement after which training ends; as in Keras, 0
        ends it at the first one.
    min_delta: by how much a value must be better to count as an improvement.
    mode: "max" or "min"; "auto" tells from the name.
    baseline: a value that must be reached for patience to begin anew; None for none.
    start_from_epoch: evaluations of earlier epochs do not count.
    """

    monitor: str = "loss"
    patience: int = 0
    min_delta: float = 0.0
    mode: str = "auto"
    baseline: float | None = None
    start_from_epoch: int = 0

    def __post_init__(self) -> None:
        """Raises ValueError for an unknown mode or a negative patience."""
        _check("EarlyStopping", self.mode, patience=self.patience)


@dataclass(frozen=True)
class Checkpoint:
    """Take a checkpoint after evaluations, and keep that of the best one.

    monitor: name of the metric; a checkpoint is taken after each evaluation that is better
        than all before it, and the newest of these is never removed. None: after each.
    min_delta, mode: as in EarlyStopping.

    --checkpoint-seconds and --checkpoint-steps take their checkpoints as well. Training goes on
    while one is taken, so its values are some steps newer than the evaluated ones.
    """

    monitor: str | None = None
    min_delta: float = 0.0
    mode: str = "auto"

    def __post_init__(self) -> None:
        """Raises ValueError for an unknown mode."""
        _check("Checkpoint", self.mode)


@dataclass(frozen=True)
class ExportBest:
    """Write the model of the best evaluation to --output, instead of the one at the end.

    monitor: name of the metric. The model is exported after each evaluation that is better
        than all before it; at the end of training only if the last one is.
    min_delta, mode: as in EarlyStopping.

    While a model is exported the other workers go on training, so its values are some steps
    newer than the evaluated ones.
    """

    monitor: str
    min_delta: float = 0.0
    mode: str = "auto"

    def __post_init__(self) -> None:
        """Raises ValueError for an unknown mode."""
        _check("ExportBest", self.mode)


@dataclass(frozen=True)
class ReduceLROnPlateau:
    """Multiply the learning rate by `factor` when a metric has stopped improving.

    monitor, min_delta, mode: as in EarlyStopping.
    patience: evaluations without an improvement after which the rate is reduced.
    cooldown: evaluations after a reduction that do not count.
    min_lr: the rate is not reduced below this.

    The master counts; each worker follows with its next task.
    """

    monitor: str = "loss"
    factor: float = 0.1
    patience: int = 10
    min_delta: float = 1e-4
    mode: str = "auto"
    cooldown: int = 0
    min_lr: float = 0.0

    def __post_init__(self) -> None:
        """Raises ValueError for a factor of 1 or more, an unknown mode or negative numbers."""
        _check("ReduceLROnPlateau", self.mode, patience=self.patience, cooldown=self.cooldown)
        if not 0 < self.factor < 1:
            raise ValueError(
                f"ReduceLROnPlateau: factor must be between 0 and 1, not {self.factor}"
            )


def _check(name: str, mode: str, **numbers: int) -> None:
    if mode not in MODES:
        raise ValueError(f"{name}: mode must be one of {MODES}, not {mode!r}")
    for argument, value in numbers.items():
        if value < 0:
            raise ValueError(f"{name}: {argument} must be at least 0, not {value}")


@dataclass(frozen=True)
class MLflow:
    """Record the job as one run of MLflow, which the master writes every --metrics-seconds.

    tracking_uri: of MLflow's server or store; "": as MLFLOW_TRACKING_URI or MLflow itself says. A
        password is none of it: MLflow takes MLFLOW_TRACKING_USERNAME, _PASSWORD or _TOKEN from
        the environment of the master.
    experiment: its name, made if it is missing; "": MLFLOW_EXPERIMENT_NAME, or Default.
    run_name: "" for the job's name.
    tags: of the run, text by name.

    The run has the job's flags and --model-params as parameters, the figures of metrics.csv and
    each evaluation as metrics over the version of the model, and at the end the tags shoal.state
    and shoal.output, the place of the export. The package mlflow, or mlflow-skinny, is needed where
    master and workers run. If MLflow does not answer, training goes on.
    """

    tracking_uri: str = ""
    experiment: str = ""
    run_name: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raises ValueError for an argument that is no text, or an address with a password."""
        texts = {name: getattr(self, name) for name in ("tracking_uri", "experiment", "run_name")}
        for name, value in texts.items():
            if not isinstance(value, str):
                raise ValueError(f"MLflow: {name} must be text, not {value!r}")
        if not all(isinstance(text, str) for item in dict(self.tags).items() for text in item):
            raise ValueError("MLflow: names and values of tags must be text")
        if holds_secret(self.tracking_uri):
            raise ValueError(
                "MLflow: tracking_uri holds a password or key, which the job's files would show: "
                "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD instead"
            )


@dataclass(frozen=True)
class LearningRateScheduler:
    """The learning rate as a function of the model version or of the epoch.

    schedule: takes a number, and gives the rate.
    by: "version" (pushes that the servers have applied) or "epoch" (from 0, of the task
        that is trained).
    """

    schedule: Callable[[int], float]
    by: str = "version"

    def __post_init__(self) -> None:
        """Raises ValueError for an unknown unit or a schedule that is no function."""
        if self.by not in UNITS:
            raise ValueError(f"LearningRateScheduler: by must be one of {UNITS}, not {self.by!r}")
        if not callable(self.schedule):
            raise ValueError("LearningRateScheduler: schedule must be a function")
