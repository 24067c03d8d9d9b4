"""The status of a running job, as the command line and others ask for it. Reads only."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from shoal.master.job.job import Job
from shoal.master.job.waiting import waits_for, waits_progress
from shoal.proto import shoal_pb2 as pb
from shoal.proto.distribution import Distribution
from shoal.proto.protocol import own_protocol


def position(job: Job, now: float) -> dict[str, Any]:
    """Where the job is, as the manifest of a checkpoint keeps it. JSON.

    held: training tasks under way, by worker: their records, and how many of them all
        servers have acknowledged.
    """
    del now  # a checkpoint has a time of its own
    held = {}
    for worker in job.members.workers:
        task = job.leases.held(worker)
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
    """Of the pushes that the servers applied, in pushes."""
    return Distribution.merged(member.staleness for member in job.members.servers.values())


def age(job: Job) -> Distribution:
    """Seconds between pull and push, of the pushes that the servers applied."""
    return Distribution.merged(member.age for member in job.members.servers.values())


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
        num_epochs=job.config.num_epochs,
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
        servers_wanted=len(members.servers),
        version=round(sum(versions) / len(versions)),
        mean_staleness=staleness(job).mean,
        seconds=record.seconds(now),
        messages=record.messages,
        records_done=records_done,
        records_total=records_total,
        bad_records=len(job.work.failures.bad.given_up),
        left_out=job.left_out.minibatches,
        trouble=trouble[1] if trouble[0] >= TROUBLE_SECONDS else "",
        waits_for=waits_for(job),
        waits_progress=waits_progress(job),
        stage_seconds=record.stage_seconds(
            [member.stage_seconds for member in members.workers.values()]
        ),
    )
    if job.work.evaluation_results:
        last = job.work.evaluation_results[-1]
        status.last_evaluation.CopyFrom(
            pb.EvaluationResult(
                version=last.version, epoch=last.epoch, metrics=last.metrics, records=last.records
            )
        )
    if phases.failure is not None:
        status.failure.CopyFrom(phases.failure.to_message())
    return status
