"""What the master has its servers do, while the journal or a server fails."""

import threading
from types import SimpleNamespace

import pytest

from shoal.master.calls.move_slots import Moved, SlotMover
from shoal.master.calls.server_work import ServerWork
from shoal.master.calls.servers import Place
from shoal.master.job.moves.moves import Moving
from shoal.master.journal.journal import JournalError, StalledError
from shoal.master.shared_job import SharedJob
from shoal.master.work.ids import ServerId
from shoal.master.work.phases import Phase
from shoal.proto import shoal_pb2 as pb
from tests.master.job.moves.test_moves import World


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


def methods(world):
    names = [event.method for event in world.events]
    return names[names.index("move_begun") :]


def test_a_move_waits_for_a_journal_that_cannot_be_written_for_a_while(moving):
    world, does, move = moving

    def commit(patience):
        if patience is not None:
            raise StalledError("no space left")

    does.commit = commit
    assert move()
    assert world.job.phases.phase is Phase.TRAINING
    assert methods(world) == ["move_begun", "move_committed", "move_ended"]


def test_a_move_is_decided_though_the_journal_fails_to_write_so(moving):
    world, does, move = moving
    failures = [JournalError("the disk fails")]

    def commit(patience):
        if world.job.moves._stage is Moving.SETTLING and failures:
            raise failures.pop()

    does.commit = commit
    move()
    assert methods(world) == ["move_begun", "move_committed", "move_ended"]


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
