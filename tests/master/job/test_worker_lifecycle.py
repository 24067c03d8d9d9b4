"""What the end and the silence of a worker lead to: a fence, its task for others, a successor."""

from __future__ import annotations

import pytest

from shoal.master.job.events import ProcessFailed, TaskReported, WorkerFenced
from shoal.master.job.instructions import (
    FenceWorker,
    KillProcess,
    StartProcess,
    Wait,
)
from shoal.master.result import result_of
from shoal.master.work.accounts.applied import AppliedPush
from shoal.master.work.accounts.ledger import Ledger
from shoal.master.work.failures import Failure
from shoal.master.work.ids import Start
from shoal.master.work.outcomes import (
    DataDescribed,
    Done,
)
from shoal.master.work.phases import Phase
from shoal.master.work.units import Source, Span
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError
from tests.master.strategies import begun, exited, finish_next, heartbeat, take, w

TRAINING = DataDescribed(training=(Source("t", 20),))


def test_a_dead_workers_rest_is_requeued_after_the_fence_and_it_is_started_again():
    # 1. worker 0 holds a task; 2. its process dies; 3. the servers fence it;
    # 4. only then the rest is given out and a new incarnation started.
    job = begun(TRAINING, workers="2", servers="2")
    task = take(job, w(0))
    job.heartbeat(w(0), 0, heartbeat(task.id, 2), 1.0)
    job.on(exited(w(0)), 2.0)
    assert job.take_instructions() == [FenceWorker(w(0), 0)]
    other = finish_next(job, w(1), Done())
    assert other.span != task.span
    assert isinstance(job.task_wanted(w(1), 0, 2.0), Wait)
    with pytest.raises(WireError, match="FENCED"):
        job.heartbeat(w(0), 0, heartbeat(task.id, 9), 2.0)
    pushes = [AppliedPush(4, task.id, 4), AppliedPush(6, task.id, 6)]
    job.on(WorkerFenced(w(0), 0, pushes), 3.0)
    job.on(WorkerFenced(w(0), 0, pushes), 3.0)
    assert job.take_instructions() == [StartProcess(Start(w(0), 1))]
    rest = finish_next(job, w(1), Done())
    assert rest.span == Span("t", task.span.start + 4, task.span.end)
    assert job.work.ledger == Ledger(total=20, trained_once=18, repeated=2)
    assert job.phases.phase == Phase.SUCCEEDED
    result = result_of(job, 5.0)
    assert result["workers"] == {"starts": 3, "deaths": 1}
    assert any("worker-0 died (signal 9, SIGKILL)" in text for text in result["messages"])


def test_a_silent_worker_is_killed_and_fenced_at_exactly_the_timeout():
    job = begun(TRAINING, workers="2", timeout_seconds=30.0)
    take(job, w(0), now=5.0)
    job.task_wanted(w(1), 0, 20.0)
    job.tick(35.0)
    assert job.take_instructions() == []
    job.tick(35.1)
    assert job.take_instructions() == [KillProcess(Start(w(0), 0)), FenceWorker(w(0), 0)]
    job.on(exited(w(0)), 35.2)
    assert job.take_instructions() == []
    job.on(WorkerFenced(w(0), 0, [None]), 35.3)
    assert job.take_instructions() == [StartProcess(Start(w(0), 1))]
    assert job.members.workers[w(0)].deaths == 1


def test_a_task_other_than_training_is_given_out_again_at_once():
    job = begun(workers="2")
    take(job, w(0))
    job.on(exited(w(0)), 1.0)
    assert take(job, w(1)).kind == pb.DESCRIBE_DATA


def test_an_internal_failure_counts_like_a_crash():
    job = begun(TRAINING)
    task = finish_next(job, w(0), Failure.internal("lost its way", "Traceback x"))
    assert job.take_instructions() == [KillProcess(Start(w(0), 0)), FenceWorker(w(0), 0)]
    job.on(exited(w(0)), 1.0)
    job.on(WorkerFenced(w(0), 0, [AppliedPush(0, 0, 0)]), 1.0)
    assert job.take_instructions() == [StartProcess(Start(w(0), 1))]
    assert take(job, w(0), 1).span == task.span


def test_the_relaunch_limit_ends_the_job_with_the_log():
    job = begun(TRAINING, relaunch_limit=1)
    for incarnation in (0, 1):
        job.on(exited(w(0), incarnation, code=3, signal_number=None, last_lines="Boom!"), 1.0)
        job.on(WorkerFenced(w(0), incarnation, [AppliedPush(0, 0, 0)]), 1.0)
    message = job.phases.failure.message
    assert "worker-0 failed 2 times" in message
    assert "--relaunch-limit 1" in message
    assert "exit code 3" in message
    assert "some.log" in message
    assert "Boom!" in message


def test_the_relaunch_limit_ends_the_job_with_what_the_worker_reported():
    job = begun(TRAINING, relaunch_limit=0)
    job.on(ProcessFailed(Start(w(0), 0), Failure.internal("no memory", "Traceback y")), 1.0)
    job.on(exited(w(0)), 1.0)
    job.on(WorkerFenced(w(0), 0, [None]), 1.0)
    assert "no memory" in job.phases.failure.message
    assert job.phases.failure.traceback == "Traceback y"


def test_a_users_error_at_a_workers_start_ends_the_job_with_its_message():
    job = begun()
    job.on(ProcessFailed(Start(w(0), 0), Failure.of_user("model.py has no loss")), 1.0)
    assert job.phases.failure == Failure.of_user("model.py has no loss")


def test_workers_that_do_not_reach_a_server_are_replaced_without_limit():
    job = begun(TRAINING, workers="1", relaunch_limit=0)
    away = Failure(pb.SERVER_AWAY, "parameter server 0 has been out of reach for 9 s")
    for incarnation in range(5):
        now = 10.0 * incarnation
        task = take(job, w(0), incarnation, now=now)
        job.on(TaskReported(w(0), incarnation, task.id, away, 0), now + 1.0)
        job.on(exited(w(0), incarnation), now + 2.0)
        job.on(WorkerFenced(w(0), incarnation, [None]), now + 3.0)
        assert StartProcess(Start(w(0), incarnation + 1)) in job.take_instructions()
    # At its start, too, when it holds no task.
    job.task_wanted(w(0), 5, 60.0)
    job.on(ProcessFailed(Start(w(0), 5), away), 61.0)
    job.on(WorkerFenced(w(0), 5, [None]), 62.0)
    job.on(exited(w(0), 5), 63.0)
    assert StartProcess(Start(w(0), 6)) in job.take_instructions()
    assert job.phases.failure is None
    assert any("has been out of reach" in text for text in job.record.messages)
