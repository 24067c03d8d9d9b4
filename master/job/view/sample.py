"""The figures of one moment of a job, as metrics.csv keeps them. Reads only."""

from __future__ import annotations

from typing import Any

from shoal.master.job.job import Job
from shoal.master.job.view.status import staleness, tables
from shoal.master.work.evaluation.evaluation import EvaluationResult
from shoal.master.work.phases import Phase

SCALARS = {
    "loss": "training/loss",
    "samples_per_second": "training/samples_per_second",
    "learning_rate": "training/learning_rate",
    "mean_staleness": "training/mean_staleness",
    "epoch": "training/epoch",
    "workers": "job/workers",
    "servers": "job/servers",
    "worker_deaths": "job/worker_deaths",
    "server_deaths": "job/server_deaths",
    "rows": "tables/rows",
    "table_bytes": "tables/bytes",
    "counted_ids": "tables/counted_ids",
    "removed_rows": "tables/removed_rows",
}
"""Figure -> its name in TensorBoard and MLflow."""

EVALUATION = "evaluation/"
"""Before the name of an evaluation metric, there."""


def sample_of(job: Job, now: float) -> dict[str, Any]:
    """The figures at the time `now`, by column of metrics.csv; None: not known."""
    members, record = job.members, job.record
    servers, workers = members.servers.values(), members.workers.values()
    of_tables = tables(job).values()
    working = job.phases.phase in (Phase.TRAINING, Phase.PREDICTING)
    return {
        "seconds": record.seconds(now),
        "state": job.phases.phase.state,
        "epoch": job.work.epoch,
        "version": round(sum(member.version for member in servers) / len(members.servers)),
        "records": job.work.records[0],
        "samples_per_second": record.throughput.per_second if working else 0.0,
        "loss": record.loss.mean,
        "learning_rate": record.learning_rate,
        "mean_staleness": staleness(job).mean,
        "workers": members.workers_alive,
        "servers": members.servers_alive,
        "worker_deaths": sum(member.deaths for member in workers),
        "server_deaths": sum(member.deaths for member in servers),
        "rows": sum(table.rows for table in of_tables),
        "table_bytes": sum(table.memory_bytes for table in of_tables),
        "counted_ids": sum(table.counting for table in of_tables),
        "removed_rows": sum(table.expired + table.evicted for table in of_tables),
    }


def evaluations_from(job: Job, first: int) -> list[EvaluationResult]:
    """The rounds of evaluation that have ended, but for the `first` oldest."""
    return job.work.evaluation_results[first:]
