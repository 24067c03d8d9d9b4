"""Bounded staleness against a real master: never too far ahead, and no less than allowed."""

import threading

import pytest

from shoal.master.job import Job
from shoal.master.outcomes import DataDescribed
from shoal.master.runner import Runner
from shoal.master.service import MasterService
from shoal.master.work import Source
from shoal.proto import serving
from shoal.proto.routing import Routing
from shoal.worker.heartbeat import Progress
from shoal.worker.pace import Pace
from tests.master.strategies import begun, exited, take, w

PATIENCE = 120
STEPS = 12


@pytest.fixture
def race(connect):
    """(runner, pace of each worker) of two workers in training."""
    servers = []

    def make(bound):
        job: Job = begun(DataDescribed((Source("t", 60),)), num_workers=2)
        for index in range(2):
            take(job, w(index))
        runner = Runner(job)
        server, port = serving.serve(
            MasterService(runner, Routing.even(1)).handlers(), "127.0.0.1:0", 4
        )
        servers.append(server)
        connection = connect(f"127.0.0.1:{port}")
        paces = [Pace(connection, index, 0, bound, Progress()) for index in range(2)]
        for index, pace in enumerate(paces):
            pace.begin(job.clocks.of(w(index)))
        return runner, paces

    yield make
    for server in servers:
        server.stop(None).wait()


class Fast(threading.Thread):
    """Steps as fast as it may; notes with each how far the slow worker was."""

    def __init__(self, pace):
        super().__init__(daemon=True)
        self.pace = pace
        self.slow = 0
        self.ahead = []
        self.stepped = threading.Condition()

    def run(self):
        for step in range(STEPS):
            if not self.pace.wait():
                return
            with self.stepped:
                self.ahead.append(step - self.slow)
                self.stepped.notify_all()
            self.pace.applied()

    def reached(self, steps):
        with self.stepped:
            return self.stepped.wait_for(lambda: len(self.ahead) >= steps, PATIENCE)


@pytest.mark.parametrize("bound", [0, 1, 3])
def test_a_fast_worker_uses_the_bound_and_never_passes_it(race, bound):
    """The slow worker steps only when the fast one has gone as far as it may."""
    _, (slow, pace) = race(bound)
    fast = Fast(pace)
    fast.start()
    for step in range(STEPS):
        assert fast.reached(min(step + bound + 1, STEPS))
        assert slow.wait()
        # Before the master hears of it: the fast worker may go on from then.
        with fast.stepped:
            fast.slow = step + 1
        slow.applied()
    fast.join(PATIENCE)
    assert not fast.is_alive()
    assert max(fast.ahead) == bound


def test_a_worker_that_waits_goes_on_when_the_slow_one_dies(race):
    runner, (_, pace) = race(2)
    fast = Fast(pace)
    fast.start()
    assert fast.reached(3)
    runner.apply(lambda job, now: job.process_exited(exited(w(0)), now))
    fast.join(PATIENCE)
    assert fast.ahead == list(range(STEPS))


def test_a_worker_that_waits_leaves_when_the_job_ends(race):
    _, (_, pace) = race(0)
    fast = Fast(pace)
    fast.start()
    assert fast.reached(1)
    pace._progress.stopped.set()
    fast.join(PATIENCE)
    assert fast.ahead == [0]
