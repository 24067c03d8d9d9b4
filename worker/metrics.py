"""The figures that a worker gives Prometheus: its work, and the time of each stage."""

from __future__ import annotations

import contextlib
import threading
from collections import defaultdict
from collections.abc import Iterator

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from shoal.base.disk.job_folder import JobFolder
from shoal.config.job import JobConfig
from shoal.metrics.durations import Durations
from shoal.metrics.families import counters, one_of
from shoal.metrics.serving import serving
from shoal.worker.reports.progress import TRAINING, Progress

STATES = ("idle", "working", "waiting", "ending")
"""idle: without a task, as before the first. waiting: for something out of its hands."""


class WorkerMetrics(Collector):
    """`progress`, looked at when the page is asked for."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._lock = threading.Lock()
        self._took: defaultdict[str, Durations] = defaultdict(Durations)
        progress.stage_took = self._add

    def _add(self, stage: str, seconds: float) -> None:
        with self._lock:
            self._took[stage].add(seconds)

    def _durations(self) -> Metric:
        family = HistogramMetricFamily(
            "shoal_stage_duration_seconds",
            "Time that a stage took, for each time that a step was in it.",
            labels=["stage"],
        )
        with self._lock:
            for stage, took in self._took.items():
                family.add_metric([stage], took.buckets(), took.sum)
        return family

    def collect(self) -> Iterator[Metric]:
        """All families."""
        progress = self._progress
        done = progress.done()
        yield one_of("shoal_worker_state", "What the worker does.", "state", STATES, self._state())
        yield CounterMetricFamily(
            "shoal_steps", "Training steps that all servers have acknowledged.", done.steps
        )
        yield CounterMetricFamily(
            "shoal_records_trained",
            "Training records whose gradients all servers have acknowledged.",
            done.records,
        )
        training = done.stage_seconds.pop(TRAINING, 0.0)
        yield CounterMetricFamily(
            "shoal_training_seconds", "Time of training, of which stages are parts.", training
        )
        yield counters(
            "shoal_stage_seconds",
            "Time in each stage of a step. Stages overlap, as several threads work.",
            "stage",
            done.stage_seconds,
        )
        yield self._durations()
        yield GaugeMetricFamily(
            "shoal_model_version", "Highest version of a server that was seen.", done.version
        )
        if progress.learning_rate is not None:
            yield GaugeMetricFamily(
                "shoal_learning_rate", "Learning rate of the last push.", progress.learning_rate
            )

    def _state(self) -> str:
        progress = self._progress
        if progress.stopped.is_set():
            return "ending"
        if progress.waiting:
            return "waiting"
        return "working" if progress.task else "idle"


@contextlib.contextmanager
def serving_metrics(
    progress: Progress, job: JobConfig, folder: JobFolder, index: int, incarnation: int
) -> Iterator[None]:
    """Serve the metrics of a worker of this job."""
    with serving(job, folder, "worker", index, incarnation, WorkerMetrics(progress)):
        yield
