"""The job as a state machine: events in, answers and instructions out, time given."""

from __future__ import annotations

import itertools

import pytest

from shoal.master import phases
from shoal.master.applied import AppliedPush
from shoal.master.failures import Failure
from shoal.master.ids import ServerId, Start
from shoal.master.instructions import (
    FenceWorker,
    Finished,
    HeartbeatAnswer,
    KillProcess,
    StartProcess,
    Wait,
)
from shoal.master.job import Job
from shoal.master.lost_pushes import LostPushes
from shoal.master.membership import START_TIMEOUT_SECONDS
from shoal.master.outcomes import (
    DataDescribed,
    Done,
    Heartbeat,
    MetricsComputed,
    StatesComputed,
)
from shoal.master.phases import InvalidTransitionError, Phase
from shoal.master.result import result_of
from shoal.master.status import status_message
from shoal.master.tasks import Ledger
from shoal.master.work import Source, Span
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError
from tests.master.strategies import begun, config, exited, finish_next, take, w

TRAINING = DataDescribed(training=(Source("t", 20),))
WITH_VALIDATION = DataDescribed(training=(Source("t", 20),), validation=(Source("v", 15),))
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
        job.task_reported(w(0), 0, task.id, outcomes.get(task.kind, Done()), 0, 1.0)
    return kinds


EVALUATION = ["EVALUATE", "EVALUATE", "FINISH_EVALUATION"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ["DESCRIBE_DATA", "TRAIN", "TRAIN"]),
        ({"validation_data": "v"}, ["DESCRIBE_DATA", "TRAIN", "TRAIN", *EVALUATION]),
        (
            {"validation_data": "v", "output": "o", "restore_from": "r"},
            ["DESCRIBE_DATA", "LOAD", "TRAIN", "TRAIN", *EVALUATION, "EXPORT"],
        ),
        ({"output": "o"}, ["DESCRIBE_DATA", "TRAIN", "TRAIN", "EXPORT"]),
        (
            {"command": "evaluate", "validation_data": "v", "restore_from": "r"},
            ["DESCRIBE_DATA", "LOAD", *EVALUATION],
        ),
        (
            {"command": "predict", "prediction_data": "p", "restore_from": "r", "output": "o"},
            ["DESCRIBE_DATA", "LOAD", "PREDICT", "PREDICT", "FINISH_PREDICTION"],
        ),
    ],
)
def test_the_phases_of_each_command(changes, expected):
    job = begun(**changes)
    assert kinds_until_end(job) == expected
    assert job.flow.phase == Phase.SUCCEEDED
    assert status_message(job, 2.0).records_done == status_message(job, 2.0).records_total == 15


def test_every_planned_step_is_allowed_and_ended_phases_have_none():
    plan = phases.plan(config(validation_data="v", output="o", restore_from="r"))
    for source, target in itertools.pairwise(plan):
        phases.check_transition(source, target)
    for ended in (Phase.SUCCEEDED, Phase.FAILED, Phase.STOPPED):
        with pytest.raises(InvalidTransitionError, match=ended.name):
            phases.check_transition(ended, Phase.TRAINING)


def test_all_processes_are_started_at_once_and_workers_wait_for_servers():
    job = Job(config(num_workers=2, num_ps=2))
    job.begin(0.0)
    starts = [i.start for i in job.take_instructions() if isinstance(i, StartProcess)]
    assert sorted(map(str, starts)) == ["ps-0.0", "ps-1.0", "worker-0.0", "worker-1.0"]
    job.server_registered(ServerId(1), 0, "b:1", 0.1)
    with pytest.raises(WireError, match="NOT_READY"):
        job.worker_registered(w(0), 0, 0.2)
    assert job.task_wanted(w(0), 0, 0.2) == Wait(0.2)
    job.server_registered(ServerId(0), 0, "a:1", 0.3)
    assert job.worker_registered(w(0), 0, 0.4) == ["a:1", "b:1"]


def test_while_one_worker_describes_the_data_others_wait():
    job = begun(num_workers=2)
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
    assert job.flow.phase == Phase.FAILED
    assert job.flow.failure == Failure.of_user(f"{named} holds no records")


def test_answers_that_were_lost_are_repeated():
    job = begun(TRAINING)
    task = take(job, w(0))
    assert take(job, w(0)) is task
    job.task_reported(w(0), 0, task.id, Done(), 0, 1.0)
    job.task_reported(w(0), 0, task.id, Done(), 0, 1.0)
    assert job.flow.work.ledger.trained_once == 10


def test_a_report_must_fit_the_lease():
    job = begun(TRAINING)
    with pytest.raises(WireError, match="UNKNOWN_TASK"):
        job.task_reported(w(0), 0, 99, Done(), 0, 1.0)
    task = take(job, w(0))
    with pytest.raises(WireError, match="BAD_REQUEST"):
        job.task_reported(w(0), 0, task.id, NO_STATES, 0, 1.0)


def test_heartbeats_carry_progress_loss_and_version():
    job = begun(TRAINING)
    task = take(job, w(0))
    answer = job.heartbeat(w(0), 0, Heartbeat(task.id, 5, 3, 0.5, 1, {"pull": 1.0}), 2.0)
    assert answer == HeartbeatAnswer(stop=False, abandon_task=False)
    job.heartbeat(w(0), 0, Heartbeat(task.id, 5, 4, 0.2, 2, {"pull": 2.0}), 3.0)
    job.tick(1.0)
    job.tick(5.0)
    status = status_message(job, 5.0)
    assert status.ledger.trained_once == 5
    assert status.loss == pytest.approx(0.3)
    assert status.stage_seconds == {"pull": 2.0}
    assert job.flow.version == 4


def test_a_late_heartbeat_does_not_make_a_worker_drop_its_next_task():
    job = begun(TRAINING)
    first = finish_next(job, w(0), Done())
    take(job, w(0))
    assert not job.heartbeat(w(0), 0, Heartbeat(task=first.id), 1.0).abandon_task
    assert job.heartbeat(w(0), 0, Heartbeat(task=999), 1.0).abandon_task


def test_a_dead_workers_rest_is_requeued_after_the_fence_and_it_is_started_again():
    # 1. worker 0 holds a task; 2. its process dies; 3. the servers fence it;
    # 4. only then the rest is given out and a new incarnation started.
    job = begun(TRAINING, num_workers=2, num_ps=2)
    task = take(job, w(0))
    job.heartbeat(w(0), 0, Heartbeat(task.id, 2), 1.0)
    job.process_exited(exited(w(0)), 2.0)
    assert job.take_instructions() == [FenceWorker(w(0), 0)]
    other = finish_next(job, w(1), Done())
    assert other.span != task.span
    assert isinstance(job.task_wanted(w(1), 0, 2.0), Wait)
    with pytest.raises(WireError, match="FENCED"):
        job.heartbeat(w(0), 0, Heartbeat(task.id, 9), 2.0)
    pushes = [AppliedPush(4, task.id, 4), AppliedPush(6, task.id, 6)]
    job.fenced(w(0), 0, pushes, 3.0)
    job.fenced(w(0), 0, pushes, 3.0)
    assert job.take_instructions() == [StartProcess(Start(w(0), 1))]
    rest = finish_next(job, w(1), Done())
    assert rest.span == Span("t", task.span.start + 4, task.span.end)
    assert job.flow.work.ledger == Ledger(total=20, trained_once=18, repeated=2)
    assert job.flow.phase == Phase.SUCCEEDED
    result = result_of(job, 5.0)
    assert result["workers"] == {"starts": 3, "deaths": 1}
    assert any("worker-0 died (signal 9, SIGKILL)" in text for text in result["messages"])


def test_a_silent_worker_is_killed_and_fenced_at_exactly_the_timeout():
    job = begun(TRAINING, num_workers=2, worker_timeout_seconds=30.0)
    take(job, w(0), now=5.0)
    job.task_wanted(w(1), 0, 20.0)
    job.tick(35.0)
    assert job.take_instructions() == []
    job.tick(35.1)
    assert job.take_instructions() == [KillProcess(Start(w(0), 0)), FenceWorker(w(0), 0)]
    job.process_exited(exited(w(0)), 35.2)
    assert job.take_instructions() == []
    job.fenced(w(0), 0, [None], 35.3)
    assert job.take_instructions() == [StartProcess(Start(w(0), 1))]
    assert job.members.workers[w(0)].deaths == 1


def test_a_hung_server_is_killed_once_and_started_again():
    job = begun(TRAINING, num_ps=2, server_timeout_seconds=60.0)
    job.members.servers[ServerId(1)].answered = 40.0
    job.members.servers[ServerId(0)].answered = 100.0
    job.members.workers[w(0)].last_seen = 100.0
    job.tick(100.0)
    assert job.take_instructions() == []
    job.tick(100.1)
    job.tick(101.0)
    assert job.take_instructions() == [KillProcess(Start(ServerId(1), 0))]
    assert any("ps-1 has not answered for 60 s" in text for text in job.record.messages)
    job.process_exited(exited(ServerId(1)), 102.0)
    assert job.take_instructions() == [StartProcess(Start(ServerId(1), 1))]
    job.server_registered(ServerId(1), 1, "host:9", 300.0)
    assert job.members.hung_servers(301.0) == [job.members.servers[ServerId(0)]]
    # One that was not registered again cannot answer.
    job.server_hung(ServerId(1), 0, 302.0)
    assert job.take_instructions() == []


def test_silence_while_the_master_itself_stood_still_is_nobodys():
    job = begun(TRAINING, num_workers=2, worker_timeout_seconds=30.0, server_timeout_seconds=60.0)
    take(job, w(0), now=5.0)
    job.task_wanted(w(1), 0, 8.0)
    job.members.servers[ServerId(0)].answered = 9.0
    job.members.unheard(1000.0, 1010.0)
    job.tick(1010.0)
    assert job.take_instructions() == []
    job.tick(1036.0)
    assert job.take_instructions() == [KillProcess(Start(w(0), 0)), FenceWorker(w(0), 0)]


def test_a_process_that_never_gets_ready_is_noticed():
    job = Job(config())
    job.begin(0.0)
    # One that waits for room is not late, however long it takes.
    job.tick(START_TIMEOUT_SECONDS + 1)
    assert job.flow.failure is None
    job.process_started(Start(ServerId(0), 0), START_TIMEOUT_SECONDS)
    job.tick(2 * START_TIMEOUT_SECONDS + 1)
    assert "ps-0 did not get ready" in job.flow.failure.message


def test_a_task_other_than_training_is_given_out_again_at_once():
    job = begun(num_workers=2)
    take(job, w(0))
    job.process_exited(exited(w(0)), 1.0)
    assert take(job, w(1)).kind == pb.DESCRIBE_DATA


def test_evaluation_goes_before_training_and_once_per_task():
    job = begun(WITH_VALIDATION, validation_data="v", evaluation_steps=5, num_workers=2)
    finish_next(job, w(0), Done(), version=6)
    evaluate = take(job, w(0))
    assert (evaluate.kind, evaluate.evaluation) == (pb.EVALUATE, 1)
    job.process_exited(exited(w(0)), 1.0)
    kinds = [finish_next(job, w(1), NO_STATES, version=6).kind for _ in range(2)]
    assert kinds == [pb.EVALUATE, pb.EVALUATE]
    finish_next(job, w(1), MetricsComputed({"auc": 0.7}))
    status = status_message(job, 2.0)
    assert (status.last_evaluation.version, status.last_evaluation.records) == (6, 15)
    assert take(job, w(1)).kind == pb.TRAIN


def test_metric_states_that_do_not_match_fail_the_job():
    job = begun(WITH_VALIDATION, validation_data="v", num_workers=2)
    for _ in range(2):
        finish_next(job, w(0), Done())
    finish_next(job, w(0), NO_STATES)
    other = StatesComputed(pb.MetricStates(metrics=[pb.MetricState(name="auc")]))
    finish_next(job, w(1), other)
    assert job.flow.failure.kind == pb.INTERNAL
    assert "worker-0" in job.flow.failure.message
    assert "worker-1" in job.flow.failure.message


@pytest.mark.parametrize("kind", [pb.USER_ERROR, pb.USER_CODE])
def test_a_failure_of_the_users_ends_the_job_at_once(kind):
    job = begun(TRAINING, num_workers=2)
    take(job, w(0))
    # Of tracing, say: no record is at fault, so no other worker could do better.
    failure = Failure(kind, "feed failed", "Traceback ...")
    finish_next(job, w(0), failure)
    assert job.flow.phase == Phase.FAILED
    assert isinstance(job.task_wanted(w(1), 0, 1.0), Finished)
    assert job.heartbeat(w(1), 0, Heartbeat(), 1.0).stop
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


def test_an_internal_failure_counts_like_a_crash():
    job = begun(TRAINING)
    task = finish_next(job, w(0), Failure.internal("lost its way", "Traceback x"))
    assert job.take_instructions() == [KillProcess(Start(w(0), 0)), FenceWorker(w(0), 0)]
    job.process_exited(exited(w(0)), 1.0)
    job.fenced(w(0), 0, [AppliedPush(0, 0, 0)], 1.0)
    assert job.take_instructions() == [StartProcess(Start(w(0), 1))]
    assert take(job, w(0), 1).span == task.span


def test_the_relaunch_limit_ends_the_job_with_the_log():
    job = begun(TRAINING, relaunch_limit=1)
    for incarnation in (0, 1):
        job.process_exited(
            exited(w(0), incarnation, code=3, signal_number=None, last_lines="Boom!"), 1.0
        )
        job.fenced(w(0), incarnation, [AppliedPush(0, 0, 0)], 1.0)
    message = job.flow.failure.message
    assert "worker-0 failed 2 times" in message
    assert "--relaunch-limit 1" in message
    assert "exit code 3" in message
    assert "some.log" in message
    assert "Boom!" in message


def test_the_relaunch_limit_ends_the_job_with_what_the_worker_reported():
    job = begun(TRAINING, relaunch_limit=0)
    job.process_failed(Start(w(0), 0), Failure.internal("no memory", "Traceback y"), 1.0)
    job.process_exited(exited(w(0)), 1.0)
    job.fenced(w(0), 0, [None], 1.0)
    assert "no memory" in job.flow.failure.message
    assert job.flow.failure.traceback == "Traceback y"


def test_a_users_error_at_a_workers_start_ends_the_job_with_its_message():
    job = begun()
    job.process_failed(Start(w(0), 0), Failure.of_user("model.py has no loss"), 1.0)
    assert job.flow.failure == Failure.of_user("model.py has no loss")


def test_a_dead_server_is_started_again_and_calls_wait_for_it():
    job = begun(TRAINING, num_ps=2, num_workers=2)
    job.process_exited(exited(ServerId(1)), 1.0)
    job.process_exited(exited(ServerId(1)), 1.0)  # told twice
    assert job.take_instructions() == [StartProcess(Start(ServerId(1), 1))]
    with pytest.raises(WireError, match="NOT_READY"):
        job.servers.addresses()
    with pytest.raises(WireError, match="FENCED"):
        job.server_registered(ServerId(1), 0, "host:1", 1.5)
    job.server_registered(ServerId(1), 1, "host:9", 2.0, "it has restored checkpoint 4")
    assert job.servers.addresses() == ["host:0", "host:9"]
    assert job.record.messages[-1].endswith("ps-1 is back: it has restored checkpoint 4")
    assert job.flow.phase == Phase.TRAINING
    job.updates_lost(ServerId(1), [LostPushes(w(0), 0, 7, 10)], 2.5)
    job.process_exited(exited(ServerId(1), 1), 3.0)
    job.updates_lost(ServerId(1), [LostPushes(w(0), 0, 10, 12)], 3.5)
    assert job.record.messages[-1].endswith("ps-1 has lost 2 acknowledged updates")
    servers = result_of(job, 4.0)["servers"]
    assert servers == {"starts": 4, "deaths": 2, "lost_pushes": 5}
    # What it is told of workers: whose incarnations are over.
    assert job.members.fences() == []
    job.process_exited(exited(w(1)), 5.0)
    assert job.members.fences() == [(w(1), 0)]


def test_where_a_servers_log_is_and_when_none_protects_it():
    job = begun(TRAINING, durability="log", checkpoint_seconds=9.0, num_ps=2, relaunch_limit=9)
    assert job.members.holder_of(ServerId(1)) == "host:0"
    job.process_exited(exited(ServerId(0)), 1.0)
    assert job.members.holder_of(ServerId(1)) == ""
    job.protection_changed(ServerId(1), 1, 0.0, "its log is lost", 1.5)
    job.server_registered(ServerId(0), 1, "host:7", 2.0, "it is back", 41)
    assert job.members.holder_of(ServerId(1)) == "host:7"
    job.protection_changed(ServerId(1), 1, 2.5, "", 4.0)
    job.protection_changed(ServerId(1), 2, 2.5, "its log is lost", 5.0)
    job.protection_changed(ServerId(1), 2, 4.0, "", 6.0)
    texts = [text.split(": ", 1)[1] for text in job.record.messages]
    assert texts[-3:] == [
        "the updates of ps-1 are protected again, after 2.5 s",
        "warning: the updates of ps-1 are NOT PROTECTED: its log is lost",
        "the updates of ps-1 are protected again, after 1.5 s",
    ]
    assert result_of(job, 7.0)["log"] == {
        "replayed_pushes": 41,
        "unprotected": {"times": 2, "seconds": 4.0},
    }
    assert result_of(begun(TRAINING), 7.0)["log"] is None


def test_a_server_that_dies_too_often_ends_the_job():
    job = begun(TRAINING, relaunch_limit=1)
    job.process_exited(exited(ServerId(0)), 1.0)
    job.process_exited(exited(ServerId(0), 1, last_lines="out of memory"), 2.0)
    message = job.flow.failure.message
    for part in ("ps-0", "signal 9", "--relaunch-limit 1", "some.log", "out of memory"):
        assert part in message


def test_a_server_that_was_evicted_is_started_again_without_counting():
    job = begun(TRAINING, relaunch_limit=0)
    job.process_exited(exited(ServerId(0), counted=False), 1.0)
    assert job.take_instructions() == [StartProcess(Start(ServerId(0), 1))]


@pytest.mark.parametrize("sync", [False, True])
def test_a_server_that_dies_before_anything_is_trained_is_started_again(sync):
    more = {"sync": True, "grads_to_wait": 1} if sync else {}
    for fields in (
        {"command": "evaluate", "validation_data": "v", "restore_from": "r"},
        {"restore_from": "r", **more},
    ):
        job = begun(**fields)
        job.process_exited(exited(ServerId(0)), 1.0)
        assert job.take_instructions() == [StartProcess(Start(ServerId(0), 1))]
        assert job.flow.failure is None


def test_a_servers_report_names_it():
    job = begun(TRAINING)
    job.process_failed(Start(ServerId(0), 0), Failure.internal("disk full"), 1.0)
    assert job.flow.failure.message == "parameter server ps-0: disk full"


def test_only_the_first_end_counts():
    job = begun(TRAINING)
    job.stop("Ctrl-C", 1.0)
    job.fail(Failure.internal("later"), 2.0)
    job.process_exited(exited(ServerId(0)), 2.0)
    assert (job.flow.phase, job.flow.failure) == (Phase.STOPPED, None)


@pytest.mark.parametrize(("incarnation", "kind"), [(0, "FENCED"), (2, "BAD_REQUEST")])
def test_strange_incarnations_are_refused(incarnation, kind):
    job = begun()
    job.process_exited(exited(w(0)), 1.0)
    job.fenced(w(0), 0, [None], 1.0)
    with pytest.raises(WireError, match=kind):
        job.task_wanted(w(0), incarnation, 1.0)
    with pytest.raises(WireError, match="BAD_REQUEST"):
        job.server_registered(ServerId(0), 1, "a:1", 1.0)
    with pytest.raises(WireError, match="BAD_REQUEST"):
        job.task_wanted(w(7), 0, 1.0)


def test_throughput_and_versions_and_staleness():
    job = begun(TRAINING, num_ps=2)
    for server, version in ((0, 10), (1, 12)):
        staleness = pb.Distribution(buckets=[1, 1, 2], count=4, sum=6.0, maximum=3 - server)
        job.servers.answered(
            ServerId(server), pb.ServerStatus(version=version, staleness=staleness)
        )
    task = take(job, w(0), now=1.0)
    job.tick(1.0)
    job.heartbeat(w(0), 0, Heartbeat(task.id, 8), 2.0)
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
