"""A training task leased beside the one at work: who gets it, and what a death makes of both."""

import pytest

from shoal.master.job.events import TaskAheadWanted, TaskReported, WorkerFenced, WorkerRegistered
from shoal.master.job.instructions import Assignment, Finished
from shoal.master.work.accounts.applied import AppliedPush
from shoal.master.work.accounts.ledger import Ledger
from shoal.master.work.failures import Failure
from shoal.master.work.outcomes import (
    DataDescribed,
    Done,
    MetricsComputed,
    StatesComputed,
)
from shoal.master.work.phases import Phase
from shoal.master.work.units import Source, Task
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError
from tests.master.strategies import begun, exited, finish_next, heartbeat, take, w

FOUR = DataDescribed((Source("t", 40),))


def ahead(job, worker, held):
    task = job.on(TaskAheadWanted(worker, 0, held.id), 1.0)
    assert isinstance(task, Task)
    return task


def report(job, worker, task, outcome=None):
    job.on(TaskReported(worker, 0, task.id, outcome or Done(), 0), 1.0)


def test_it_goes_on_with_it_once_the_one_before_is_reported():
    job = begun(FOUR, workers="1")
    first = take(job, w(0))
    second = ahead(job, w(0), first)
    assert ahead(job, w(0), first) == second  # the answer was lost
    # One that has not begun has none after it, nor one that is over.
    assert job.on(TaskAheadWanted(w(0), 0, second.id), 1.0) == Finished()
    with pytest.raises(WireError, match="does not hold"):
        report(job, w(0), second)
    report(job, w(0), first)
    assert job.on(TaskAheadWanted(w(0), 0, first.id), 1.0) == Finished()
    assert job.members.workers[w(0)].held == take(job, w(0)) == second
    job.heartbeat(w(0), 0, heartbeat(second.id, 5), 1.0)
    assert job.work.ledger.trained_once == 15
    third = ahead(job, w(0), second)
    assert len({first.span, second.span, third.span}) == 3


def test_a_dead_workers_two_tasks_go_back_each_as_far_as_it_was_not_done():
    job = begun(FOUR, workers="1", servers="2")
    first = take(job, w(0))
    second = ahead(job, w(0), first)
    job.on(exited(w(0)), 2.0)
    job.on(WorkerFenced(w(0), 0, [AppliedPush(1, first.id, 5), AppliedPush(2, first.id, 10)]), 3.0)
    assert job.work.ledger == Ledger(total=40, trained_once=5, pending=35)
    job.on(WorkerRegistered(w(0), 1), 4.0)
    again = []
    while job.phases.phase == Phase.TRAINING:
        task = take(job, w(0), incarnation=1)
        again.append(task.span)
        job.on(TaskReported(w(0), 1, task.id, Done(), 0), 5.0)
    assert len(again) == 4
    assert {len(span) for span in again} == {5, 10}
    assert second.span in again
    assert job.work.ledger == Ledger(total=40, trained_once=35, repeated=5)


def test_the_last_tasks_go_to_who_is_free_first():
    job = begun(FOUR, workers="2")
    first = take(job, w(0))
    second = ahead(job, w(0), first)
    take(job, w(1))
    # One task is left, for two workers.
    assert job.on(TaskAheadWanted(w(1), 0, job.members.workers[w(1)].held.id), 1.0) == Finished()
    report(job, w(0), first)
    assert job.on(TaskAheadWanted(w(0), 0, second.id), 1.0) == Finished()


def test_an_evaluation_that_is_due_comes_first():
    job = begun(
        DataDescribed((Source("t", 40),), (Source("v", 10),)),
        evaluation_steps=2,
        workers="1",
        validation_data="v.csv",
    )
    first = take(job, w(0))
    job.heartbeat(w(0), 0, heartbeat(first.id, 5, version=2), 1.0)
    assert job.on(TaskAheadWanted(w(0), 0, first.id), 1.0) == Finished()
    report(job, w(0), first)
    assert take(job, w(0)).kind == pb.EVALUATE


def test_no_task_is_leased_ahead_of_an_evaluation_at_the_end_of_an_epoch():
    """With one worker the model is that of the epoch's end, as in Keras."""
    job = begun(
        DataDescribed((Source("t", 40),), (Source("v", 10),)), epochs=2, validation_data="v.csv"
    )
    task = take(job, w(0))
    while not isinstance(after := job.on(TaskAheadWanted(w(0), 0, task.id), 1.0), Finished):
        job.on(TaskReported(w(0), 0, task.id, Done(), 3), 1.0)
        task = after
    assert job.work.ledger.trained == 40 - task.records
    job.on(TaskReported(w(0), 0, task.id, Done(), 4), 1.0)
    assert finish_next(job, w(0), StatesComputed(pb.MetricStates())).kind == pb.EVALUATE
    finish_next(job, w(0), MetricsComputed({}))
    (result,) = job.work.evaluation_results
    assert (result.version, result.epoch, job.work.ledger.trained) == (4, 0, 40)
    assert take(job, w(0)).kind == pb.TRAIN


def test_an_error_at_the_task_at_work_leaves_the_one_ahead_to_the_same_worker():
    job = begun(FOUR, workers="1")
    first = take(job, w(0))
    second = ahead(job, w(0), first)
    report(job, w(0), first, Failure(pb.INTERNAL, "oops", ""))
    assert (
        job.members.workers[w(0)].held == first
    )  # until it is fenced: the worker is taken for dead
    job = begun(FOUR, workers="1", max_bad_records=40)
    first = take(job, w(0))
    second = ahead(job, w(0), first)
    report(job, w(0), first, Failure(pb.USER_CODE, "oops", "", first.span))
    assert job.phases.phase == Phase.TRAINING
    assert job.members.workers[w(0)].held == take(job, w(0)) == second


def report_and_ask(job, worker, task, held):
    return job.report_made(TaskReported(worker, 0, task.id, Done(), 0), held.id, 1.0)


def test_the_one_after_is_leased_with_the_report_as_by_a_call_of_its_own():
    apart, together = begun(FOUR, workers="1"), begun(FOUR, workers="1")
    for job in (apart, together):
        ahead(job, w(0), take(job, w(0)))
    while (first := apart.members.workers[w(0)].held) is not None:
        second = apart.members.workers[w(0)].ahead
        assert (together.members.workers[w(0)].held, together.members.workers[w(0)].ahead) == (
            first,
            second,
        )
        report(apart, w(0), first)
        if second is None:
            report(together, w(0), first)
            break
        third = apart.on(TaskAheadWanted(w(0), 0, second.id), 1.0)
        answer = report_and_ask(together, w(0), first, second)
        # The last task is not leased ahead: it goes to who is free first.
        assert (answer.task if isinstance(answer, Assignment) else answer) == third
        assert report_and_ask(together, w(0), first, second) == answer  # the answer was lost
    left = Ledger(total=40, trained_once=30, pending=10)
    assert together.work.ledger == apart.work.ledger == left


def test_a_report_that_is_refused_leases_nothing():
    job = begun(FOUR, workers="1")
    first = take(job, w(0))
    second = ahead(job, w(0), first)
    with pytest.raises(WireError, match="does not hold"):
        report_and_ask(job, w(0), second, second)
    assert (job.members.workers[w(0)].held, job.members.workers[w(0)].ahead) == (first, second)
    report(job, w(0), first)
    assert job.members.workers[w(0)].ahead is None  # nothing was asked for
