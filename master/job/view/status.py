"""The status of a running job, as the command line and others ask for it. Reads only."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import asdict, dataclass, replace
from typing import Any

from shoal.master.job.job import Job
from shoal.master.job.members.members import ServerMember, WorkerMember
from shoal.master.job.scaling.stage_times import WorkerTime
from shoal.master.job.view.diagnosis import Diagnosis, Facts, diagnose
from shoal.master.job.view.waiting import waits_for, waits_progress
from shoal.proto import shoal_pb2 as pb
from shoal.proto.protocol import own_protocol
from shoal.proto.values.distribution import Distribution

logger = logging.getLogger(__name__)


def position(job: Job, now: float) -> dict[str, Any]:
    """The job's position, as the manifest of a checkpoint keeps it. JSON.

    held: training tasks under way, by worker: their records, and how many of them all
        servers have acknowledged.
    """
    del now  # a checkpoint has a time of its own
    held = {}
    for worker, member in job.members.workers.items():
        task = member.held
        if task is not None and (span := task.span) is not None and task.kind == pb.TRAIN:
            acknowledged = job.work.done(task)
            held[str(worker)] = asdict(span) | {"task": task.id, "acknowledged": acknowledged}
    return {
        "phase": job.phases.phase.state,
        "epoch": job.work.epoch,
        "version": job.phases.version,
        "records": asdict(job.work.ledger),
        "held": held,
    }


def staleness(job: Job) -> Distribution:
    """The staleness of the pushes that the servers applied, in pushes."""
    return Distribution.merged(member.staleness for member in job.members.servers.values())


@dataclass
class TableFigures:
    """A table over all servers, by their last statuses.

    counting: ids that are counted and have no row. expired, evicted: rows that sweeps have removed
    since the job began, by expire_after and by max_rows. counts: ids removed that were counted.
    """

    rows: int = 0
    counting: int = 0
    memory_bytes: int = 0
    expired: int = 0
    evicted: int = 0
    counts: int = 0


def tables(job: Job) -> dict[str, TableFigures]:
    """The tables by name."""
    found: dict[str, TableFigures] = {}
    for member in job.members.servers.values():
        for table in member.told.tables:
            figures = found.setdefault(table.name, TableFigures())
            figures.rows += table.rows
            figures.counting += table.counting
            figures.memory_bytes += table.memory_bytes
            figures.expired += table.removed.expired
            figures.evicted += table.removed.evicted
            figures.counts += table.removed.counts
    return found


def row_norms(job: Job) -> dict[tuple[int, str], pb.Distribution]:
    """By server and table: L2 norms of the rows that its process has looked at so far.

    Their buckets are those of proto/values/norms.py. Empty if no server looks.
    """
    return {
        (member.id.index, table.name): table.row_norms
        for member in job.members.servers.values()
        for table in member.told.tables
        if table.row_norms.count
    }


def age(job: Job) -> Distribution:
    """Seconds between pull and push, of the pushes that the servers applied."""
    return Distribution.merged(member.age for member in job.members.servers.values())


def diagnosis(job: Job) -> Diagnosis | None:
    """The bound of training, by all of it so far; None if the job trains nothing.

    None as well if that cannot be told for a mistake of ours, which is logged.
    """
    if job.config.command != "train" or not job.record.training_started:
        return None
    try:
        return diagnose(_facts(job))
    except Exception as error:  # it is advice alone, and the job's status and result have it
        text = f"what bounds training cannot be told: {error!r}"
        # The status is asked for all the time.
        logger.log(logging.DEBUG if text in _told else logging.ERROR, text, exc_info=True)
        _told.add(text)
        return None


_told: set[str] = set()
"""Of this process: what was logged as an error already."""


def _facts(job: Job) -> Facts:
    members, config = job.members, job.config
    return Facts(
        workers=[
            WorkerTime(
                str(each.id),
                each.stages_before + Counter(each.stage_seconds),
                each.steps_before + each.steps_done,
            )
            for each in members.workers.values()
        ],
        cores=[
            each.trained_cpu_seconds / each.trained_seconds
            for each in members.servers.values()
            if each.trained_seconds
        ],
        servers=len(members.servers),
        batch_size=config.batch_size,
        accumulated=config.accumulate,
        pipelined=any(each.pipeline[0] > 0 for each in members.workers.values()),
        machine_cores=job.record.cores_in_use.cores,
        cores_in_use=job.record.cores_in_use.mean,
    )


TROUBLE_SECONDS = 5.0
"""For which nothing could be written, before it is told: a busy disk is none."""


def status_message(job: Job, now: float, trouble: tuple[float, str] = (0.0, "")) -> pb.JobStatus:
    """The job's state at the time `now`. trouble: as `Journal.trouble`."""
    phases, members, record = job.phases, job.members, job.record
    ledger = job.work.ledger
    tasks_done, tasks_total = job.work.tasks
    records_done, records_total = job.work.records
    versions = [member.version for member in members.servers.values()]
    status = pb.JobStatus(
        protocol=own_protocol(),
        job_name=job.config.job_name,
        state=phases.phase.state,
        epoch=job.work.epoch,
        epochs=job.config.epochs,
        tasks_done=tasks_done,
        tasks_total=tasks_total,
        ledger=pb.Ledger(
            total=ledger.total,
            trained_once=ledger.trained_once,
            repeated=ledger.repeated,
            failed=ledger.failed,
            pending=ledger.pending,
        ),
        samples_per_second=record.throughput.per_second,
        loss=record.loss.mean or 0.0,
        has_loss=record.loss.mean is not None,
        workers_alive=members.workers_alive,
        workers_wanted=members.workers_expected,
        servers_alive=members.servers_alive,
        servers_wanted=job.moves.routing.servers,
        version=round(sum(versions) / len(versions)),
        mean_staleness=staleness(job).mean,
        seconds=record.seconds(now),
        messages=record.messages,
        records_done=records_done,
        records_total=records_total,
        bad_records=job.work.failures.bad.count,
        left_out=job.left_out.minibatches,
        trouble=trouble[1] if trouble[0] >= TROUBLE_SECONDS else "",
        waits_for=waits_for(job),
        waits_progress=waits_progress(job),
        stage_seconds=record.stage_seconds(
            [member.stage_seconds for member in members.workers.values()]
        ),
        workers=[_worker_view(job, member) for member in members.workers.values()],
        servers=[_server_view(job, member) for member in members.servers.values()],
    )
    if (found := diagnosis(job)) is not None:
        status.diagnosis.CopyFrom(
            pb.Diagnosis(
                bound_by=found.bound_by.value, evidence=found.evidence, advice=found.advice
            )
        )
    if job.checkpoints.count and (age_of_newest := job.checkpoints.age(now)) is not None:
        status.checkpoint_seconds = age_of_newest
    if job.publishing.newest and (age_of_delta := job.publishing.age(now)) is not None:
        status.delta, status.published_seconds = job.publishing.newest, age_of_delta
    if job.work.evaluation_results:
        last = job.work.evaluation_results[-1]
        status.last_evaluation.CopyFrom(
            pb.EvaluationResult(
                version=last.version,
                epoch=last.epoch,
                metrics=last.metrics,
                records=last.records,
                loss=last.loss,
            )
        )
    if phases.failure is not None:
        status.failure.CopyFrom(phases.failure.to_message())
    return status


def _worker_view(job: Job, member: WorkerMember) -> pb.WorkerView:
    view = pb.WorkerView(
        worker=member.id.index,
        state=member.state.value,
        incarnation=max(member.incarnation, 0),
        starts=member.starts,
        deaths=member.deaths,
        waits_for=member.waits_for or member.slow_at,
        stage_seconds=member.stage_seconds,
        pipeline_depth=member.pipeline[0],
        pipeline_why=member.pipeline[1],
    )
    if (task := member.held) is not None:
        view.task.CopyFrom(replace(task, states=None).to_message())
        view.records_done = job.work.done(task)
    return view


def _server_view(job: Job, member: ServerMember) -> pb.ServerView:
    view = pb.ServerView(
        server=member.id.index,
        state=member.state.value,
        incarnation=max(member.incarnation, 0),
        starts=member.starts,
        deaths=member.deaths,
        progress=member.progress.what,
        unprotected=member.unprotected,
        told=member.told,
        memory_forecast=job.servers.memory.of(member.id.index),
    )
    # Of all servers together the status has them, and the place in the journal is the master's.
    for known in ("staleness", "age", "journal", "has"):
        view.told.ClearField(known)
    return view
