"""How many workers a job has: the wish, the least, and what does not count as a failure."""

from dataclasses import replace

import pytest

from shoal.master.job.instructions import (
    Finished,
    KillProcess,
    StartProcess,
    TerminateProcess,
    Wait,
)
from shoal.master.job.job import Job
from shoal.master.job.members.members import ProcessState
from shoal.master.job.view.status import status_message
from shoal.master.journal.audit import Auditor
from shoal.master.journal.events import RecordedJob
from shoal.master.journal.records import Entry
from shoal.master.result import result_of
from shoal.master.work.accounts.applied import AppliedPush
from shoal.master.work.accounts.lease_copies import Piece
from shoal.master.work.ids import ServerId, Start
from shoal.master.work.outcomes import DataDescribed, Done, MetricsComputed, StatesComputed
from shoal.master.work.phases import Phase
from shoal.master.work.units import Source, Span
from shoal.proto import shoal_pb2 as pb
from tests.master.strategies import (
    begun,
    config,
    confirm,
    exited,
    finish_next,
    pushed,
    register,
    take,
    w,
)

DATA = DataDescribed(training=(Source("t", 60),))


def draining(job):
    """Starts that were asked to end."""
    return [i.start for i in job.take_instructions() if isinstance(i, TerminateProcess)]


def test_fewer_workers_are_asked_to_end_and_do_not_come_back():
    job = begun(workers="3")
    job.take_instructions()
    job.scale(1, 1.0)
    assert draining(job) == [Start(w(1), 0), Start(w(2), 0)]
    for worker in (1, 2):
        job.process_exited(exited(w(worker)), 2.0)
        job.fenced(w(worker), 0, [AppliedPush(0, 0, 0)] * job.config.num_servers, 2.0)
    assert not [i for i in job.take_instructions() if isinstance(i, StartProcess)]
    assert job.members.workers[w(1)].deaths == 0
    assert "worker-1 left" in " ".join(job.record.messages)
    # One that was asked to end does not use up a restart when it is wanted again.
    job.scale(4, 3.0)
    started = [i.start for i in job.take_instructions() if isinstance(i, StartProcess)]
    assert set(started) == {Start(w(1), 1), Start(w(2), 1), Start(w(3), 0)}
    assert not any(job.members.workers[w(i)].restarts.failures for i in (1, 2))


def test_training_waits_for_the_least_workers_once():
    job = Job(config(workers="3", min_workers=2))
    job.begin(0.0)
    for index in range(job.config.num_servers):
        job.server_registered(ServerId(index), 0, f"ps-{index}", 0.0)
    job.worker_registered(w(0), 0, 0.0)
    finish_next(job, w(0), DATA)
    assert isinstance(job.task_wanted(w(0), 0, 1.0), Wait)
    job.worker_registered(w(1), 0, 1.0)
    assert take(job, w(0)).kind == pb.TRAIN
    job.process_exited(exited(w(1)), 2.0)
    finish_next(job, w(0), Done())
    assert take(job, w(0)).kind == pb.TRAIN


def test_what_the_cluster_took_away_does_not_use_up_a_restart():
    job = begun(workers="1", relaunch_limit=0)
    lost = replace(exited(w(0)), why="its pod was preempted", counted=False)
    job.process_exited(lost, 1.0)
    job.fenced(w(0), 0, [AppliedPush(0, 0, 0)] * job.config.num_servers, 1.0)
    assert not job.ended
    assert job.members.workers[w(0)].incarnation == 1


def test_the_wish_outlives_the_master():
    events = []
    job = RecordedJob(config(workers="2"), events.append)
    job.begin(0.0)
    job.scale(3, 1.0)
    job.process_waits(Start(w(2), 0), "Unschedulable: no room", 1.0)
    again = RecordedJob(job.config, events.append)
    again.replay(list(events))
    assert again.members.workers_wanted == len(again.members.workers) == 3
    assert list(again.record.messages) == list(job.record.messages)


TRAINED = DataDescribed(training=(Source("t", 10),), validation=(Source("v", 20),))
STATES = StatesComputed(
    pb.MetricStates(
        metrics=[pb.MetricState(name="m", variables=[pb.DoubleArray(shape=[1], values=[1.0])])]
    )
)
LAST_PHASES = {"workers": "3", "validation_data": "v.csv", "output": "out"}


def started(job):
    return [i.start for i in job.take_instructions() if isinstance(i, StartProcess)]


def evaluating(phase=Phase.EVALUATING, **changes):
    """Events of a job, and the job, of three workers, which has trained; two tasks are left."""
    events = []
    job = RecordedJob(config(**(LAST_PHASES | changes)), events.append)
    register(
        job, replace(TRAINED, validation=TRAINED.validation * bool(job.config.validation_data))
    )
    finish_next(job, w(0), Done())
    assert job.phases.phase == phase
    return events, job


def ends(job, worker, incarnation=0, now=3.0):
    """A worker's process ends of itself, and is fenced."""
    of_itself = {"code": 0, "signal_number": None}
    job.process_exited(exited(w(worker), incarnation, **of_itself), now)
    job.fenced(w(worker), incarnation, [None] * job.config.num_servers, now)


def test_workers_for_whom_there_is_nothing_left_are_given_back_and_one_stays():
    events, job = evaluating()
    first, second = take(job, w(0)), take(job, w(1))
    assert isinstance(job.task_wanted(w(2), 0, 2.0), Finished)
    assert isinstance(job.task_wanted(w(2), 0, 2.1), Finished)  # the answer was lost
    ends(job, 2)
    job.task_reported(w(1), 0, second.id, STATES, 5, 3.0)
    assert isinstance(job.task_wanted(w(1), 0, 3.0), Finished)
    ends(job, 1)
    job.task_reported(w(0), 0, first.id, STATES, 5, 4.0)
    finish_next(job, w(0), MetricsComputed({"m": 1.0}))
    assert finish_next(job, w(0), Done()).kind == pb.EXPORT
    assert job.phases.phase == Phase.SUCCEEDED
    assert not [i for i in job.take_instructions() if isinstance(i, StartProcess | KillProcess)]
    assert result_of(job, 5.0)["workers"] == {"starts": 3, "deaths": 0}
    told = [text for text in job.record.messages if "worker" in text]
    assert ["no work is left" in text for text in told] == [True, True]
    assert "worker-2 ends: no work is left for it" in told[0]
    # Neither a new master nor the audit takes it for something else.
    again = pushed(RecordedJob(job.config, lambda _: None))
    again.replay(list(events))
    assert list(again.record.messages) == list(job.record.messages)
    auditor = Auditor(pushed(RecordedJob(job.config, lambda _: None)))
    for number, event in enumerate(events):
        auditor.follow(Entry(100.0 + number, event))
    assert auditor.report().deaths == []


def test_nobody_is_given_back_while_there_may_be_work_for_all():
    _, job = evaluating(workers="2")
    take(job, w(0))
    take(job, w(1))
    saving = begun(TRAINED, **(LAST_PHASES | {"checkpoint_steps": 5}))
    finish_next(saving, w(0), Done())
    assert saving.phases.phase == Phase.SAVING
    assert isinstance(saving.task_wanted(w(1), 0, 2.0), Wait)
    training = begun(TRAINED, **LAST_PHASES)
    take(training, w(0))
    assert isinstance(training.task_wanted(w(1), 0, 2.0), Wait)


def test_who_is_given_back_is_expected_no_more():
    _, job = evaluating(min_workers=3)
    take(job, w(0))
    take(job, w(1))
    job.task_wanted(w(2), 0, 2.0)
    assert status_message(job, 3.0).workers_wanted == 2
    ends(job, 2)
    job.scale(4, 3.0)  # those that are new find nothing to do either
    assert started(job) == [Start(w(3), 0)]


@pytest.mark.parametrize("dies", ["killed", "of itself"])
def test_one_that_dies_at_the_export_is_started_anew_and_nobody_else(dies):
    _, job = evaluating(Phase.EXPORTING, workers="2", validation_data="")
    export = take(job, w(0))
    assert isinstance(job.task_wanted(w(1), 0, 2.0), Finished)
    ends(job, 1)
    job.take_instructions()
    end = {} if dies == "killed" else {"code": 3, "signal_number": None}
    job.process_exited(exited(w(0), **end), 3.0)
    job.fenced(w(0), 0, [None] * job.config.num_servers, 3.0)
    assert started(job) == [Start(w(0), 1)]
    job.worker_registered(w(0), 1, 4.0)
    again = finish_next(job, w(0), Done(), incarnation=1, now=4.0)
    assert (again.kind, export.kind) == (pb.EXPORT, pb.EXPORT)
    assert result_of(job, 5.0)["workers"] == {"starts": 3, "deaths": 1}


def test_those_that_were_given_back_come_again_when_records_are_trained_again():
    _, job = evaluating(workers="3")
    take(job, w(0))
    take(job, w(1))
    job.task_wanted(w(2), 0, 2.0)
    ends(job, 2)
    job.take_instructions()
    job.outcomes.records_lost([Piece(0, Span("t", 0, 10), 0, elsewhere=False)], 3.0)
    assert job.phases.phase == Phase.TRAINING
    job.tick(3.1)
    assert started(job) == [Start(w(2), 1)]
    job.tick(3.2)
    assert started(job) == []
    assert not job.members.workers[w(2)].restarts.failures


def test_one_that_has_not_ended_yet_comes_again_when_it_has():
    _, job = evaluating(workers="3")
    take(job, w(0))
    take(job, w(1))
    job.task_wanted(w(2), 0, 2.0)
    job.outcomes.records_lost([Piece(0, Span("t", 0, 10), 0, elsewhere=False)], 3.0)
    job.tick(3.1)
    assert started(job) == []
    assert isinstance(job.task_wanted(w(2), 0, 3.2), Finished)
    ends(job, 2, now=4.0)
    assert started(job) == [Start(w(2), 1)]
    assert job.members.workers[w(2)].state == ProcessState.STARTING
    assert job.members.workers[w(2)].deaths == 0


def test_predictions_give_back_all_but_those_at_the_last_tasks():
    described = DataDescribed(prediction=(Source("p", 20),))
    values = {"command": "predict", "prediction_data": "p", "restore_from": "m", "output": "o"}
    job = begun(described, workers="3", training_data="", **values)
    assert job.phases.phase == Phase.PREDICTING
    last = take(job, w(0))
    finish_next(job, w(1), Done())
    assert isinstance(job.task_wanted(w(2), 0, 2.0), Finished)
    assert isinstance(job.task_wanted(w(1), 0, 2.0), Finished)
    job.task_reported(w(0), 0, last.id, Done(), 0, 3.0)
    assert finish_next(job, w(0), Done()).kind == pb.FINISH_PREDICTION
    confirm(job, 4.0)
    assert job.phases.phase == Phase.SUCCEEDED
