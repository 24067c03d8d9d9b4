"""A job from its beginning to its end, with one worker that the test plays."""

from __future__ import annotations

from shoal.master.job.events import TaskReported
from shoal.master.job.instructions import Finished
from shoal.master.job.job import Job
from shoal.master.work.outcomes import DataDescribed, Done, MetricsComputed, StatesComputed
from shoal.master.work.units import Source
from shoal.proto import shoal_pb2 as pb
from tests.master.strategies import confirm, take, w

NO_STATES = StatesComputed(pb.MetricStates())


def kinds_until_end(job: Job) -> list[str]:
    """Let worker 0 do all there is; returns the kinds of its tasks."""
    outcomes = {
        pb.DESCRIBE_DATA: DataDescribed(*[(Source("s", 15),)] * 3),
        pb.EVALUATE: NO_STATES,
        pb.FINISH_EVALUATION: MetricsComputed({"auc": 0.75}),
    }
    kinds = []
    while not isinstance(job.task_wanted(w(0), 0, 1.0), Finished):
        task = take(job, w(0))
        kinds.append(pb.TaskKind.Name(task.kind))
        job.on(TaskReported(w(0), 0, task.id, outcomes.get(task.kind, Done()), 0), 1.0)
        confirm(job, 1.0)
    return kinds
