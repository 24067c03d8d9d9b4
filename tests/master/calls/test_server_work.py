"""What the master has its servers do, while the journal or a server fails."""

import threading
from functools import partial
from types import SimpleNamespace

import pytest

from shoal.master.calls.move_slots import Moved, SlotMover
from shoal.master.calls.server_work import ServerWork
from shoal.master.calls.servers import Place
from shoal.master.calls.take_checkpoint import TakingError
from shoal.master.job.checkpoints.kept_checkpoints import Taken
from shoal.master.job.events import (
    CheckpointBegun,
    CheckpointFailed,
    CheckpointTaken,
    MoveBegun,
    MoveCommitted,
    MoveEnded,
    MoveFailed,
    Published,
)
from shoal.master.job.moves.moves import Moving
from shoal.master.job.view.waiting import waits_for
from shoal.master.journal.journal import JournalError, StalledError
from shoal.master.shared_job import SharedJob
from shoal.master.work.ids import ServerId
from shoal.master.work.phases import Phase
from shoal.proto import shoal_pb2 as pb
from tests.master.job.moves.test_moves import World
from tests.master.strategies import w
from tests.waiting import until


class Mover:
    """Moves at once."""

    def move(self, before, message, attempt, there, commit):
        commit(there.all)
        return Moved(8192, 10, 1000, 1.0, 0.1)

    def settle(self, table, places):
        assert table()


@pytest.fixture
def moving():
    """A job, a move to two servers that is ordered, and what a commit of the journal does."""
    world = World()
    does = SimpleNamespace(commit=lambda patience: None)
    shared = SharedJob(world.job, clock=lambda: 2.0, commit=lambda given: does.commit(given))
    work = ServerWork(shared, threading.Event())
    work._mover = Mover()
    table = world.wanted(2)
    yield world, does, lambda: shared.attempt(lambda: work._move_slots(table))
    work.close()


def methods(world, first=MoveBegun):
    names = [type(entry.event) for entry in world.events]
    return names[names.index(first) :]


def test_a_move_waits_for_a_journal_that_cannot_be_written_for_a_while(moving):
    world, does, move = moving

    def commit(patience):
        if patience is not None:
            raise StalledError("no space left")

    does.commit = commit
    assert move()
    assert world.job.phases.phase is Phase.TRAINING
    assert methods(world) == [MoveBegun, MoveCommitted, MoveEnded]


def test_a_move_is_decided_though_the_journal_fails_to_write_so(moving):
    world, does, move = moving
    failures = [JournalError("the disk fails")]

    def commit(patience):
        if world.job.moves._stage is Moving.SETTLING and failures:
            raise failures.pop()

    does.commit = commit
    move()
    assert methods(world) == [MoveBegun, MoveCommitted, MoveEnded]


class Taker:
    """Takes checkpoints at once, unless it fails; said: the reason."""

    def __init__(self):
        self.said = ""
        self.taken = 0

    def take(self, places, ledger, undisturbed):
        if self.said:
            raise TakingError(self.said)
        self.taken += 1
        return Taken(self.taken, 1, 1, 0.1)


@pytest.fixture
def held():
    """With --sync and logs at servers: a job, its checkpoints, and a move that is ordered."""
    world = World(servers="2", sync=True, durability="peer")
    shared = SharedJob(world.job, clock=lambda: 2.0, commit=lambda _: None)
    work = ServerWork(shared, threading.Event())
    work._mover, work._taker = Mover(), Taker()
    work._servers = SimpleNamespace(complete_checkpoint=lambda *_: None)
    table = world.wanted(3)
    move = partial(work._move_saved, work._between, table)
    thread = threading.Thread(target=shared.attempt, args=(move,))
    yield world, work, thread
    work.close()


def test_no_update_is_made_from_a_checkpoint_before_a_move_until_the_one_after_it(held):
    world, work, thread = held
    thread.start()
    until("the move's end", lambda: MoveEnded in [type(each.event) for each in world.events])
    assert world.job.updates.join(w(0)) is None
    assert waits_for(world.job) == "a checkpoint of the rows that have moved"
    work._taker.said = "no space left"
    work._take_checkpoint(False)
    assert world.job.updates.join(w(0)) is None
    work._taker.said = ""
    work._take_checkpoint(False)
    thread.join()
    assert world.job.updates.join(w(0)) == 1
    moved = [MoveBegun, MoveCommitted, MoveEnded]
    failed, taken = ([CheckpointBegun, end] for end in (CheckpointFailed, CheckpointTaken))
    assert methods(world, CheckpointBegun) == taken + moved + failed + taken


def test_rows_stay_if_no_checkpoint_can_be_taken_before_they_move(held):
    world, work, thread = held
    work._taker.said = "no space left"
    thread.start()
    thread.join()
    assert methods(world, CheckpointBegun)[1:] == [CheckpointFailed, MoveFailed]
    assert "a checkpoint is to be taken before; it is tried again" in world.job.record.messages[-1]
    assert world.job.updates.join(w(0)) == 1


def test_a_server_whose_memory_did_not_do_is_told_again_that_a_move_is_over(caplog):
    errors = [RuntimeError("Cannot allocate memory"), RuntimeError("Cannot allocate memory")]

    class Servers:
        def end_move(self, server, place, table, attempt):
            if errors:
                raise errors.pop()

    ending = SimpleNamespace(is_set=lambda: False, wait=lambda seconds: None)
    mover = SlotMover(Servers(), ending)
    mover.settle(lambda: (pb.RoutingTable(), 1), lambda: {ServerId(0): Place("host:1", 0)})
    assert errors == []
    told = [each for each in caplog.records if each.levelname == "WARNING"]
    assert len(told) == 1


def test_a_delta_is_numbered_after_the_newest_of_the_journal():
    world = World()
    work = ServerWork(SharedJob(world.job, clock=lambda: 2.0), threading.Event())
    seen = []

    def publish(places, position):
        seen.append(position.newest)
        return Published(7, base=True, bytes=1, seconds=0.0)

    work._publisher = SimpleNamespace(publish=publish)
    for _ in range(2):
        work._publish(None)
    assert seen == [0, 7]
    work.close()
