"""Whatever happens to a job, another master that does its events again has the same job."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.master.calls.server_work import _begin_move
from shoal.master.job.events import (
    Event,
    MoveCommitted,
    Noted,
    OfServer,
    OfWorker,
    ServerRegistered,
    ServersWanted,
    TaskAheadWanted,
    TaskReported,
    TaskWanted,
    TrainingAllowed,
    WorkerFenced,
    WorkerRegistered,
    WorkersWanted,
)
from shoal.master.job.instructions import Finished, MoveSlots
from shoal.master.job.job import Job
from shoal.master.job.members.members import ProcessState
from shoal.master.job.moves.moves import Moving
from shoal.master.journal.events import RecordedJob
from shoal.master.work.accounts.applied import AppliedPush
from shoal.master.work.ids import ServerId
from shoal.master.work.outcomes import DataDescribed, Done
from shoal.master.work.units import Source
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError
from tests.examples import examples
from tests.master.decided import FIELDS_HEARD, by_events_alone
from tests.master.journal.test_journal import of_a_random_job, replayed
from tests.master.random_courses import RandomCourse
from tests.master.random_jobs import differences, state
from tests.master.strategies import config, exited, heartbeat, register, take, w

NOT_TOLD = FIELDS_HEARD | {
    *("drains", "departures", "unprotected"),
    *("_notes", "_news", "_noted", "_warnings", "messages", "repeats"),
}


@settings(max_examples=examples(40), deadline=None)
@given(seed=st.integers(0, 2**32), steps=st.integers(100, 500), sync=st.booleans())
def test_each_event_can_be_done_again_by_another_master_as_it_comes(seed, steps, sync):
    configuration = of_a_random_job(
        seed,
        sync,
        evaluation_steps=7 * (seed % 2),
        evaluation_workers=seed // 2 % 2,
        durability=("checkpoint", "log")[seed // 4 % 2],
        checkpoint_steps=20,
        relaunch_limit=50,
    )
    world = RandomCourse(configuration, seed)
    for _ in range(steps):
        if not world.over:
            world.step()
    world.job.on(Noted("what was heard last is told"), world.now)
    left, right = (state(each, skip=NOT_TOLD) for each in (world.follower, world.job))
    assert differences(left, right) == []


def of(described, **fields):
    """A job that trains, with its events."""
    events = []
    job = RecordedJob(config(**fields), events.append)
    register(job, described)
    return job, events


def test_a_worker_whose_registration_was_refused_is_not_there_for_another_master_either():
    data = DataDescribed((Source("t", 600),), (Source("v", 20),))
    fields = {"evaluation_workers": 1, "evaluation_steps": 2, "validation_data": "v.csv"}
    job, events = of(data, workers="3", servers="2", **fields)
    first = take(job, w(1))
    job.heartbeat(w(1), 0, heartbeat(first.id, 5, version=2), 1.0)
    assert take(job, w(0)).kind == pb.EVALUATE
    job.on(exited(ServerId(1)), 2.0)
    job.on(exited(w(0)), 2.0)
    job.on(WorkerFenced(w(0), 0, [AppliedPush(0, 0, 0)] * 2), 2.1)
    with pytest.raises(WireError, match="not all parameter servers"):
        job.on(WorkerRegistered(w(0), 1), 8.0)
    assert job.members.workers[w(0)].state is ProcessState.STARTING
    # So nobody else evaluates, and worker-1 is to, before it trains on.
    assert isinstance(job.on(TaskAheadWanted(w(1), 0, first.id), 8.5), Finished)
    assert take(job, w(2)).kind == pb.EVALUATE
    replayed(job.config, events)


def test_a_move_does_not_begin_when_another_number_of_servers_is_wanted_since_its_order():
    job, events = of(DataDescribed((Source("t", 400),)), checkpoint_steps=1000)
    job.on(ServersWanted(3), 2.0)
    for server, member in job.members.joining.items():
        job.on(ServerRegistered(server, member.incarnation, f"new:{server.index}"), 2.0)
    job.tick(2.0)
    (move,) = [each for each in job.take_instructions() if isinstance(each, MoveSlots)]
    job.on(ServersWanted(2), 2.01)
    assert _begin_move(move.table, job, 2.02) is None
    job.tick(2.5)
    (move,) = [each for each in job.take_instructions() if isinstance(each, MoveSlots)]
    assert _begin_move(move.table, job, 2.52) == 1
    job.on(MoveCommitted(), 3.0)
    assert list(job.members.servers) == [ServerId(0), ServerId(1)]
    again = replayed(job.config, events)
    assert list(again.members.servers) == [ServerId(0), ServerId(1)]
    assert again.moves._stage is Moving.SETTLING


def test_a_report_that_is_refused_tells_nothing_that_an_event_reads():
    job, _ = of(DataDescribed((Source("t", 400),)))
    take(job, w(0))
    with pytest.raises(WireError, match="does not hold"):
        job.on(TaskReported(w(0), 0, 99, Done(), 1, acknowledged=7), 2.0)
    assert job.work.copies.told(w(0), 0) == 0


def test_an_event_that_reads_what_none_sets_is_found():
    job, _ = of(DataDescribed((Source("t", 400),)))
    job._workers.scale = lambda *_: job.members.workers[w(0)].last_seen
    with by_events_alone(), pytest.raises(AssertionError, match=r"reads WorkerMember\.last_seen"):
        job.on(WorkersWanted(2), 3.0)


def test_a_question_that_is_refused_allows_no_training():
    job, events = of(DataDescribed((Source("t", 400),)), workers="2", min_workers=2)
    known = len(events)
    with pytest.raises(WireError, match="never started"):
        job.task_wanted(w(0), 7, 2.0)
    assert len(events) == known
    take(job, w(0))
    assert [each.event for each in events[known:]] == [TrainingAllowed(), TaskWanted(w(0), 0)]


def test_each_event_there_is_concerns_a_part_of_the_job():
    assert set(Event.kinds.values()) - {OfServer, OfWorker} == set(Job(config())._handlers)
