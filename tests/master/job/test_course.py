"""When rounds of evaluation are worth it, and when trying again is not."""

from __future__ import annotations

import pytest

from shoal.master.job.job import Job
from shoal.master.job.view.status import status_message
from shoal.master.work.accounts.applied import AppliedPush
from shoal.master.work.failures import Failure
from shoal.master.work.outcomes import (
    DataDescribed,
    Done,
    Heartbeat,
    MetricsComputed,
    StatesComputed,
)
from shoal.master.work.phases import Phase
from shoal.master.work.units import Source
from shoal.proto import shoal_pb2 as pb
from tests.master.strategies import begun, confirm, exited, finish_next, take, w

DATA = DataDescribed(training=(Source("t", 20),), validation=(Source("v", 10),))
NO_STATES = StatesComputed(pb.MetricStates())
OUTCOMES = {
    pb.DESCRIBE_DATA: DATA,
    pb.EVALUATE: NO_STATES,
    pb.FINISH_EVALUATION: MetricsComputed({"auc": 0.75}),
}


def evaluate(job: Job) -> None:
    """Worker 0 does a whole round."""
    assert finish_next(job, w(0), NO_STATES).kind == pb.EVALUATE
    assert finish_next(job, w(0), MetricsComputed({})).kind == pb.FINISH_EVALUATION


def test_the_last_pushes_of_training_start_no_round_beside_the_last():
    job = begun(DATA, validation_data="v", evaluation_steps=5, workers="2")
    first = take(job, w(0))
    last = take(job, w(1))
    job.heartbeat(w(0), 0, Heartbeat(first.id, 5, version=6), 1.0)
    job.task_reported(w(0), 0, first.id, Done(), 11, 1.0)
    job.task_reported(w(1), 0, last.id, Done(), 16, 1.0)
    evaluate(job)
    assert job.phases.phase == Phase.SUCCEEDED
    assert [result.version for result in job.work.evaluation_results] == [16]


@pytest.mark.parametrize("left", ["a task", "an epoch", "a dead worker's rest"])
def test_a_round_starts_while_there_is_something_left_to_train(left):
    epochs = 2 if left == "an epoch" else 1
    job = begun(DATA, validation_data="v", evaluation_steps=5, workers="2", epochs=epochs)
    task = take(job, w(0))
    if left != "a task":
        take(job, w(1))
    if left == "a dead worker's rest":
        job.process_exited(exited(w(1)), 1.0)
        job.fenced(w(1), 0, [AppliedPush(0, 0, 0)], 1.0)
    job.heartbeat(w(0), 0, Heartbeat(task.id, 5, version=6), 1.0)
    job.task_reported(w(0), 0, task.id, Done(), 6, 1.0)
    assert take(job, w(0)).kind == pb.EVALUATE


@pytest.mark.parametrize(
    ("epochs", "steps", "expected"),
    [
        (3, -1, [0, 1, 2]),
        (3, 0, [2]),
        (40, -1, [*range(1, 40, 2)]),
        (41, -1, [*range(2, 40, 3), 40]),
    ],
)
def test_the_model_is_evaluated_at_the_end_of_twenty_epochs_at_most(epochs, steps, expected):
    job = begun(DATA, validation_data="v", epochs=epochs, evaluation_steps=steps)
    while not job.ended:
        task = take(job, w(0))
        job.task_reported(w(0), 0, task.id, OUTCOMES.get(task.kind, Done()), 0, 1.0)
        confirm(job, 1.0)
    assert [result.epoch for result in job.work.evaluation_results] == expected


def test_an_evaluation_has_the_loss_of_training_since_the_one_before():
    job = begun(DATA, validation_data="v", epochs=3)
    for losses in ([(1.0, 2), (4.0, 1)], [(0.5, 1)], [(float("inf"), 1)]):
        for loss, batches in losses:
            job.heartbeat(w(0), 0, Heartbeat(loss=loss, loss_batches=batches), 1.0)
        while (task := take(job, w(0))).kind != pb.FINISH_EVALUATION:
            job.task_reported(w(0), 0, task.id, OUTCOMES.get(task.kind, Done()), 0, 1.0)
        job.task_reported(w(0), 0, task.id, OUTCOMES[task.kind], 0, 1.0)
    assert [result.loss for result in job.work.evaluation_results] == [2.0, 0.5, None]
    assert not status_message(job, 1.0).last_evaluation.HasField("loss")


def test_what_an_export_will_lack_is_among_the_messages():
    job = begun(DataDescribed((Source("t", 20),), notes=("no model.keras: bags",)))
    assert any("no model.keras: bags" in text for text in job.record.messages)


def reach(job: Job, kind: pb.TaskKind) -> None:
    """Let worker 0 do all tasks before the first one of this kind, which it then holds."""
    while (task := take(job, w(0))).kind != kind:
        job.task_reported(w(0), 0, task.id, OUTCOMES.get(task.kind, Done()), 0, 1.0)


def fail(job: Job, incarnation: int, message: str) -> None:
    failure = Failure.internal(message, f"Traceback of {message}")
    finish_next(job, w(0), failure, incarnation=incarnation)
    job.process_exited(exited(w(0), incarnation), 1.0)
    if not job.ended:
        job.fenced(w(0), incarnation, [AppliedPush(0, 0, 0)], 1.0)


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        (pb.DESCRIBE_DATA, "reading the data"),
        (pb.FINISH_EVALUATION, "computing the metrics"),
        (pb.EXPORT, "exporting the model"),
    ],
)
def test_an_error_that_repeats_where_all_wait_ends_the_job(kind, what):
    job = begun(validation_data="v", output="o", restore_from="r", relaunch_limit=9)
    reach(job, kind)
    fail(job, 0, "no luck")
    assert not job.ended
    fail(job, 1, "no luck again")
    saves = kind in (pb.FINISH_EVALUATION, pb.EXPORT)  # a model is trained, in no checkpoint
    if saves:
        assert not job.ended
        job.checkpoint_failed("no room", True, 1.0)
        job.checkpoint_failed("no room", True, 1.0 + job.config.storage_patience_seconds)
    assert job.phases.phase == Phase.FAILED
    failure = job.phases.failure
    assert failure is not None
    first, *_ = failure.message.splitlines()
    assert first == f"{what} failed 2 times, the last time with no luck again"
    assert failure.traceback == "Traceback of no luck again"
    assert job.members.workers[w(0)].starts == 2 + saves  # which waits for the checkpoint


def test_errors_at_ranges_and_in_different_rounds_are_not_counted_together():
    job = begun(DATA, validation_data="v", evaluation_steps=1, epochs=3, relaunch_limit=9)
    fail(job, 0, "training")
    fail(job, 1, "training")
    assert not job.ended
    for incarnation in (2, 3):
        finish_next(job, w(0), Done(), incarnation=incarnation, version=incarnation)
        finish_next(job, w(0), NO_STATES, incarnation=incarnation)
        fail(job, incarnation, "metrics")
        assert not job.ended
        finish_next(job, w(0), MetricsComputed({}), incarnation=incarnation + 1)


def test_one_error_where_all_wait_is_forgiven():
    job = begun(DATA, validation_data="v", output="o")
    reach(job, pb.EXPORT)
    fail(job, 0, "a moment's weakness")
    assert finish_next(job, w(0), Done(), incarnation=1).kind == pb.EXPORT
    assert job.phases.phase == Phase.SUCCEEDED
