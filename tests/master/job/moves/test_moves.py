"""Which table of slots holds, as servers come, leave and die. No I/O."""

import numpy as np
import pytest

from shoal.master.job import events
from shoal.master.job.instructions import (
    AdoptProcess,
    MoveSlots,
    SettleServers,
    StartProcess,
    TakeCheckpoint,
    TerminateProcess,
    Wait,
)
from shoal.master.journal import state
from shoal.master.journal.events import RecordedJob
from shoal.master.work.ids import ServerId, Start
from shoal.master.work.outcomes import DataDescribed, Done
from shoal.master.work.phases import Phase
from shoal.master.work.units import Source
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError
from tests.master.strategies import config, exited, finish_next, register, take, w

pytestmark = pytest.mark.slow

TRAINING = DataDescribed(training=(Source("t", 400),))
NEW = Start(ServerId(1), 0)


class World:
    """A job that trains, with the events of its journal."""

    def __init__(self, **changes):
        self.config = config(**({"checkpoint_steps": 1000} | changes))
        self.events = []
        self.job = RecordedJob(self.config, self.events.append)
        register(self.job, TRAINING)

    def instructions(self, now=2.0):
        self.job.tick(now)
        return self.job.take_instructions()

    def want(self, servers, now=2.0):
        """Want so many servers, of which the new ones are there."""
        self.job.check_servers(servers)
        self.job.on(events.ServersWanted(servers), now)
        for server, member in self.job.members.joining.items():
            self.job.on(
                events.ServerRegistered(server, member.incarnation, f"new:{server.index}"), now
            )

    def checkpoint(self, now=2.0):
        """The checkpoint that follows a move."""
        self.job.on(events.CheckpointBegun(), now)
        self.job.on(
            events.CheckpointTaken(events.Taken(self.job.checkpoints.count + 1, 1, 1, 0.1), False),
            now,
        )
        self.job.take_instructions()

    def wanted(self, servers, now=2.0):
        """The move to so many servers."""
        self.want(servers, now)
        (move,) = [each for each in self.instructions(now) if isinstance(each, MoveSlots)]
        return move.table

    def moved(self, servers, now=2.0):
        self.job.on(events.MoveBegun(self.wanted(servers, now)), now)
        self.job.on(events.MoveCommitted(), now)
        made = self.job.take_instructions()
        self.job.on(events.MoveEnded(8192, 10, 1000, 1.0, 0.1), now)
        self.checkpoint(now)
        return made

    def again(self):
        """The job as another master has it from the journal; and from its state."""
        job = RecordedJob(self.config, lambda _: None)
        job.replay(self.events)
        loaded = state.load(state.dump(self.job), lambda _: None)
        for each in (job, loaded):
            assert np.array_equal(each.moves.routing.owners, self.job.moves.routing.owners)
            assert each.moves.routing.epoch == self.job.moves.routing.epoch
            assert list(each.members.servers) == list(self.job.members.servers)
            assert list(each.members.joining) == list(self.job.members.joining)
        return job


def shares(job):
    routing = job.moves.routing
    return [routing.slots(server) for server in range(routing.servers)]


def test_a_server_is_started_gets_its_share_and_is_then_one_of_all():
    world = World()
    job = world.job
    job.on(events.ServersWanted(2), 2.0)
    assert [*world.instructions()] == [StartProcess(NEW)]
    assert job.server_addresses(2.0) == ["host:0"]
    offer = job.restore_wanted(ServerId(1), 0, 2.0)
    assert (offer.joins, offer.again, offer.routing.servers) == (True, False, 1)
    assert job.on(events.ServerRegistered(ServerId(1), 0, "new"), 2.0) == []
    (move,) = world.instructions()
    world.again()
    job.on(events.MoveBegun(move.table), 3.0)
    assert job.server_addresses(3.0) == ["host:0"]
    world.again()
    job.on(events.MoveCommitted(), 3.0)
    assert job.server_addresses(3.0) == ["host:0", "new"]
    assert shares(job) == [8192, 8192]
    assert job.moves.routing.dense == 2
    job.on(events.MoveEnded(8192, 10, 1000, 1.0, 0.1), 4.0)
    assert job.take_instructions() == [TakeCheckpoint()]
    world.again()
    offer = job.restore_wanted(ServerId(1), 0, 4.0)
    assert (offer.joins, offer.replay, offer.routing.servers) == (False, True, 2)


def test_any_server_but_one_can_leave_where_logs_are_in_files():
    world = World(servers="3")
    world.moved(1)
    assert shares(world.job) == [16384]
    assert world.job.moves.routing.dense == 1
    world.moved(2)
    assert (shares(world.job), world.job.moves.routing.dense) == ([8192, 8192], 2)


def test_logs_at_servers_are_none_from_a_move_until_a_checkpoint_is_complete():
    world = World(servers="4", durability="peer")
    job = world.job

    def holders():
        return [job.restore_wanted(server, 0, 3.0).holder for server in job.members.servers]

    assert holders() == ["host:1", "host:2", "host:3", "host:0"]
    job.on(events.MoveBegun(world.wanted(2)), 2.0)
    assert holders() == ["host:1", "host:2", "host:3", "host:0"]
    job.on(events.MoveCommitted(), 2.0)
    left = [TerminateProcess(Start(ServerId(index), 0)) for index in (2, 3)]
    assert job.take_instructions() == left
    assert (job.moves.routing.dense, shares(job)) == (2, [8192, 8192])
    world.again()
    assert holders() == ["", ""]
    job.on(events.MoveEnded(8192, 10, 1000, 1.0, 0.1), 2.0)
    assert job.take_instructions() == [TakeCheckpoint()]
    job.on(events.CheckpointBegun(), 3.0)
    job.on(events.CheckpointFailed("no space", False), 3.0)
    assert holders() == ["", ""]
    world.checkpoint(9.0)
    assert holders() == ["host:1", "host:0"]
    world.again()


def test_the_last_servers_leave_and_come_again_as_other_incarnations():
    world = World(servers="2", durability="peer")
    world.moved(4)
    made = world.moved(3)
    assert made == [TerminateProcess(Start(ServerId(3), 0))]
    assert shares(world.job) == [5462, 5461, 5461]
    assert world.job.server_draining(ServerId(3), 0, 3.0).outcome == "its rows are at other servers"
    world.job.on(exited(ServerId(3)), 3.0)
    assert not any(isinstance(each, StartProcess) for each in world.instructions(3.0))
    with pytest.raises(WireError, match="keep each other's logs of updates, which takes two"):
        world.job.check_servers(1)
    world.again()
    # One that comes again is another incarnation.
    world.job.on(events.ServersWanted(4), 4.0)
    assert StartProcess(Start(ServerId(3), 1)) in world.job.take_instructions()


def test_a_move_that_fails_is_tried_again_and_given_up_in_the_end():
    world = World(timeout_seconds=1000)
    table, now = world.wanted(2), 2.0
    for attempt in range(1, 6):
        assert world.job.on(events.MoveBegun(table), now) == attempt
        world.job.on(events.MoveFailed("a server has no memory"), now)
        assert world.instructions(now) == ([] if attempt < 5 else [TerminateProcess(NEW)])
        now += 3 * 2 ** (attempt - 1)
        assert attempt > 4 or world.instructions(now - 0.1) == []
        if attempt < 5:
            assert world.instructions(now) == [MoveSlots(table)]
    assert shares(world.job) == [16384]
    assert world.instructions(now) == []
    assert world.job.moves.servers_wanted == 1
    world.again()


def test_a_move_during_which_servers_die_is_tried_until_they_live():
    world = World(relaunch_limit=100)
    job, now = world.job, 2.0
    world.wanted(2)
    for incarnation in range(8):
        job.on(events.MoveBegun(job.moves.ordered), now)
        job.on(exited(ServerId(0), incarnation), now)
        job.on(events.MoveFailed("a server died meanwhile"), now)
        job.on(events.ServerRegistered(ServerId(0), incarnation + 1, "host:0"), now)
        now += 3
        assert any(isinstance(each, MoveSlots) for each in world.instructions(now))
    assert job.moves.servers_wanted == 2
    world.again()


def test_no_checkpoint_is_taken_while_rows_move_and_no_row_moves_meanwhile():
    world = World(checkpoint_steps=10)
    world.job.on(events.MoveBegun(world.wanted(2)), 2.0)
    world.job.servers.answered(ServerId(0), world.job.members.servers[ServerId(0)].told)
    world.job.members.servers[ServerId(0)].version = 100
    assert world.instructions(3.0) == []
    world.job.on(events.MoveCommitted(), 3.0)
    world.job.on(events.MoveEnded(1, 1, 1, 1.0, 0.1), 3.0)
    assert world.job.take_instructions() == [TakeCheckpoint()]
    world.job.on(events.CheckpointBegun(), 3.0)
    world.job.on(events.ServersWanted(1), 3.0)
    assert world.instructions(4.0) == []
    world.job.on(events.CheckpointFailed("no space", False), 5.0)
    assert any(isinstance(each, MoveSlots) for each in world.instructions(5.0))


@pytest.mark.parametrize("decided", [False, True])
def test_a_new_master_has_the_servers_told_how_a_move_ended(decided):
    world = World()
    world.job.on(events.MoveBegun(world.wanted(2)), 2.0)
    if decided:
        world.job.on(events.MoveCommitted(), 2.0)
    job = world.again()
    job.on(events.MasterRestarted(), 3.0)
    made = job.take_instructions()
    assert SettleServers(decided) in made
    assert AdoptProcess(NEW) in made
    assert shares(job) == ([8192, 8192] if decided else [16384])


def test_a_new_server_that_cannot_be_started_leaves_the_job_as_it_is():
    world = World(relaunch_limit=0)
    world.job.on(events.ServersWanted(2), 2.0)
    world.job.on(exited(ServerId(1)), 3.0)
    world.instructions(3.0)
    assert not world.job.ended
    assert world.job.moves.servers_wanted == 1
    assert world.job.members.joining == {}


def test_servers_that_are_not_wanted_any_more_go_when_the_move_under_way_has_ended():
    world = World()
    world.job.on(events.MoveBegun(world.wanted(2)), 2.0)
    world.job.on(events.ServersWanted(1), 2.0)
    assert world.job.take_instructions() == []
    world.job.on(events.MoveFailed("a server died"), 2.0)
    assert world.job.take_instructions() == [TerminateProcess(NEW)]
    assert world.instructions(9.0) == []
    world.again()


def test_a_new_server_that_is_lost_for_good_while_rows_move_ends_the_tries():
    world = World(relaunch_limit=0)
    world.job.on(events.MoveBegun(world.wanted(2)), 2.0)
    world.job.on(exited(ServerId(1)), 2.0)
    world.job.on(events.MoveFailed("a server died"), 2.0)
    assert world.instructions(9.0) == []
    assert world.job.moves.servers_wanted == 1
    assert world.job.members.joining == {}


def test_rows_move_when_the_servers_have_said_what_they_have_of_a_dead_worker():
    world = World()
    world.job.on(events.TakenForDead(w(0), 0, "silent"), 2.0)
    world.job.on(events.ServersWanted(2), 2.0)
    world.job.on(events.ServerRegistered(ServerId(1), 0, "new"), 2.0)
    assert not any(isinstance(each, MoveSlots) for each in world.instructions(3.0))
    world.job.on(events.WorkerFenced(w(0), 0, [None]), 3.0)
    assert any(isinstance(each, MoveSlots) for each in world.instructions(3.0))


def test_equal_shares_by_what_slots_are_asked_for():
    world = World(servers="2")
    weights = np.full(16384, 1 / 16384)
    assert not world.job.rebalance(weights, 2.0)
    weights[:100] += 0.005
    assert world.job.rebalance(weights, 2.0)
    with pytest.raises(WireError, match="rows are being moved already"):
        world.job.rebalance(weights, 2.0)
    (move,) = world.instructions()
    world.job.on(events.MoveBegun(move.table), 2.0)
    world.job.on(events.MoveCommitted(), 2.0)
    world.job.on(events.MoveEnded(1, 1, 1, 1.0, 0.1), 2.0)
    loads = np.bincount(world.job.moves.routing.owners, weights)
    assert loads.max() <= 1.05 * loads.mean() + 0.006
    world.again()


def test_a_job_that_is_resumed_has_its_first_number_of_servers():
    world = World()
    world.moved(3)
    world.job.on(events.JobStopped("x"), 4.0)
    world.job.on(events.Resumed("one", {}, None, (), ()), 5.0)
    assert shares(world.job) == [16384]
    assert world.job.moves.routing.epoch == 3
    assert list(world.job.members.servers) == [ServerId(0)]
    starts = [i.start for i in world.job.take_instructions() if isinstance(i, StartProcess)]
    assert Start(ServerId(0), 1) in starts


def test_more_servers_may_be_wanted_while_others_are_about_to_leave():
    world = World(servers="3")
    table = world.wanted(1)
    world.job.on(events.MoveBegun(table), 2.0)
    world.job.on(events.ServersWanted(3), 2.0)
    world.job.on(events.MoveCommitted(), 2.0)
    made = world.job.take_instructions()
    assert [each for each in made if isinstance(each, StartProcess)] == [
        StartProcess(Start(ServerId(index), 1)) for index in (1, 2)
    ]
    world.again()


def test_an_export_waits_until_no_rows_move_and_rows_until_no_export_is_due():
    world = World(output="out", epochs=1, checkpoint_steps=0)
    job = world.job
    job.on(events.MoveBegun(world.wanted(2)), 3.0)
    while job.phases.phase is Phase.TRAINING:
        finish_next(job, w(0), Done(), now=3.0)
    assert job.phases.phase is Phase.EXPORTING
    assert isinstance(job.task_wanted(w(0), 0, 3.0), Wait)
    job.on(events.MoveCommitted(), 4.0)
    job.on(events.MoveEnded(8192, 10, 1000, 1.0, 0.1), 4.0)
    assert take(job, w(0)).kind == pb.EXPORT

    other = World(output="out", epochs=1)
    other.want(2)
    other.job.work.follow_ups.export(0)
    task = take(other.job, w(0))
    assert task.kind == pb.EXPORT
    assert not [each for each in other.instructions() if isinstance(each, MoveSlots)]
    other.job.on(events.TaskReported(w(0), 0, task.id, Done(), 0), 3.0)
    assert [each for each in other.instructions() if isinstance(each, MoveSlots)]


def test_a_move_has_the_turn_after_a_checkpoint_that_is_due_again_at_once():
    world = World(checkpoint_steps=0, checkpoint_seconds=9.0)
    job = world.job
    job.tick(2.0)
    job.tick(12.0)
    assert TakeCheckpoint() in job.take_instructions()
    job.on(events.CheckpointBegun(), 12.0)
    world.want(2, 13.0)
    job.on(events.CheckpointTaken(events.Taken(1, 1, 1, 10.0), False), 22.0)
    finish_next(job, w(0), Done(), now=22.0)  # which looks whether a checkpoint is due, too
    assert not any(isinstance(each, TakeCheckpoint) for each in job.take_instructions())
    (move,) = [each for each in world.instructions(22.5) if isinstance(each, MoveSlots)]
    job.on(events.MoveBegun(move.table), 23.0)
    job.on(events.MoveCommitted(), 23.0)
    job.on(events.MoveEnded(8192, 10, 1000, 1.0, 0.1), 23.0)
    assert TakeCheckpoint() in job.take_instructions()


def test_a_server_that_waits_for_a_checkpoint_goes_before_a_move():
    world = World(servers="2")
    job = world.job
    world.want(3)
    assert job.server_draining(ServerId(1), 0, 2.0).outcome is None
    made = world.instructions()
    assert TakeCheckpoint() in made
    assert not any(isinstance(each, MoveSlots) for each in made)
