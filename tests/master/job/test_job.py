"""The job as a state machine: events in, answers and instructions out, time given."""

from __future__ import annotations

import itertools
import re

import pytest

from shoal.base.transitions import InvalidTransitionError
from shoal.config.job import START_SECONDS
from shoal.master.calls.server_work import note_status
from shoal.master.job import events
from shoal.master.job.instructions import (
    FenceWorker,
    Finished,
    KillProcess,
    StartProcess,
    Wait,
)
from shoal.master.job.job import Job
from shoal.master.job.view.status import status_message
from shoal.master.result import result_of
from shoal.master.work import phases
from shoal.master.work.failures import Failure
from shoal.master.work.ids import ServerId, Start
from shoal.master.work.outcomes import (
    DataDescribed,
    Done,
    MetricsComputed,
    StatesComputed,
)
from shoal.master.work.phases import Phase
from shoal.master.work.record import Throughput
from shoal.master.work.units import Source
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError
from shoal.proto.values import metric_states
from tests.master.job.whole_jobs import NO_STATES, kinds_until_end
from tests.master.strategies import begun, config, exited, finish_next, heartbeat, take, w

TRAINING = DataDescribed(training=(Source("t", 20),))
WITH_VALIDATION = DataDescribed(training=(Source("t", 20),), validation=(Source("v", 15),))


EVALUATION = ["EVALUATE", "EVALUATE", "FINISH_EVALUATION"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ["DESCRIBE_DATA", "TRAIN", "TRAIN"]),
        ({"validation_data": "v"}, ["DESCRIBE_DATA", "TRAIN", "TRAIN", *EVALUATION]),
        (
            {"validation_data": "v", "output": "o", "restore_from": "r"},
            ["DESCRIBE_DATA", "TRAIN", "TRAIN", *EVALUATION, "EXPORT"],
        ),
        ({"output": "o"}, ["DESCRIBE_DATA", "TRAIN", "TRAIN", "EXPORT"]),
        (
            {"command": "evaluate", "validation_data": "v", "restore_from": "r"},
            ["DESCRIBE_DATA", *EVALUATION],
        ),
        (
            {"command": "predict", "prediction_data": "p", "restore_from": "r", "output": "o"},
            ["DESCRIBE_DATA", "PREDICT", "PREDICT", "FINISH_PREDICTION"],
        ),
    ],
)
def test_the_phases_of_each_command(changes, expected):
    job = begun(**changes)
    assert kinds_until_end(job) == expected
    assert job.phases.phase == Phase.SUCCEEDED
    assert status_message(job, 2.0).records_done == status_message(job, 2.0).records_total == 15


def test_every_planned_step_is_allowed_and_ended_phases_have_none():
    plan = phases.plan(config(validation_data="v", output="o", restore_from="r"))
    for source, target in itertools.pairwise(plan):
        phases.TRANSITIONS.step(source, target)
    for ended in (Phase.SUCCEEDED, Phase.FAILED, Phase.STOPPED):
        with pytest.raises(InvalidTransitionError, match=ended.name):
            phases.TRANSITIONS.step(ended, Phase.TRAINING)


def test_all_processes_are_started_at_once_and_workers_wait_for_servers():
    job = Job(config(workers="2", servers="2"))
    job.on(events.JobBegun(), 0.0)
    starts = [i.start for i in job.take_instructions() if isinstance(i, StartProcess)]
    assert sorted(map(str, starts)) == ["ps-0.0", "ps-1.0", "worker-0.0", "worker-1.0"]
    job.on(events.ServerRegistered(ServerId(1), 0, "b:1"), 0.1)
    with pytest.raises(WireError, match="NOT_READY"):
        job.on(events.WorkerRegistered(w(0), 0), 0.2)
    assert job.task_wanted(w(0), 0, 0.2) == Wait(0.2)
    job.on(events.ServerRegistered(ServerId(0), 0, "a:1"), 0.3)
    welcome = pb.RegisterWorkerReply(servers=["a:1", "b:1"])
    assert job.on(events.WorkerRegistered(w(0), 0), 0.4) == welcome


def test_while_one_worker_describes_the_data_others_wait():
    job = begun(workers="2")
    assert take(job, w(0)).kind == pb.DESCRIBE_DATA
    assert isinstance(job.task_wanted(w(1), 0, 1.0), Wait)


@pytest.mark.parametrize(
    ("changes", "data", "named"),
    [
        ({}, DataDescribed(training=(Source("t", 0),)), "--training-data train.csv"),
        ({"validation_data": "v.csv"}, TRAINING, "--validation-data v.csv"),
    ],
)
def test_empty_data_is_a_users_error_that_names_the_flag(changes, data, named):
    job = begun(data, **changes)
    assert job.phases.phase == Phase.FAILED
    assert job.phases.failure == Failure.of_user(f"{named} holds no records")


def test_answers_that_were_lost_are_repeated():
    job = begun(TRAINING)
    task = take(job, w(0))
    assert take(job, w(0)) is task
    job.on(events.TaskReported(w(0), 0, task.id, Done(), 0), 1.0)
    job.on(events.TaskReported(w(0), 0, task.id, Done(), 0), 1.0)
    assert job.work.ledger.trained_once == 10


def test_a_report_must_fit_the_lease():
    job = begun(TRAINING)
    with pytest.raises(WireError, match="UNKNOWN_TASK"):
        job.on(events.TaskReported(w(0), 0, 99, Done(), 0), 1.0)
    task = take(job, w(0))
    with pytest.raises(WireError, match="BAD_REQUEST"):
        job.on(events.TaskReported(w(0), 0, task.id, NO_STATES, 0), 1.0)


def test_heartbeats_carry_progress_loss_and_version():
    job = begun(TRAINING)
    task = take(job, w(0))
    answer = job.heartbeat(
        w(0),
        0,
        heartbeat(task.id, 5, version=3, loss=0.5, loss_batches=1, stage_seconds={"pull": 1.0}),
        2.0,
    )
    assert answer == pb.HeartbeatReply(step_limit_seconds=600.0)
    job.heartbeat(
        w(0),
        0,
        heartbeat(task.id, 5, version=4, loss=0.2, loss_batches=2, stage_seconds={"pull": 2.0}),
        3.0,
    )
    job.tick(1.0)
    job.tick(5.0)
    status = status_message(job, 5.0)
    assert status.ledger.trained_once == 5
    assert status.loss == pytest.approx(0.3)
    assert status.stage_seconds == {"pull": 2.0}
    assert job.phases.version == 4
    assert result_of(job, 5.0)["training_loss"] == [0.5, 0.2]


def test_a_late_heartbeat_does_not_make_a_worker_drop_its_next_task():
    job = begun(TRAINING)
    first = finish_next(job, w(0), Done())
    take(job, w(0))
    assert not job.heartbeat(w(0), 0, heartbeat(first.id), 1.0).abandon_task
    assert job.heartbeat(w(0), 0, heartbeat(999), 1.0).abandon_task


def test_silence_while_the_master_itself_stood_still_is_nobodys():
    job = begun(TRAINING, workers="2", timeout_seconds=30.0)
    take(job, w(0), now=5.0)
    job.task_wanted(w(1), 0, 8.0)
    job.members.servers[ServerId(0)].answered = 9.0
    job.members.unheard(1000.0, 1010.0)
    job.tick(1010.0)
    assert job.take_instructions() == []
    job.tick(1036.0)
    assert job.take_instructions() == [KillProcess(Start(w(0), 0)), FenceWorker(w(0), 0)]


@pytest.mark.parametrize(
    ("start_timeout", "limit"),
    [(0.0, START_SECONDS), (20.0, START_SECONDS), (900.0, 900.0)],
)
def test_a_process_that_never_gets_ready_is_noticed(start_timeout, limit):
    job = Job(config(start_timeout=start_timeout))
    job.on(events.JobBegun(), 0.0)
    # One that waits for room is not late, however long it takes.
    job.tick(limit + 1)
    assert job.phases.failure is None
    for process in (w(0), ServerId(0)):
        job.process_started(Start(process, 0), limit)
    job.tick(2 * limit - 1)
    assert job.phases.failure is None
    job.tick(2 * limit + 1)
    assert any(
        f"worker-0 died (not ready {limit + 1:.0f} s" in each for each in job.record.messages
    )
    assert "ps-0 did not get ready" in job.phases.failure.message


def test_a_server_that_restores_is_late_only_once_it_does_not_get_on():
    job = Job(config())
    job.on(events.JobBegun(), 0.0)
    job.process_started(Start(ServerId(0), 0), 0.0)
    moves = range(1, 11)
    for move in moves:
        now = move * (START_SECONDS - 1)
        what = pb.ServerProgress(what="restore checkpoint 3", done=move, total=10)
        job.server_progressed(ServerId(0), 0, what, now)
        job.tick(now)
    # Saying the same again is no progress.
    job.server_progressed(ServerId(0), 0, what, now + START_SECONDS)
    job.tick(now + START_SECONDS)
    assert job.phases.failure is None
    job.tick(now + START_SECONDS + 1)
    assert job.phases.failure.message == (
        "ps-0 did not get ready in time; it was to restore checkpoint 3; see its log"
    )


def test_what_a_server_says_while_it_restores_is_not_taken_for_its_state():
    job = begun(TRAINING, durability="log")
    job.on(exited(ServerId(0)), 1.0)
    member = job.members.servers[ServerId(0)]
    member.version, member.answered = 7, 0.5
    note_status(ServerId(0), pb.ServerStatus(unprotected="no log was begun"), job, 2.0)
    assert (member.version, member.answered, member.unprotected) == (7, 0.5, "")
    job.on(events.ServerRegistered(ServerId(0), 1, "ps-0"), 3.0)
    note_status(ServerId(0), pb.ServerStatus(version=9), job, 4.0)
    assert (member.version, member.answered) == (9, 4.0)


def test_a_clock_that_is_in_doubt_is_a_message_and_so_is_its_end():
    job = begun(TRAINING)
    for doubt, now in (("", 1.0), ("times jump", 2.0), ("times jump by more", 3.0), ("", 4.0)):
        note_status(ServerId(0), pb.ServerStatus(clock_doubt=doubt), job, now)
    told = [each for each in job.record.messages if "ps-0" in each]
    assert [each.partition("ps-0: ")[2] for each in told[-2:]] == [
        "warning: times jump",
        "rows expire again",
    ]


def test_slow_tls_is_a_message_once_whichever_server_tells_it():
    job = begun(TRAINING, servers="2")
    why = "Python's ssl has OpenSSL 4.0.0, not OpenSSL 3"
    for server, said in ((0, ""), (1, why), (0, why), (1, why)):
        note_status(ServerId(server), pb.ServerStatus(slow_tls=said), job, 1.0)
    told = [each for each in job.record.messages if "Python's ssl" in each]
    assert len(told) == 1
    assert "ps-1: warning: calls with certificates go through Python's ssl, slower: " in told[0]
    assert why in told[0]


def test_evaluation_goes_before_training_and_once_per_task():
    job = begun(WITH_VALIDATION, validation_data="v", evaluation_steps=5, workers="2")
    finish_next(job, w(0), Done(), version=6)
    evaluate = take(job, w(0))
    assert (evaluate.kind, evaluate.evaluation) == (pb.EVALUATE, 1)
    job.on(exited(w(0)), 1.0)
    kinds = [finish_next(job, w(1), NO_STATES, version=6).kind for _ in range(2)]
    assert kinds == [pb.EVALUATE, pb.EVALUATE]
    finish_next(job, w(1), MetricsComputed({"auc": 0.7}))
    status = status_message(job, 2.0)
    assert (status.last_evaluation.version, status.last_evaluation.records) == (6, 15)
    assert take(job, w(1)).kind == pb.TRAIN


def test_metric_states_that_do_not_match_fail_the_job():
    job = begun(WITH_VALIDATION, validation_data="v", workers="2")
    for _ in range(2):
        finish_next(job, w(0), Done())
    finish_next(job, w(0), NO_STATES)
    other = StatesComputed(pb.MetricStates(metrics=[pb.MetricState(name="auc")]))
    finish_next(job, w(1), other)
    job.on(events.JobStopped("no checkpoint is waited for"), 1.0)
    assert job.phases.failure.kind == pb.INTERNAL
    assert "worker-0" in job.phases.failure.message
    assert "worker-1" in job.phases.failure.message


def test_metric_states_that_no_message_holds_fail_the_job_by_the_metrics_name(monkeypatch):
    monkeypatch.setattr(metric_states, "LARGEST_STATES_BYTES", 10 * 40 + 8)
    job = begun(WITH_VALIDATION, validation_data="v")
    for _ in range(2):
        finish_next(job, w(0), Done())
    for records in (10, 5):
        assert job.phases.giving_up is None
        rows = pb.DoubleArray(shape=[records, 5], values=[0.5] * (5 * records))
        loss = pb.MetricState(name="loss", variables=[pb.DoubleArray(shape=[], values=[1.0])])
        by_user = pb.MetricState(name="by_user", variables=[rows], appended=True)
        of_a_task = pb.MetricStates(metrics=[loss, by_user])
        finish_next(job, w(0), StatesComputed(of_a_task))
    job.on(events.JobStopped("no checkpoint is waited for"), 1.0)
    assert job.phases.failure.kind == pb.USER_ERROR
    words = "need 608 bytes, 600 of them for 'by_user', and at most 408 .* sample"
    assert re.search(words, job.phases.failure.message)


@pytest.mark.parametrize("kind", [pb.USER_ERROR, pb.USER_CODE])
def test_a_failure_of_the_users_ends_the_job_at_once(kind):
    job = begun(TRAINING, workers="2")
    take(job, w(0))
    # Of tracing, say: no record is at fault, so no other worker could do better.
    failure = Failure(kind, "feed failed", "Traceback ...")
    finish_next(job, w(0), failure)
    assert job.phases.phase == Phase.FAILED
    assert isinstance(job.task_wanted(w(1), 0, 1.0), Finished)
    assert job.heartbeat(w(1), 0, heartbeat(), 1.0).stop
    result = result_of(job, 2.0)
    assert result["state"] == "failed"
    assert result["failure"]["traceback"] == "Traceback ..."
    assert result["ledger"] == {
        "total": 20,
        "trained_once": 0,
        "repeated": 0,
        "failed": 10,
        "pending": 10,
    }


def test_only_the_first_end_counts():
    job = begun(TRAINING)
    job.on(events.JobStopped("Ctrl-C"), 1.0)
    job.on(events.JobFailed(Failure.internal("later")), 2.0)
    job.on(exited(ServerId(0)), 2.0)
    assert (job.phases.phase, job.phases.failure) == (Phase.STOPPED, None)


@pytest.mark.parametrize(("incarnation", "kind"), [(0, "FENCED"), (2, "BAD_REQUEST")])
def test_strange_incarnations_are_refused(incarnation, kind):
    job = begun()
    job.on(exited(w(0)), 1.0)
    job.on(events.WorkerFenced(w(0), 0, [None]), 1.0)
    with pytest.raises(WireError, match=kind):
        job.task_wanted(w(0), incarnation, 1.0)
    with pytest.raises(WireError, match="BAD_REQUEST"):
        job.on(events.ServerRegistered(ServerId(0), 1, "a:1"), 1.0)
    with pytest.raises(WireError, match="BAD_REQUEST"):
        job.task_wanted(w(7), 0, 1.0)


def test_the_throughput_is_never_negative_where_records_are_trained_again():
    rate = Throughput()
    for now, count in ((0.0, 0), (1.0, 100), (2.0, 200), (3.0, 40)):
        rate.sample(now, count)
    assert rate.per_second == 0.0
    rate.sample(5.0, 100)
    assert rate.per_second == 30.0


def test_throughput_and_versions_and_staleness():
    job = begun(TRAINING, servers="2")
    for server, version in ((0, 10), (1, 12)):
        staleness = pb.Distribution(buckets=[1, 1, 2], count=4, sum=6.0, maximum=3 - server)
        job.servers.answered(
            ServerId(server), pb.ServerStatus(version=version, staleness=staleness)
        )
    task = take(job, w(0), now=1.0)
    job.tick(1.0)
    job.heartbeat(w(0), 0, heartbeat(task.id, 8), 2.0)
    job.tick(5.0)
    status = status_message(job, 5.0)
    assert status.samples_per_second == pytest.approx(2.0)
    assert status.version == 11
    assert status.mean_staleness == 1.5
    result = result_of(job, 5.0)
    assert result["versions"] == {"ps-0": 10, "ps-1": 12}
    staleness = {"mean": 1.5, "maximum": 3.0, "histogram": [2, 2, 4]}
    assert result["staleness"] == {
        **staleness,
        "seconds": {"mean": 0.0, "maximum": 0.0, "histogram": []},
    }
