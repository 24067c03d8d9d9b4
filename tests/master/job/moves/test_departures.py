"""Servers that are told to end, and give their rows to the others. No I/O."""

import pytest

from shoal.master.calls.fences import Said
from shoal.master.calls.server_work import _begin_move, _fenced
from shoal.master.cluster.told_to_end import _servers_drain
from shoal.master.job import events
from shoal.master.job.instructions import (
    FenceWorker,
    MoveSlots,
    StartProcess,
    TakeCheckpoint,
    TerminateProcess,
)
from shoal.master.job.moves.departures import Departures
from shoal.master.work.accounts.applied import AppliedPush
from shoal.master.work.ids import ServerId, Start
from shoal.master.work.outcomes import Done
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError
from tests.master.job.moves.test_moves import World, shares
from tests.master.strategies import exited, take, w

GRACE = 28.0


def world(**changes):
    fields = {"servers": "3", "durability": "checkpoint", "relaunch_limit": 0}
    return World(**(fields | changes))


def told(world, server, now=2.0, incarnation=0, *, closed=False, seconds=GRACE, size=0, used=0):
    """How a server stands that is told to end. size, used: bytes, of each server's 4 GB."""
    tables = [pb.TableStatus(memory_bytes=size)]
    for each in world.job.members.servers:
        status = pb.ServerStatus(
            seconds=1.0, memory_bytes=used, memory_limit=4_000_000_000, tables=tables
        )
        world.job.servers.answered(each, status)
    return world.job.server_draining(ServerId(server), incarnation, now, seconds, closed=closed)


def table(world, now=2.0):
    """The table of the move that is to begin; None if none is."""
    moves = [each.table for each in world.instructions(now) if isinstance(each, MoveSlots)]
    return moves[0] if moves else None


def move(world, wanted, now=2.0):
    """A move to its end, and the checkpoint after it; what it had done at processes."""
    world.job.on(events.MoveBegun(wanted), now)
    world.job.on(events.MoveCommitted(), now)
    made = world.job.take_instructions()
    world.job.on(events.MoveEnded(1, 10, 1000, 1.0, 0.1), now)
    world.again()
    world.job.tick(now)
    world.checkpoint(now)
    return made


def departed(world, server, now=2.0):
    assert told(world, server, now).serves
    return move(world, table(world, now), now)


def back(world, server, incarnation=1, now=3.0):
    world.job.on(events.ServerRegistered(ServerId(server), incarnation, f"back:{server}"), now)
    move(world, table(world, now), now)


def test_a_server_gives_its_rows_away_leaves_and_gets_its_share_again():
    job = world()
    assert told(job, 1).outcome is None
    wanted = table(job)
    assert (list(wanted.absent), wanted.dense, wanted.servers) == ([1], 1, 3)
    job.job.on(events.MoveBegun(wanted), 2.0)
    # Not in the middle of it, however long it takes.
    assert told(job, 1, now=100.0).serves
    job.job.on(events.MoveCommitted(), 100.0)
    made = job.job.take_instructions()
    assert made == [TerminateProcess(Start(ServerId(1), 0)), StartProcess(Start(ServerId(1), 1))]
    job.job.on(events.MoveEnded(5462, 10, 1000, 1.0, 0.1), 100.0)
    assert shares(job.job) == [8192, 0, 8192]
    assert told(job, 1).outcome == "its rows are at other servers"
    assert job.job.server_addresses(3.0) == ["host:0", "", "host:2"]
    assert job.job.members.servers_ready
    # The end of the first process is no death of the second one.
    job.job.on(exited(ServerId(1)), 3.0)
    assert TakeCheckpoint() in job.instructions(3.0)
    job.checkpoint(3.0)
    assert table(job, 4.0) is None
    back(job, 1, now=5.0)
    assert job.job.moves.routing.absent == ()
    assert sorted(shares(job.job)) == [5461, 5461, 5462]
    assert [each.index for each in job.job.members.servers] == [0, 1, 2]
    assert job.job.server_addresses(6.0) == ["host:0", "back:1", "host:2"]
    assert job.job.moves.routing.dense == 3


@pytest.mark.parametrize(
    ("changes", "server", "seconds"),
    [
        pytest.param({}, 0, GRACE, id="the first one"),
        pytest.param({"durability": "peer"}, 1, GRACE, id="logs at servers"),
        pytest.param({}, 1, 0.0, id="no time"),
    ],
)
def test_others_take_no_more_pushes_and_wait_for_a_checkpoint(changes, server, seconds):
    job = world(**changes)
    assert not told(job, server, seconds=seconds).serves
    assert table(job) is None
    assert told(job, server, closed=True).outcome is None
    assert job.job.take_instructions() == [TakeCheckpoint()]


@pytest.mark.parametrize(
    ("leaving", "size", "used", "seconds", "moves"),
    [
        pytest.param([1], 10**9, 10**9, GRACE, False, id="no time"),
        pytest.param([1], 10**9, 10**9, 120.0, True, id="time"),
        pytest.param([1], 10**9, 28 * 10**8, 120.0, False, id="no memory"),
        pytest.param([1, 2], 10**9, 10**9, 240.0, True, id="two"),
        pytest.param([1, 2], 10**9, 18 * 10**8, 240.0, False, id="no memory for two"),
    ],
)
def test_rows_move_only_where_there_is_time_and_memory_for_all_of_them(
    leaving, size, used, seconds, moves
):
    job = world()
    for server in leaving:
        assert told(job, server, seconds=seconds, size=size, used=used).serves
    wanted = table(job)
    assert (wanted is not None) == moves
    assert not moves or list(wanted.absent) == leaving
    assert told(job, leaving[0], seconds=seconds, size=size, used=used).serves == moves


def test_nothing_moves_before_the_servers_have_said_how_they_are():
    job = world()
    assert job.job.server_draining(ServerId(1), 0, 2.0, GRACE, closed=False).serves
    assert table(job) is None
    departed(job, 1)


def test_servers_that_end_with_the_first_one_take_the_checkpoint_with_it():
    job = world()
    assert told(job, 1).serves
    assert not told(job, 0).serves
    assert told(job, 0, closed=True).outcome is None
    assert not told(job, 1).serves
    assert table(job) is None
    # Not before the other one takes no more pushes: it would get no checkpoint any more.
    assert job.job.take_instructions() == []
    assert told(job, 1, closed=True).outcome is None
    assert job.job.take_instructions() == [TakeCheckpoint()]
    job.job.on(events.CheckpointBegun(), 2.0)
    job.job.on(events.CheckpointTaken(events.Taken(1, 1, 1, 0.1), False), 2.0)
    for server in (0, 1):
        assert "in checkpoint 1" in told(job, server, closed=True).outcome
    later = world()
    assert told(later, 0, closed=True).outcome is None
    assert not told(later, 2).serves


def test_one_that_is_told_after_another_one_may_end_waits_for_the_successor_of_that():
    """Its rows cannot move there, and no checkpoint is complete without it."""
    job = world(relaunch_limit=3)
    assert told(job, 0, closed=True).outcome is None
    assert job.job.take_instructions() == [TakeCheckpoint()]
    job.job.on(events.CheckpointBegun(), 2.0)
    job.job.on(events.CheckpointTaken(events.Taken(1, 1, 1, 0.1), False), 2.0)
    assert "in checkpoint 1" in told(job, 0, closed=True).outcome
    assert not told(job, 1).serves
    assert told(job, 1, closed=True).outcome is None
    assert table(job) is None
    assert job.job.take_instructions() == []
    # A master that is told to end, too, leaves this to the next one.
    assert not _servers_drain(job.job, 2.0)
    job.job.on(exited(ServerId(0)), 3.0)
    job.job.on(events.ServerRegistered(ServerId(0), 1, "back:0"), 4.0)
    assert TakeCheckpoint() in job.instructions(4.0)
    assert _servers_drain(job.job, 4.0)
    job.checkpoint(4.0)
    assert "in checkpoint 2" in told(job, 1, 5.0, closed=True).outcome


def test_a_server_takes_a_checkpoint_if_its_rows_have_not_moved_in_time_or_cannot():
    job = world()
    job.job.on(events.CheckpointBegun(), 2.0)
    assert told(job, 1).serves
    assert table(job) is None  # while a checkpoint is taken
    assert not told(job, 1, now=2.0 + GRACE / 2).serves
    other = world()
    assert told(other, 1).serves
    other.job.on(events.MoveBegun(table(other)), 2.0)
    other.job.on(events.MoveFailed("no memory"), 3.0)
    assert not told(other, 1, now=3.0).serves
    assert table(other, 10.0) is None


def test_a_server_that_dies_while_its_rows_move_is_started_again_where_it_was():
    job = world(relaunch_limit=3)
    assert told(job, 2).serves
    job.job.on(events.MoveBegun(table(job)), 2.0)
    job.job.on(exited(ServerId(2)), 3.0)
    assert StartProcess(Start(ServerId(2), 1)) in job.job.take_instructions()
    job.job.on(events.MoveFailed("a server died meanwhile"), 3.0)
    job.job.on(events.ServerRegistered(ServerId(2), 1, "again:2"), 4.0)
    assert table(job, 10.0) is None
    assert job.job.server_addresses(10.0) == ["host:0", "host:1", "again:2"]
    with pytest.raises(WireError, match="taken for dead"):
        told(job, 2)


def test_servers_leave_one_after_the_other_and_come_back_as_they_can():
    job = world(servers="4")
    departed(job, 2)
    departed(job, 1)
    assert job.job.moves.routing.absent == (1, 2)
    assert shares(job.job) == [8192, 0, 0, 8192]
    back(job, 2)
    assert job.job.moves.routing.absent == (1,)
    assert job.job.moves.routing.dense == 1
    back(job, 1)
    assert shares(job.job) == [4096] * 4


def test_the_number_of_servers_changes_while_one_is_absent():
    job = world()
    departed(job, 1)
    job.job.on(events.ServersWanted(4), 2.0)
    assert table(job) is None  # ps-3 is not there yet
    job.job.on(events.ServerRegistered(ServerId(3), 0, "new:3"), 2.0)
    move(job, table(job))
    assert job.job.moves.routing.absent == (1,)
    assert job.job.moves.routing.servers == 4
    back(job, 1)
    assert shares(job.job) == [4096] * 4
    fewer = world()
    departed(fewer, 1)
    fewer.job.on(events.ServersWanted(1), 2.0)
    move(fewer, table(fewer))
    assert shares(fewer.job) == [16384]
    assert list(fewer.job.members.servers) == [ServerId(0)]
    assert not fewer.job.members.joining


def test_a_job_goes_on_without_a_server_that_cannot_be_started_and_tries_again_later():
    job = world()
    departed(job, 1)
    for incarnation in (1, 2):
        job.job.on(exited(ServerId(1), incarnation), 3.0)
        start = StartProcess(Start(ServerId(1), incarnation + 1), 60.0)
        assert start in job.job.take_instructions()
    assert not job.job.ended
    assert "The job goes on without" in job.job.record.messages[-1]
    back(job, 1, incarnation=3, now=4.0)
    assert job.job.moves.routing.absent == ()


def test_with_sync_and_without_a_log_the_death_of_a_successor_costs_nothing():
    job = world(sync=True, relaunch_limit=3)
    departed(job, 1)
    job.job.on(exited(ServerId(1), 1), 3.0)
    assert not job.job.ended
    back(job, 1, incarnation=2, now=4.0)


def test_a_server_that_is_back_does_not_wait_for_one_that_is_to_come():
    job = world()
    departed(job, 1)
    job.job.on(events.ServersWanted(4), 2.0)
    back(job, 1)
    routing = job.job.moves.routing
    assert (routing.absent, routing.servers) == ((), 3)
    job.job.on(events.ServerRegistered(ServerId(3), 0, "new:3"), 5.0)
    move(job, table(job, 5.0), 5.0)
    assert shares(job.job) == [4096] * 4


def test_an_export_that_becomes_due_calls_off_a_move_that_has_not_begun():
    """As the next master would do it again from the journal."""
    job = world(output="out")
    assert told(job, 1).serves
    wanted = table(job)
    job.job.work.follow_ups.export(0)
    assert take(job.job, w(0)).kind == pb.EXPORT
    assert _begin_move(wanted, job.job, 3.0) is None
    assert not job.job.moves.under_way


def test_what_a_dead_worker_has_is_told_by_index_also_where_a_server_is_absent():
    job = world()
    task = take(job.job, w(0))
    departed(job, 1)
    job.job.on(exited(w(0)), 3.0)
    said = {
        ServerId(server): Said(0, AppliedPush(sequence, task.id, records))
        for server, sequence, records in ((0, 1, 5), (2, 2, 10))
    }
    assert _fenced(FenceWorker(w(0), 0), said, job.job, 3.0)
    (fenced,) = [each.event for each in job.events if isinstance(each.event, events.WorkerFenced)]
    assert [each.sequence for each in fenced.pushes] == [1, 1, 2]


def test_a_worker_that_began_while_a_server_was_absent_has_lost_nothing_there():
    """That server had been started again before, and asks no worker for its pushes now."""
    job = world(relaunch_limit=3)
    job.job.on(exited(ServerId(1)), 2.0)
    job.job.on(events.ServerRegistered(ServerId(1), 1, "again:1"), 2.0)
    assert told(job, 1, incarnation=1).serves
    move(job, table(job))
    job.job.on(events.WorkersWanted(2), 3.0)
    job.job.on(events.WorkerRegistered(w(1), 0), 3.0)
    task = take(job.job, w(1), now=3.0)
    job.job.on(events.TaskReported(w(1), 0, task.id, Done(), 3), 4.0)
    assert job.job.work.ledger.trained == 10
    assert not any("trained again" in each for each in job.job.record.messages)


def test_of_each_server_only_the_last_start_that_was_told_to_end_is_known():
    departures = Departures()
    for incarnation in range(50):
        start = Start(ServerId(1), incarnation)
        departures.ask(start, 60.0, 1.0)
        departures.closed(start)
        departures.refuse(start)
        assert departures.known(start)
    assert [len(each) for each in vars(departures).values() if isinstance(each, (dict, set))] == [
        *(1, 1, 1, 0, 1)
    ]
