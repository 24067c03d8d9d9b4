"""The log of a job with --sync over real gRPC: waiting gradients and updates survive a death."""

import random
from functools import partial

import numpy as np
import pytest

from shoal.native.ids import slot_of
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError
from tests.ps.logged import POINTS_OF_UPDATES, numbers


@pytest.fixture
def world(world):
    return partial(world, synchronous=True)


class Master:
    """Which gradients wait, and which update is the next one. first: its number."""

    def __init__(self, job, first=1):
        self.job = job
        self.waiting = []
        self.next, self.after = first, 0

    def push(self, worker, ids, draw):
        self.waiting.append((worker, self.job.push(worker, ids, draw)))

    def update(self, count):
        """Make an update of the first gradients that wait."""
        self.job.update(self.next, self.after, self.waiting[:count])
        del self.waiting[:count]
        self.after, self.next = self.next, self.next + 1

    def same(self):
        """All servers have what their twins have, and hold the same gradients."""
        self.job.same()
        for server, twin in zip(self.job.servers, self.job.twin, strict=True):
            assert held(server) == held(twin) == (self.next - 1, sorted(self.waiting))


def held(server):
    update, gradients = server.held()
    return update, sorted((each.worker, each.number) for each in gradients)


def protected(job):
    """All are protected: as a job is some seconds after a death."""
    job.look_after()  # finds that a log is lost
    job.look_after()  # begins it anew
    if any(job.status(index).wants_checkpoint for index in range(len(job.servers))):
        job.checkpoint()
    assert {job.status(index).unprotected for index in range(len(job.servers))} == {""}


@pytest.mark.slow
@pytest.mark.parametrize("servers", [1, 2, 3])
@pytest.mark.parametrize("seed", range(3))
def test_a_server_that_died_anywhere_is_as_if_it_had_not(world, servers, seed):
    """Random gradients, updates of some, checkpoints whole and half, and deaths, one at a time."""
    draw = random.Random(seed)
    job = world(servers)
    master = Master(job)
    for _ in range(60):
        chance = draw.random()
        if chance < 0.2:
            job.checkpoint(draw.choice(["begun", "written", "complete", "told", "told"]))
        elif chance < 0.45:
            protected(job)
            job.faults.armed = draw.choice(POINTS_OF_UPDATES)
            if job.faults.armed == "log-replaying":
                victim = draw.randrange(servers)
                job.kill(victim)
                job.start(victim)
                job.meet(victim)
        ids = np.array(draw.sample(range(40), draw.randrange(1, 8)), np.int64) * 9973
        master.push(draw.randrange(3), ids, draw)
        if draw.random() < 0.5:
            master.update(draw.randint(1, len(master.waiting)))
        master.same()
    assert sum(job.incarnations) > 3


def given(master, count, draw=None):
    draw = draw or random.Random(5)
    for turn, ids in enumerate(numbers(count)):
        master.push(turn % 2, ids, draw)


def restarted(job, index, **options):
    job.kill(index)
    job.start(index, **options)
    job.meet(index)


@pytest.mark.parametrize("servers", [1, 2])
def test_gradients_that_wait_over_many_checkpoints_are_held_still(world, servers):
    """No checkpoint has them: each one that is complete leaves them in the log."""
    job = world(servers)
    master = Master(job)
    given(master, 3)
    for _ in range(3):
        job.checkpoint()
        restarted(job, 0)
        protected(job)
        master.same()
    master.update(2)
    job.checkpoint()
    restarted(job, 0)
    master.same()
    master.update(1)
    master.same()


def test_a_log_that_is_begun_anew_has_the_gradients_that_wait(world):
    """The keeper dies, and after it the server whose log it kept."""
    job = world(2)
    master = Master(job)
    given(master, 4)
    master.update(2)
    restarted(job, 1)
    for _ in range(2):
        job.look_after()
    # What is in the model is in no checkpoint, and in no log any more.
    assert job.status(0).wants_checkpoint
    job.checkpoint()
    assert job.status(0).unprotected == ""
    restarted(job, 0)
    master.same()
    master.update(2)
    master.same()


def test_a_log_that_lacks_an_update_is_not_done_again(world):
    """It begins after update 2, and the only checkpoint has none."""
    job = world(2)
    master = Master(job)
    given(master, 1)
    job.checkpoint()
    given(master, 3)
    master.update(1)
    master.update(1)
    restarted(job, 1)
    for _ in range(2):
        job.look_after()
    restarted(job, 0)
    assert job.servers[0].held()[0] == 0
    assert "does not reach back" in job.status(0).unprotected


def test_numbers_go_on_where_a_job_is_resumed(world):
    """Its servers have the update of the checkpoint; the next one has a number above any before."""
    job = world(1)
    master = Master(job)
    given(master, 2)
    master.update(2)
    job.checkpoint()
    given(master, 2)
    master.update(1)
    job.kill(0)
    job.start(0, replay=False)
    job.meet(0)
    server = job.servers[0]
    assert held(server) == (1, [])
    job.sequences.clear()
    frame = job._frame(0, 0, 9, numbers(1)[0], server.model.version, random.Random(1))
    server.push(frame)
    gradient = pb.GradientId(worker=0, number=9)
    with pytest.raises(WireError, match="update 4 comes after update 3"):
        server.apply_update(pb.ApplyUpdateRequest(update=4, after=3, gradients=[gradient]))
    server.apply_update(pb.ApplyUpdateRequest(update=4, gradients=[gradient]))
    assert held(server) == (4, [])
    assert server.model.version == 2


def test_a_worker_s_second_try_finds_its_gradient_held(world):
    """The first one was logged, and the server died before it answered."""
    job = world(1)
    master = Master(job)
    job.faults.armed = "push-logged"
    given(master, 1)
    assert job.incarnations == [1]
    assert job.status(0).duplicate_pushes == 1
    master.same()


def test_rows_of_others_that_were_removed_stay_away(world):
    """Rows of another server's slots go when a server registers, and once more from its log."""
    draw = random.Random(1)
    job = world(2)
    master = Master(job)
    ids = numbers(3)
    master.push(0, ids[0], draw)
    others = np.arange(10_000, 10_200)
    others = others[job.routing.owners[slot_of(others)] == 0]
    server = job.servers[1]
    for each in ids[1:]:
        # As an update that came between a move's decision and its end would leave them.
        server.model.assign(0, others, np.ones((others.size, server.model.dim(0)), np.float32))
        assert server.moves.settle() == others.size
        master.update(1)
        master.push(0, each, draw)
        job.kill(1)
        job.start(1)
        job.meet(1)
        server = job.servers[1]
        assert server.moves.settle() == 0
        master.same()
