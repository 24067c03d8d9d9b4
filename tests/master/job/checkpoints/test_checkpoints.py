"""When a job takes checkpoints, which it keeps, and what a failed one means. No I/O."""

import itertools

import pytest

from shoal.master.job.checkpoints.checkpoints import RETRY_SECONDS
from shoal.master.job.events import (
    CheckpointBegun,
    CheckpointFailed,
    CheckpointsFound,
    CheckpointTaken,
    JobBegun,
    JobFailed,
    JobStopped,
    MasterRestarted,
    Resumed,
    ServerRegistered,
    Taken,
    TaskReported,
    WorkerRegistered,
)
from shoal.master.job.instructions import RemoveCheckpoints, TakeCheckpoint, Wait
from shoal.master.job.view.status import position, status_message
from shoal.master.journal.events import RecordedJob
from shoal.master.result import result_of
from shoal.master.work.failures import Failure
from shoal.master.work.ids import ServerId
from shoal.master.work.outcomes import DataDescribed, Done, MetricsComputed, StatesComputed
from shoal.master.work.phases import Phase
from shoal.master.work.units import Source
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError
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

TRAINING = DataDescribed(training=(Source("t", 40),))


def orders(job):
    return [i for i in job.take_instructions() if isinstance(i, TakeCheckpoint | RemoveCheckpoints)]


def at_version(job, version, now):
    job.servers.answered(ServerId(0), pb.ServerStatus(version=version))
    job.tick(now)
    return orders(job)


def taken(number):
    return Taken(number, version=number * 10, bytes=100, seconds=0.1)


def test_by_steps_one_at_a_time():
    job = begun(TRAINING, checkpoint_steps=10)
    assert at_version(job, 9, 1.0) == []
    assert at_version(job, 12, 2.0) == [TakeCheckpoint()]
    assert at_version(job, 25, 3.0) == []  # one is under way
    job.on(CheckpointTaken(taken(1), False), 4.0)
    assert orders(job) == [TakeCheckpoint()]  # as soon as it has ended
    job.on(CheckpointTaken(taken(2), False), 5.0)
    assert at_version(job, 29, 6.0) == []


def test_the_age_counts_from_the_newest_one_or_the_beginning_of_training():
    job = begun(TRAINING, checkpoint_steps=10)
    assert job.checkpoints.age(1.0) == 0.0  # training began at 1
    assert job.checkpoints.age(21.0) == 20.0
    at_version(job, 12, 21.0)
    job.on(CheckpointFailed("/x: No space left on device", False), 22.0)
    assert job.checkpoints.age(23.0) == 22.0
    at_version(job, 22, 24.0)
    job.on(CheckpointTaken(taken(1), False), 25.0)
    assert job.checkpoints.age(30.0) == 5.0
    without = begun(TRAINING, checkpoint_steps=0, checkpoint_seconds=0.0)
    assert without.checkpoints.age(30.0) is None


def test_by_time_and_again_after_a_failure():
    job = begun(TRAINING, checkpoint_seconds=30.0)
    job.tick(30.0)  # training began at 1
    assert orders(job) == []
    job.tick(31.0)
    assert orders(job) == [TakeCheckpoint()]
    job.on(CheckpointFailed("/x: No space left on device", False), 33.0)
    job.tick(60.0)
    assert orders(job) == []
    job.tick(61.0)
    assert orders(job) == [TakeCheckpoint()]
    checkpoints = result_of(job, 62.0)["checkpoints"]
    assert (checkpoints["failed"], checkpoints["kept"]) == (1, [])
    assert checkpoints["last_failure"] == "/x: No space left on device"
    assert any("warning" in text and "No space" in text for text in job.record.messages)


def test_checkpoints_that_take_most_of_the_time_are_told_of_once():
    job = begun(TRAINING, checkpoint_steps=10)
    now = 1.0

    def after(between, seconds, number, final=False):
        nonlocal now
        now += between + seconds
        job.on(CheckpointTaken(Taken(number, number * 10, 100, seconds), final), now)
        return [each for each in job.record.messages if "checkpoints take most" in each]

    assert not after(2.0, 10.0, 1)  # nothing is before it
    assert not after(2.0, 10.0, 2)
    assert not after(2.0, 10.0, 3)
    assert not after(11.0, 10.0, 4)  # there was more time in between
    assert not after(0.1, 0.5, 5)  # it holds nobody up
    assert not after(2.0, 10.0, 6)
    assert not after(2.0, 10.0, 7)
    (told,) = after(2.25, 10.0, 8)
    assert "warning: checkpoints take most" in told
    assert "10.0 s and began 2.2 s after the one before" in told
    assert len(after(2.0, 10.0, 9)) == 1
    assert len(after(0.0, 10.0, 10, final=True)) == 1


def test_the_newest_are_kept_and_those_of_an_earlier_master_count():
    job = begun(TRAINING, checkpoint_steps=1, keep_checkpoint_max=2)
    job.on(CheckpointsFound([taken(3), taken(5)]), 1.0)
    job.on(CheckpointTaken(taken(6), False), 1.0)
    assert orders(job)[0] == RemoveCheckpoints((3,))
    assert [each.number for each in job.checkpoints.kept.all] == [5, 6]


def test_the_values_of_restore_from_are_saved_first():
    job = begun(checkpoint_seconds=30.0, restore_from="r")
    assert orders(job) == []
    # Who describes the data has registered with all servers, which have read the values by then.
    finish_next(job, w(0), TRAINING)
    assert job.phases.phase == Phase.TRAINING
    assert orders(job) == [TakeCheckpoint()]


def test_the_last_checkpoint_is_of_all_that_was_trained():
    job = begun(TRAINING, checkpoint_steps=10)
    assert at_version(job, 10, 1.0) == [TakeCheckpoint()]
    for _ in range(4):
        finish_next(job, w(0), Done())
    assert job.phases.phase == Phase.SAVING
    # The one under way was begun before the end.
    job.on(CheckpointTaken(taken(1), False), 2.0)
    assert job.phases.phase == Phase.SAVING
    assert orders(job) == [TakeCheckpoint(final=True)]
    assert position(job, 2.0)["records"]["trained_once"] == 40
    job.on(CheckpointTaken(taken(2), True), 3.0)
    confirm(job, 3.0)
    assert job.phases.phase == Phase.SUCCEEDED


@pytest.mark.parametrize("begins", [False, True])
def test_the_last_checkpoint_is_of_the_best_evaluation_that_ends_after_training(begins):
    """begins: the checkpoint does, before the evaluation ends."""
    rules = pb.TrainingRules(checkpoint=pb.BestRule(monitor="auc", maximize=True))
    data = DataDescribed((Source("t", 40),), (Source("v", 10),), rules=rules)
    job = begun(
        data, validation_data="v", evaluation_steps=5, checkpoint_seconds=1000.0, workers="2"
    )
    finish_next(job, w(0), Done(), version=6)
    assert finish_next(job, w(0), StatesComputed(pb.MetricStates())).kind == pb.EVALUATE
    metrics = take(job, w(0))
    assert metrics.kind == pb.FINISH_EVALUATION
    for _ in range(3):
        finish_next(job, w(1), Done(), version=20)
    assert job.phases.phase == Phase.SAVING
    assert orders(job) == [TakeCheckpoint(final=True)]
    if begins:
        job.on(CheckpointBegun(), 2.0)
    job.on(TaskReported(w(0), 0, metrics.id, MetricsComputed({"auc": 0.8}), 20), 2.0)
    job.tick(2.0)
    job.on(CheckpointTaken(taken(1), True), 3.0)
    worse = {
        pb.EVALUATE: StatesComputed(pb.MetricStates()),
        pb.FINISH_EVALUATION: MetricsComputed({"auc": 0.7}),
    }
    while not job.ended:
        task = take(job, w(0))
        job.on(TaskReported(w(0), 0, task.id, worse[task.kind], 20), 4.0)
        confirm(job, 4.0)
    first, *later = [each.metrics["auc"] for each in job.work.evaluation_results]
    assert (first, set(later)) == (0.8, {0.7})
    assert result_of(job, 5.0)["checkpoints"]["best"] == 1


def test_a_job_ends_well_without_its_last_checkpoint():
    job = begun(TRAINING, checkpoint_seconds=1.0, output="o")
    for _ in range(4):
        finish_next(job, w(0), Done())
    for now in (2.0, 3.0):
        job.tick(now)
        assert orders(job) == [TakeCheckpoint(final=True)]
        job.on(CheckpointFailed("the disk is full", True), now)
    assert job.phases.phase == Phase.EXPORTING
    finish_next(job, w(0), Done())
    confirm(job, 3.0)
    assert job.phases.phase == Phase.SUCCEEDED
    assert orders(job) == []


def failing(job, reason, begun, patience):
    """Every attempt fails until the job does something else; the times of these attempts."""
    times, now = [], begun
    while orders(job) == [TakeCheckpoint(final=True)]:
        times.append(now)
        job.on(CheckpointFailed(reason, True), now)
        while job.phases.saves and now < begun + 2 * patience:
            now += 0.5
            job.tick(now)
            if job.checkpoints.under_way:
                break
    return times


@pytest.mark.parametrize("gives_up", [False, True])
def test_the_only_copy_of_a_model_is_tried_for_as_long_as_data_is(gives_up):
    if gives_up:
        job = export_fails(storage_patience_seconds=100.0)
    else:
        job = begun(TRAINING, checkpoint_seconds=1.0, storage_patience_seconds=100.0)
        for _ in range(4):
            finish_next(job, w(0), Done())
    job.tick(2.0)
    assert orders(job) == [TakeCheckpoint(final=True)]
    job.on(CheckpointFailed("/c: No space left on device", True), 2.0)
    assert orders(job) == []  # not at the same instant
    assert "No space" in status_message(job, 2.0).waits_for
    job.tick(3.0)
    times = failing(job, "/c: No space left on device", 3.0, 100.0)
    pauses = [after - before for before, after in itertools.pairwise(times)]
    assert pauses == sorted(pauses)
    assert max(pauses) == 30.0
    assert 102.0 <= times[-1] < 132.0
    assert not job.phases.saves
    assert job.ended == gives_up


def test_a_model_is_saved_as_soon_as_the_storage_is_back():
    job = export_fails()
    job.tick(2.0)
    for now in (2.0, 4.0, 8.0):
        assert orders(job) == [TakeCheckpoint(final=True)]
        job.on(CheckpointFailed("the store is away", True), now)
        job.tick(now + 4.0)
    assert orders(job) == [TakeCheckpoint(final=True)]
    job.on(CheckpointBegun(), 12.0)
    job.on(CheckpointTaken(taken(1), True), 13.0)
    assert job.phases.phase == Phase.FAILED
    assert WAY_OUT.format(1) in job.phases.failure.message


def in_training():
    """A job in training that takes a checkpoint every 10 steps, and the list of its events."""
    events = []
    job = pushed(RecordedJob(config(checkpoint_steps=10), events.append))
    job.on(JobBegun(), 0.0)
    job.on(ServerRegistered(ServerId(0), 0, "host:0"), 0.0)
    job.on(WorkerRegistered(w(0), 0), 0.0)
    finish_next(job, w(0), TRAINING)
    return job, events


def test_a_new_master_takes_again_what_the_old_one_had_under_way():
    job, events = in_training()
    at_version(job, 10, 1.0)
    for _ in range(4):
        finish_next(job, w(0), Done())
    job.on(CheckpointTaken(taken(1), False), 2.0)
    for phase in (Phase.SAVING, Phase.SUCCEEDED):
        again = pushed(RecordedJob(config(checkpoint_steps=10), lambda _: None))
        again.replay(list(events))
        assert again.phases.phase == job.phases.phase == phase
        again.on(MasterRestarted(), 3.0)
        again.tick(3.0)
        assert orders(again) == [TakeCheckpoint(final=True)] * (phase == Phase.SAVING)
        if phase == Phase.SAVING:
            job.on(CheckpointTaken(taken(2), True), 4.0)
            confirm(job, 4.0)


def test_a_new_master_takes_one_where_a_server_asked_before_it_looked_at_the_others():
    _, events = in_training()
    again = RecordedJob(config(checkpoint_steps=10), lambda _: None)
    again.replay(list(events))
    for _ in range(2):  # its question is repeated
        assert again.server_draining(ServerId(0), 0, 1.0).outcome is None
    again.on(MasterRestarted(), 2.0)
    assert again.server_draining(ServerId(0), 0, 3.0).outcome is None
    again.tick(3.0)
    assert orders(again) == [TakeCheckpoint()]


def test_none_where_none_are_wanted():
    job = begun(TRAINING, checkpoint_seconds=0.0, checkpoint_steps=0)
    assert at_version(job, 1000, 20.0) == []
    for _ in range(4):
        finish_next(job, w(0), Done())
    assert job.phases.phase == Phase.SUCCEEDED


def test_the_position_names_what_is_under_way():
    job = begun(TRAINING, checkpoint_steps=10)
    finish_next(job, w(0), Done())
    task = take(job, w(0))
    job.work.progress(task, 4)
    assert position(job, 1.0) == {
        "phase": "training",
        "epoch": 0,
        "version": 0,
        "records": {"total": 40, "trained_once": 14, "repeated": 0, "failed": 0, "pending": 26},
        "held": {
            "worker-0": {
                "task": task.id,
                "source": "t",
                "start": task.span.start,
                "end": task.span.end,
                "acknowledged": 4,
            }
        },
    }


def test_a_server_that_is_told_to_end_waits_for_a_checkpoint_that_begins_after_it_asked():
    job = begun(TRAINING, checkpoint_steps=10)
    assert at_version(job, 10, 1.0) == [TakeCheckpoint()]
    assert job.server_draining(ServerId(0), 0, 2.0).outcome is None
    assert orders(job) == []
    job.on(CheckpointTaken(taken(1), False), 3.0)
    assert orders(job) == [TakeCheckpoint()]  # the first may lack what came before the question
    assert job.server_draining(ServerId(0), 0, 4.0).outcome is None
    job.on(CheckpointTaken(taken(2), False), 5.0)
    assert "in checkpoint 2" in job.server_draining(ServerId(0), 0, 6.0).outcome
    assert orders(job) == []
    with pytest.raises(WireError):
        job.server_draining(ServerId(0), 1, 7.0)  # never started


def test_a_server_that_is_told_to_end_waits_for_another_checkpoint_where_one_fails():
    job = begun(TRAINING, checkpoint_seconds=3600.0)
    assert job.server_draining(ServerId(0), 0, 2.0).outcome is None
    assert orders(job) == [TakeCheckpoint()]
    job.on(CheckpointFailed("a server is away", False), 3.0)
    assert job.server_draining(ServerId(0), 0, 4.0).outcome is None
    assert orders(job) == []
    assert job.server_draining(ServerId(0), 0, 3.0 + RETRY_SECONDS).outcome is None
    assert orders(job) == [TakeCheckpoint()]
    job.on(CheckpointTaken(taken(1), False), 9.0)
    assert "in checkpoint 1" in job.server_draining(ServerId(0), 0, 10.0).outcome


def test_a_server_that_is_told_to_end_does_not_wait_in_vain():
    without = begun(TRAINING, checkpoint_seconds=0.0)
    assert "takes no checkpoints" in without.server_draining(ServerId(0), 0, 2.0).outcome
    without.on(JobStopped("enough"), 3.0)
    assert without.server_draining(ServerId(0), 0, 4.0).outcome == "nothing is trained now"


def test_a_server_asks_for_a_checkpoint_of_its_log():
    job = begun(TRAINING, durability="log", checkpoint_seconds=1000.0, servers="2")
    job.tick(1.0)
    asking = pb.ServerStatus(wants_checkpoint=True)
    job.servers.answered(ServerId(1), asking)
    job.tick(2.0)
    assert orders(job) == [TakeCheckpoint()]
    job.on(CheckpointFailed("/x: No space left on device", False), 3.0)
    job.tick(7.0)
    assert orders(job) == []  # it still asks, and a full disk stays full for a while
    job.tick(8.0)
    assert orders(job) == [TakeCheckpoint()]
    job.on(CheckpointTaken(taken(1), False), 9.0)
    job.tick(10.0)
    assert orders(job) == []
    job.servers.answered(ServerId(1), pb.ServerStatus())
    job.tick(11.0)
    assert orders(job) == []


# ------------------------------------------------------------ a model that would be lost


FULL = Failure(pb.ENVIRONMENT, "--output: No space left on device")


def export_fails(**changes):
    """A job whose export fails after all was trained; what it has left to do is taken."""
    job = begun(TRAINING, output="o", job_dir="jobs/j", **changes)
    for _ in range(4):
        finish_next(job, w(0), Done())
    if changes.get("checkpoint_seconds"):
        job.on(CheckpointTaken(taken(4), True), 1.0)
    assert job.phases.phase == Phase.EXPORTING
    orders(job)
    finish_next(job, w(0), FULL)
    return job


WAY_OUT = "What was trained is in the job's newest checkpoint, number {}: shoal export jobs/j"


def test_a_model_that_is_in_no_checkpoint_is_saved_before_its_export_is_given_up():
    job = export_fails()
    job.tick(2.0)
    assert orders(job) == [TakeCheckpoint(final=True)]
    assert isinstance(job.task_wanted(w(0), 0, 2.0), Wait)
    assert not job.ended
    job.on(CheckpointBegun(), 2.0)
    job.on(CheckpointTaken(taken(1), True), 3.0)
    assert job.phases.phase == Phase.FAILED
    assert job.phases.failure.kind == pb.ENVIRONMENT
    assert job.phases.failure.message.startswith(f"{FULL.message}\n{WAY_OUT.format(1)}")


def test_a_model_that_is_in_a_checkpoint_is_not_saved_again():
    job = export_fails(checkpoint_seconds=30.0)
    assert job.phases.phase == Phase.FAILED
    assert WAY_OUT.format(4) in job.phases.failure.message
    assert orders(job) == []


@pytest.mark.parametrize("ends", ["no checkpoint", "a server", "stopped"])
def test_where_no_checkpoint_can_be_had_the_job_fails_for_the_first_reason_and_says_why(ends):
    job = export_fails()
    job.tick(2.0)
    if ends == "stopped":
        job.on(JobStopped("Ctrl-C"), 3.0)
        reason = "the job was stopped: Ctrl-C"
    elif ends == "a server":
        job.on(JobFailed(Failure.internal("ps-0 died too often")), 3.0)
        reason = "ps-0 died too often"
    else:
        assert failing(job, "no room either", 3.0, 300.0)
        reason = "no room either"
    assert job.phases.phase == Phase.FAILED
    assert job.phases.failure.kind == pb.ENVIRONMENT
    lines = job.phases.failure.message.splitlines()
    assert lines == [
        FULL.message,
        f"A checkpoint of what was trained could not be taken: {reason}",
    ]


def test_a_checkpoint_that_is_older_is_not_said_to_have_everything():
    job = begun(TRAINING, output="o", checkpoint_steps=10, job_dir="jobs/j")
    assert at_version(job, 10, 1.0) == [TakeCheckpoint()]
    job.on(CheckpointTaken(taken(1), False), 1.0)
    for _ in range(4):
        finish_next(job, w(0), Done())
    for now in (2.0, 3.0):
        job.tick(now)
        job.on(CheckpointFailed("no room", True), now)
    orders(job)
    finish_next(job, w(0), FULL)
    assert not job.ended
    job.tick(5.0)
    assert failing(job, "no room", 5.0, 300.0)
    assert "The job's newest checkpoint, number 1, is older: shoal export jobs/j" in (
        job.phases.failure.message
    )


def test_a_new_master_goes_on_saving_the_model():
    events = []
    job = RecordedJob(config(output="o"), events.append)
    register(job, TRAINING)
    for _ in range(4):
        finish_next(job, w(0), Done())
    finish_next(job, w(0), FULL)
    again = pushed(RecordedJob(config(output="o"), lambda _: None))
    again.replay(list(events))
    again.on(MasterRestarted(), 3.0)
    again.tick(3.0)
    assert orders(again) == [TakeCheckpoint(final=True)]


def resumed_on(job, servers, restored, now):
    """The job goes on from a checkpoint, with so many servers."""
    job.on(Resumed(f"at {now}", {"servers": str(servers)}, restored, (), (), "", ((),) * 2), now)
    job.take_instructions()


def test_with_another_number_of_servers_older_checkpoints_are_given_up():
    job = begun(TRAINING, servers="2", checkpoint_steps=10, keep_checkpoint_max=3)
    for number in (1, 2, 3):
        job.on(CheckpointBegun(), 1.0)
        job.on(CheckpointTaken(taken(number), False), 1.0)
    orders(job)
    resumed_on(job, 2, taken(2), 2.0)
    assert job.checkpoints.kept.all == [taken(1), taken(2)]
    resumed_on(job, 3, taken(2), 3.0)
    assert job.checkpoints.kept.all == [taken(2)]
    job.on(CheckpointsFound([taken(1), taken(2)]), 1.0)  # still there, and nobody is to restore it
    assert job.checkpoints.kept.all == [taken(2)]
    job.on(CheckpointBegun(), 4.0)
    job.on(CheckpointTaken(taken(4), False), 4.0)
    assert RemoveCheckpoints((1,)) in orders(job)
    job.on(CheckpointBegun(), 5.0)
    job.on(CheckpointTaken(taken(5), False), 5.0)
    assert not any(isinstance(each, RemoveCheckpoints) for each in orders(job))


def test_a_checkpoint_is_not_offered_again_to_a_server_that_found_it_damaged():
    job = begun(TRAINING, servers="2", checkpoint_steps=10)
    for number in (1, 2):
        job.on(CheckpointBegun(), 1.0)
        job.on(CheckpointTaken(taken(number), False), 1.0)
    one, other = job.members.servers
    job.on(exited(one, 0), 2.0)
    job.on(ServerRegistered(one, 1, "host:1", checkpoint=1), 3.0)
    assert job.checkpoints.kept.offered(one) == [taken(1)]
    assert job.checkpoints.kept.offered(other) == [taken(2), taken(1)]
    # All servers have read it since.
    resumed_on(job, 2, taken(2), 4.0)
    assert job.checkpoints.kept.offered(one) == [taken(2), taken(1)]
