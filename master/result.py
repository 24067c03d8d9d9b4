"""The result of a job: the content of result.json, and writing files whole or not at all."""

from __future__ import annotations

import dataclasses
import math
import platform
from typing import Any

from shoal.base.modules.engines import AUTO, FRAMEWORKS
from shoal.config.conditions import unmet
from shoal.master.job.job import Job
from shoal.master.job.view.status import age, diagnosis, staleness, tables
from shoal.master.work.evaluation.evaluation import EvaluationResult
from shoal.proto import shoal_pb2 as pb


def _numbers(metrics: dict[str, float]) -> dict[str, float | None]:
    # JSON knows no NaN.
    return {name: value if math.isfinite(value) else None for name, value in metrics.items()}


def _evaluation(result: EvaluationResult) -> dict[str, Any]:
    return dataclasses.asdict(result) | {"metrics": _numbers(result.metrics)}


def _slice(of: pb.SliceMetrics) -> dict[str, Any]:
    numbers = {name: getattr(of, name) for name in ("auc", "log_loss", "calibration", "label_mean")}
    told = {name: getattr(of, name) for name in ("metric", "feature", "value", "records")}
    return told | _numbers(numbers)


def _installed(*distributions: str) -> str | None:
    from importlib import metadata  # late: only now it is needed

    for name in distributions:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def _software(job: Job) -> dict[str, str | None]:
    """The versions of what the job ran with.

    Of the engine auto, which only workers in pods settle, those of all frameworks that are there.
    """
    engine = job.config.engine
    versions = {
        name: _installed(*each.distributions)
        for name, each in FRAMEWORKS.items()
        if engine in (name, AUTO)
    }
    return {
        "shoal": _installed("shoal"),
        "engine": engine,
        **{name: found for name, found in versions.items() if found or name == engine},
        "python": platform.python_version(),
    }


def result_of(job: Job, now: float) -> dict[str, Any]:
    """The result of a job that has ended.

    samples_per_second: training records by the time in which they were given out,
        so without starting processes, the last evaluation and the export.
    ledger: also has `pending`, what a failed or stopped job did not come to.
    """
    phases, record = job.phases, job.record
    # Also those that are absent at the end.
    servers = job.members.servers_and_joining
    results = job.work.evaluation_results
    last = _numbers(results[-1].metrics) if results else None
    first = job.work.first.results[-1] if job.work.first.results else None
    ledger = job.work.ledger
    training_seconds = record.training_seconds(now)
    return {
        "job_name": job.config.job_name,
        "command": job.config.command,
        "state": phases.phase.state,
        "metrics": last,
        "evaluations": [_evaluation(result) for result in results],
        "first_evaluation": first and _evaluation(first),
        "slices": [
            _slice(each) for each in (job.work.evaluations if results else job.work.first).slices
        ],
        "held_back": (
            unmet(job.config.publish_if, last, first.metrics if first else None)
            if phases.phase.complete
            else []
        ),
        "ledger": dataclasses.asdict(ledger),
        "left_out": job.left_out.to_json(),
        "bad_records": job.work.failures.bad.to_json(),
        "records": job.work.records[0],
        "continued_from": job.config.continue_from or None,
        "seconds": record.seconds(now),
        "training_seconds": training_seconds,
        "samples_per_second": ledger.trained / training_seconds if training_seconds else 0.0,
        "versions": {str(member.id): member.version for member in job.members.servers.values()},
        "checkpoints": {
            "folder": job.config.checkpoint_dir,
            "taken": job.checkpoints.count,
            "failed": job.checkpoints.failures,
            "last_failure": job.checkpoints.last_failure or None,
            "kept": [dataclasses.asdict(each) for each in job.checkpoints.kept.all],
            "best": job.checkpoints.kept.best or None,
        },
        "staleness": {**staleness(job).to_json(), "seconds": age(job).to_json()},
        "log": _log_of(job, now) if job.config.keeps_log else None,
        "sync": job.updates.to_json(),
        "training_loss": record.loss.course,
        "stage_seconds": record.stage_seconds(
            [member.stage_seconds for member in job.members.workers.values()]
        ),
        "diagnosis": _diagnosis_of(job),
        "tables": {name: dataclasses.asdict(each) for name, each in tables(job).items()},
        "workers": {
            "starts": sum(member.starts for member in job.members.workers.values()),
            "deaths": sum(member.deaths for member in job.members.workers.values()),
        },
        "servers": {
            "starts": sum(member.starts for member in servers),
            "deaths": sum(member.deaths for member in servers),
            "lost_records": sum(job.work.copies.lacked.values()),
            "lost_pushes": sum(lost.count for lost in job.work.copies.lost.values()),
        },
        "software": _software(job),
        "failure": phases.failure and phases.failure.to_json(),
        "messages": list(record.messages),
        "output": job.config.output or None,
        "published": _published(job),
    }


def _published(job: Job) -> dict[str, Any] | None:
    if not job.config.publish:
        return None
    publishing = job.publishing
    return {
        "folder": job.config.publish,
        "deltas": publishing.count,
        "newest": publishing.newest or None,
        "bytes": publishing.bytes,
        "last_failure": publishing.last_failure or None,
    }


def _diagnosis_of(job: Job) -> dict[str, str] | None:
    if (found := diagnosis(job)) is None:
        return None
    return {
        "bound_by": found.bound_by.value,
        "evidence": found.evidence,
        "advice": found.advice,
    }


def _log_of(job: Job, now: float) -> dict[str, Any]:
    """The counts of --durability=log for result.json: pushes done again, and times unprotected."""
    members = job.members.servers.values()
    return {
        "replayed_pushes": sum(member.replayed for member in members),
        "unprotected": {
            "times": sum(member.absences for member in members),
            "seconds": sum(member.seconds_unprotected(now) for member in members),
        },
    }
