"""--evaluation-workers: who evaluates while training goes on, and what becomes of it by deaths."""

import pytest

from shoal.errors import UserError
from shoal.master.job.events import TaskAheadWanted, TaskReported
from shoal.master.job.instructions import Wait
from shoal.master.work.outcomes import (
    DataDescribed,
    Done,
    MetricsComputed,
    StatesComputed,
)
from shoal.master.work.phases import Phase
from shoal.master.work.units import Source, Task
from shoal.proto import shoal_pb2 as pb
from tests.master.strategies import begun, config, exited, heartbeat, take, w

DATA = DataDescribed((Source("t", 60),), (Source("v", 20),))
FIELDS = {"evaluation_steps": 2, "evaluation_workers": 1, "validation_data": "v.csv"}


def job_with(workers=3):
    return begun(DATA, workers=str(workers), **FIELDS)


def wanted(job, worker):
    return job.task_wanted(worker, 0, 1.0)


def test_the_first_one_evaluates_and_the_others_train_on():
    job = job_with()
    assert isinstance(wanted(job, w(0)), Wait)
    first = take(job, w(1))
    assert first.kind == pb.TRAIN
    job.heartbeat(w(1), 0, heartbeat(first.id, 5, version=2), 1.0)
    # A round is due now: for worker-0, and nobody else is kept from training ahead.
    assert job.on(TaskAheadWanted(w(1), 0, first.id), 1.0).kind == pb.TRAIN
    assert take(job, w(2)).kind == pb.TRAIN
    assert take(job, w(0)).kind == pb.EVALUATE
    for kind in (pb.EVALUATE, pb.EVALUATE, pb.FINISH_EVALUATION):
        task = take(job, w(0))
        assert task.kind == kind
        job.on(TaskReported(w(0), 0, task.id, OUTCOMES[kind], 2), 1.0)
    assert len(job.work.evaluation_results) == 1
    assert isinstance(wanted(job, w(0)), Wait)


OUTCOMES = {
    pb.TRAIN: Done(),
    pb.EVALUATE: StatesComputed(pb.MetricStates()),
    pb.FINISH_EVALUATION: MetricsComputed({"loss": 1.0}),
}


@pytest.mark.parametrize(("dead", "left"), [((0,), (1, 2)), ((1, 2), (0,))])
def test_where_one_kind_has_nobody_the_others_do_everything(dead, left):
    job = job_with()
    for index in dead:
        job.on(exited(w(index)), 2.0)
    kinds = []
    while job.phases.phase == Phase.TRAINING:
        for index in left:
            task = wanted(job, w(index))
            if isinstance(task, Task):
                kinds.append(task.kind)
                version = min(2, kinds.count(pb.TRAIN))
                job.on(TaskReported(w(index), 0, task.id, OUTCOMES[task.kind], version), 3.0)
    assert kinds.count(pb.TRAIN) == 6
    assert kinds.count(pb.EVALUATE) >= 2
    # In the midst of training, and not behind it.
    assert kinds.index(pb.FINISH_EVALUATION) < len(kinds) - 1 - kinds[::-1].index(pb.TRAIN)


def test_all_evaluate_when_training_is_over():
    job = job_with()
    while job.phases.phase == Phase.TRAINING:
        for index in (1, 2):
            task = wanted(job, w(index))
            if isinstance(task, Task) and task.kind == pb.TRAIN:
                job.on(TaskReported(w(index), 0, task.id, Done(), 1), 1.0)
    assert job.phases.phase == Phase.EVALUATING
    assert {take(job, w(index)).kind for index in (1, 2)} == {pb.EVALUATE}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"workers": "2", "evaluation_workers": 2}, r"\(2\) must be below --workers \(2\)"),
        ({"workers": "2", "validation_data": ""}, "needs --validation-data"),
    ],
)
def test_evaluation_workers_that_cannot_be_are_refused(fields, message):
    with pytest.raises(UserError, match=message):
        config(**(FIELDS | fields))


def test_synchronous_updates_wait_for_those_that_train():
    assert config(workers="3", sync=True, **FIELDS).gradients_per_update == 2
