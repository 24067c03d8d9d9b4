"""When a job publishes, what holds it back, and what a failure means. No I/O."""

import pytest

from shoal.master.job.events import (
    CheckpointBegun,
    CheckpointTaken,
    DeltaFailed,
    DeltaPublished,
    MasterRestarted,
    Published,
    PublishingHeld,
    Taken,
    TaskReported,
    VersionSeen,
)
from shoal.master.job.instructions import PublishDelta, TakeCheckpoint
from shoal.master.job.view.status import status_message
from shoal.master.result import result_of
from shoal.master.work.outcomes import DataDescribed, Done, MetricsComputed, StatesComputed
from shoal.master.work.phases import Phase
from shoal.master.work.units import Source
from shoal.proto import shoal_pb2 as pb
from tests.master.strategies import begun, confirm, take, w

TRAINING = DataDescribed(training=(Source("t", 40),))
BOTH = DataDescribed(training=(Source("t", 40),), validation=(Source("v", 10),))
PUBLISH = {"publish": "live", "publish_seconds": 10.0}


def orders(job, now):
    job.tick(now)
    return [each for each in job.take_instructions() if isinstance(each, PublishDelta)]


def published(number, seconds=0.0):
    return Published(number, base=number == 1, bytes=100, seconds=seconds)


def started(data=TRAINING, **fields):
    job = begun(data, **(PUBLISH | fields))
    job.on(VersionSeen(1), 1.0)
    return job


def test_one_at_a_time_and_every_so_many_seconds():
    job = started()
    assert orders(job, 2.0) == [PublishDelta()]
    assert orders(job, 30.0) == []  # one is under way
    job.on(DeltaPublished(published(1)), 31.0)
    assert orders(job, 31.5) == [PublishDelta()]
    job.on(DeltaPublished(published(2)), 32.0)
    assert orders(job, 41.0) == []
    assert orders(job, 41.5) == [PublishDelta()]


def test_nothing_before_a_worker_has_begun():
    job = begun(TRAINING, **PUBLISH)
    assert orders(job, 20.0) == []


def test_no_sooner_than_ten_times_what_a_share_took():
    job = started()
    orders(job, 2.0)
    job.on(DeltaPublished(published(1, seconds=3.0)), 5.0)
    assert orders(job, 34.0) == []
    assert orders(job, 35.0) == [PublishDelta()]


def test_a_failure_is_tried_again_and_told_once_it_lasts():
    job = started()
    orders(job, 2.0)
    job.on(DeltaFailed("/live: No space left on device"), 3.0)
    assert orders(job, 3.5) == []
    assert orders(job, 4.0) == [PublishDelta()]
    assert not any("No space" in each for each in job.record.messages)
    job.on(DeltaFailed("/live: No space left on device"), 9.0)
    (told,) = (each for each in job.record.messages if "No space" in each)
    assert "warning: no delta can be published: /live: No space left on device" in told
    orders(job, 11.0)
    job.on(DeltaFailed("/live: No space left on device"), 12.0)
    assert sum("No space" in each for each in job.record.messages) == 1
    orders(job, 16.0)
    job.on(DeltaPublished(published(1)), 17.0)
    assert "deltas are published again, from delta 1 on" in job.record.messages[-1]


def trained(job, now, auc=0.0):
    """Let worker 0 do all there is until the phase `publishing`, or the job's end."""
    kinds = {pb.EVALUATE: StatesComputed(pb.MetricStates())}
    kinds[pb.FINISH_EVALUATION] = MetricsComputed({"auc": auc})
    job.tick(now)
    while job.phases.phase in (Phase.TRAINING, Phase.SAVING, Phase.EVALUATING):
        task = take(job, w(0), 0, now)
        job.on(TaskReported(w(0), 0, task.id, kinds.get(task.kind, Done()), 0), now)


def test_the_job_waits_for_the_delta_of_the_end_of_training():
    job = started()
    orders(job, 2.0)  # which is under way as training ends, and lacks something
    trained(job, 3.0)
    assert orders(job, 3.5) == []
    job.on(DeltaPublished(published(1)), 4.0)
    assert job.phases.phase is Phase.PUBLISHING
    assert orders(job, 4.5) == [PublishDelta(0)]
    job.on(DeltaPublished(published(2), 0), 5.0)
    assert job.phases.phase is Phase.CONFIRMING
    confirm(job, 6.0)
    assert job.phases.phase is Phase.SUCCEEDED
    told = result_of(job, 7.0)["published"]
    assert told == {
        "folder": "live",
        "deltas": 2,
        "newest": 2,
        "bytes": 200,
        "last_failure": None,
    }
    status = status_message(job, 7.0)
    assert (status.delta, status.published_seconds) == (2, 2.0)


def test_at_the_end_the_storage_gets_the_patience_of_others():
    job = started(storage_patience_seconds=60.0)
    orders(job, 2.0)
    job.on(DeltaPublished(published(1)), 2.5)
    trained(job, 3.0)
    assert orders(job, 3.5) == [PublishDelta(0)]
    job.on(DeltaFailed("/live: Input/output error"), 4.0)
    assert not job.ended
    orders(job, 5.0)
    job.on(DeltaFailed("/live: Input/output error"), 64.0)
    job.tick(65.0)
    assert TakeCheckpoint(final=True) in job.take_instructions()  # as nothing else has the model
    job.on(CheckpointBegun(), 66.0)
    job.on(CheckpointTaken(Taken(1, version=1, bytes=10, seconds=0.1), True), 67.0)
    assert job.phases.phase is Phase.FAILED
    message = job.phases.failure.message
    assert "the end of training could not be published: /live: Input/output error" in message
    assert "in the job's newest checkpoint, number 1: shoal export" in message


def test_a_folder_of_others_ends_the_job():
    job = started()
    job.on(DeltaFailed("--publish live: it has deltas of job first", for_good=True), 2.0)
    assert job.phases.phase is Phase.FAILED
    assert job.phases.failure.kind == pb.USER_ERROR


def test_what_is_held_is_not_published_and_the_job_ends_all_the_same():
    job = started()
    job.on(PublishingHeld(True), 1.5)
    assert orders(job, 2.0) == []
    job.on(PublishingHeld(False), 3.0)
    assert orders(job, 3.5) == [PublishDelta()]
    job.on(DeltaPublished(published(1)), 4.0)
    job.on(PublishingHeld(True), 5.0)
    trained(job, 6.0)
    assert orders(job, 7.0) == []
    assert job.phases.phase is Phase.CONFIRMING
    assert any("is not published: it is held" in each for each in job.record.messages)


@pytest.mark.parametrize(("auc", "publishes"), [(0.8, True), (0.7, False)])
def test_nothing_is_published_while_the_newest_metrics_say_no(auc, publishes):
    job = started(BOTH, publish_if="auc>=0.78", validation_data="v", evaluation_steps=0)
    assert orders(job, 2.0) == []  # nothing was evaluated yet
    trained(job, 3.0, auc)
    found = orders(job, 4.0)
    assert found == ([PublishDelta(0)] if publishes else [])
    assert (job.phases.phase is Phase.PUBLISHING) == publishes
    if not publishes:
        assert any("auc>=0.78: auc is 0.7" in each for each in job.record.messages)


def test_a_new_master_orders_what_an_earlier_one_had_under_way():
    job = started()
    orders(job, 2.0)
    job.on(DeltaPublished(published(1)), 2.5)
    trained(job, 3.0)
    assert orders(job, 3.5) == [PublishDelta(0)]
    job.on(MasterRestarted(), 4.0)
    assert orders(job, 4.5) == [PublishDelta(0)]
