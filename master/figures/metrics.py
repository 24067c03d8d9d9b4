"""The master's metrics for Prometheus: the state of the job, as families of metrics.

The facts are taken in one look, under the job's lock; the page is made from them without the lock.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from shoal.base.disk.job_folder import JobFolder
from shoal.config.job import JobConfig
from shoal.master.job.checkpoints.checkpoints import Checkpoints
from shoal.master.job.job import Job
from shoal.master.job.members.members import ProcessState, ServerMember, WorkerMember
from shoal.master.job.members.supervisor import RESTART_REASONS
from shoal.master.job.view.status import status_message
from shoal.master.shared_job import SharedJob
from shoal.master.work.phases import Phase
from shoal.metrics import targets
from shoal.metrics.calls import Calls
from shoal.metrics.families import gauges, one_of
from shoal.metrics.serving import serving
from shoal.proto import shoal_pb2 as pb
from shoal.proto.channels.serving import Handlers

_STATES = tuple(dict.fromkeys(phase.state for phase in Phase))


@contextlib.contextmanager
def serving_metrics(job: SharedJob, handlers: Handlers, folder: JobFolder) -> Iterator[Handlers]:
    """Serve the metrics of a job; yields the master's handlers, whose calls are counted.

    At the end no process of the job has a page any more.
    """
    calls = Calls()
    try:
        with serving(job.config, folder, "master", 0, 0, JobMetrics(job), calls):
            yield calls.counted(handlers)
    finally:
        with contextlib.suppress(OSError):  # of a folder that is gone
            targets.clear(folder)


@dataclass(frozen=True)
class _Facts:
    """The facts of a job at one moment, beside its status.

    processes: role -> state -> count. scalings: None without --autoscale. moves: of rows, by
    outcome. leased: tasks that workers hold. checkpoint_age: seconds, None if no checkpoint is
    expected now.
    """

    status: pb.JobStatus
    processes: dict[str, Counter[str]]
    restarts: Counter[tuple[str, str]]
    scalings: Counter[str] | None
    moves: Counter[str]
    leased: int
    checkpoints: int
    failed_checkpoints: int
    checkpoint_age: float | None
    publish_age: float | None


def _facts(job: Job, now: float) -> _Facts:
    members = job.members
    held = [task for each in members.workers.values() for task in (each.held, each.ahead)]
    return _Facts(
        status_message(job, now),
        {
            "worker": _by_state(members.workers.values()),
            "ps": _by_state(members.servers.values()),
        },
        Counter(job.record.restarts),
        Counter(job.record.scalings) if job.autoscaler.wants else None,
        Counter(completed=job.moves.count, given_up=job.moves.failures),
        sum(task is not None for task in held),
        job.checkpoints.count,
        job.checkpoints.failures,
        job.checkpoints.age(now),
        job.publishing.age(now),
    )


def _by_state(members: Iterable[WorkerMember | ServerMember]) -> Counter[str]:
    return Counter(each.state.value for each in members)


class JobMetrics(Collector):
    """The state of `job`, looked at when the page is asked for."""

    def __init__(self, job: SharedJob) -> None:
        self._job = job

    def collect(self) -> Iterator[Metric]:
        """All families."""
        facts, config = self._job.look(_facts), self._job.config
        status = facts.status
        yield _job_info(config, status)
        yield one_of("shoal_job_state", "What the job does.", "state", _STATES, status.state)
        yield GaugeMetricFamily(
            "shoal_job_waiting", "1 while the job waits for something.", bool(status.waits_for)
        )
        yield GaugeMetricFamily(
            "shoal_job_age_seconds", "Time since the job began.", status.seconds
        )
        yield from _of_work(facts, config)
        yield from _of_processes(facts)
        yield from _of_checkpoints(facts, config)
        if facts.publish_age is not None:
            yield GaugeMetricFamily(
                "shoal_publish_age_seconds",
                "Time since the newest delta; before the first, since training began.",
                facts.publish_age,
            )


def _job_info(config: JobConfig, status: pb.JobStatus) -> Metric:
    family = GaugeMetricFamily(
        "shoal_job_info",
        "The job: its name and command, and the version of shoal.",
        labels=["job_name", "command", "version"],
    )
    family.add_metric([config.job_name, config.command, status.protocol.version], 1)
    return family


def _of_work(facts: _Facts, config: JobConfig) -> Iterator[Metric]:
    """Records, tasks, loss and evaluations."""
    status = facts.status
    yield GaugeMetricFamily("shoal_job_epoch", "Present epoch, from 0.", status.epoch)
    yield GaugeMetricFamily("shoal_job_epochs", "Epochs in all.", status.epochs)
    yield GaugeMetricFamily("shoal_job_records", "Records in all.", status.records_total)
    yield GaugeMetricFamily("shoal_job_records_done", "Records done.", status.records_done)
    if config.command == "train":
        ledger = status.ledger
        outcomes = ("trained_once", "repeated", "failed", "pending")
        yield gauges(
            "shoal_training_records",
            "Training records of all epochs, by what became of them.",
            "outcome",
            {each: getattr(ledger, each) for each in outcomes},
        )
        yield CounterMetricFamily(
            "shoal_minibatches_left_out",
            "Minibatches left out, since their gradients were not finite.",
            status.left_out,
        )
    yield GaugeMetricFamily("shoal_bad_records", "Records given up.", status.bad_records)
    done = status.tasks_done
    tasks = {
        "done": done,
        "leased": facts.leased,
        "waiting": max(0, status.tasks_total - done - facts.leased),
    }
    yield gauges("shoal_tasks", "Tasks of the job, by state.", "state", tasks)
    if status.has_loss:
        yield GaugeMetricFamily("shoal_loss", "Mean loss of the last seconds.", status.loss)
    if status.HasField("last_evaluation"):
        last = status.last_evaluation
        yield gauges(
            "shoal_evaluation_metric",
            "Metric of the model, as last evaluated.",
            "name",
            dict(last.metrics),
        )
        yield GaugeMetricFamily(
            "shoal_evaluation_version", "Version of the model that was evaluated.", last.version
        )


def _of_processes(facts: _Facts) -> Iterator[Metric]:
    processes = GaugeMetricFamily(
        "shoal_processes", "Workers and servers, by state.", labels=["role", "state"]
    )
    for role, states in facts.processes.items():
        for state in ProcessState:
            processes.add_metric([role, state.value], states[state.value])
    yield processes
    wanted = {"worker": facts.status.workers_wanted, "ps": facts.status.servers_wanted}
    yield gauges("shoal_processes_wanted", "Workers and servers wanted.", "role", wanted)
    restarts = CounterMetricFamily(
        "shoal_restarts",
        "Workers and servers started again, by the reason.",
        labels=["role", "reason"],
    )
    # All of them from the beginning, so that Prometheus sees the first one rise from 0.
    for role in wanted:
        for reason in RESTART_REASONS:
            restarts.add_metric([role, reason], facts.restarts[role, reason])
    yield restarts
    moves = CounterMetricFamily(
        "shoal_moves",
        "Moves of rows between servers, by outcome: completed or given up.",
        labels=["outcome"],
    )
    for outcome in ("completed", "given_up"):
        moves.add_metric([outcome], facts.moves[outcome])
    yield moves
    if facts.scalings is not None:
        scalings = CounterMetricFamily(
            "shoal_scalings",
            "Changes of the number of workers that the job decided on itself, by direction.",
            labels=["direction"],
        )
        for direction in ("up", "down"):
            scalings.add_metric([direction], facts.scalings[direction])
        yield scalings
    yield gauges(
        "shoal_memory_forecast_bytes",
        "Memory that a server will need at the end of the first epoch, once that can be said.",
        "server",
        {
            f"ps-{each.server}": each.memory_forecast
            for each in facts.status.servers
            if each.memory_forecast
        },
    )


def _of_checkpoints(facts: _Facts, config: JobConfig) -> Iterator[Metric]:
    if not Checkpoints.enabled(config):
        return
    yield CounterMetricFamily("shoal_checkpoints", "Checkpoints taken.", facts.checkpoints)
    yield CounterMetricFamily(
        "shoal_checkpoints_failed", "Checkpoints that could not be taken.", facts.failed_checkpoints
    )
    if facts.checkpoint_age is not None:
        yield GaugeMetricFamily(
            "shoal_checkpoint_age_seconds",
            "Time since the newest checkpoint; before the first, since training began.",
            facts.checkpoint_age,
        )
