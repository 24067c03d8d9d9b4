"""Bounded staleness against a real master: never too far ahead, and no less than allowed."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.master.job.clocks import Clocks
from shoal.master.job.job import Job
from shoal.master.service import MasterService
from shoal.master.shared_job import SharedJob
from shoal.master.work.ids import WorkerId
from shoal.master.work.outcomes import DataDescribed
from shoal.master.work.units import Source
from shoal.proto import shoal_pb2 as pb
from shoal.proto.channels import serving
from shoal.worker.reports.progress import Progress
from shoal.worker.training.staleness import StalenessBound
from tests.master.strategies import begun, exited, take, w

PATIENCE = 120
STEPS = 12


@pytest.fixture
def race(connect):
    """(shared job, bound of each worker) of two workers in training."""
    servers = []

    def make(bound):
        job: Job = begun(DataDescribed((Source("t", 60),)), workers="2")
        for index in range(2):
            take(job, w(index))
        shared = SharedJob(job)
        server, port = serving.serve(MasterService(shared).handlers(), "127.0.0.1:0", 4)
        servers.append(server)
        connection = connect(f"127.0.0.1:{port}")
        bounds = [StalenessBound(connection, index, 0, bound, Progress()) for index in range(2)]
        for index, staleness in enumerate(bounds):
            staleness.begin(job.clocks.of(w(index)))
        return shared, bounds

    yield make
    for server in servers:
        server.stop(None).wait()


class Fast(threading.Thread):
    """Steps as fast as it may; notes with each how far the slow worker was."""

    def __init__(self, staleness):
        super().__init__(daemon=True)
        self.staleness = staleness
        self.slow = 0
        self.ahead = []
        self.stepped = threading.Condition()

    def run(self):
        for step in range(STEPS):
            if not self.staleness.wait():
                return
            with self.stepped:
                self.ahead.append(step - self.slow)
                self.stepped.notify_all()
            self.staleness.applied()

    def reached(self, steps):
        with self.stepped:
            return self.stepped.wait_for(lambda: len(self.ahead) >= steps, PATIENCE)


@pytest.mark.parametrize("bound", [0, 1, 3, 8])
def test_a_fast_worker_uses_the_bound_and_never_passes_it(race, bound):
    """The slow worker steps only when the fast one has gone as far as it may."""
    _, (slow, staleness) = race(bound)
    fast = Fast(staleness)
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
    shared, (_, staleness) = race(2)
    fast = Fast(staleness)
    fast.start()
    assert fast.reached(3)
    shared.apply(lambda job, now: job.process_exited(exited(w(0)), now))
    fast.join(PATIENCE)
    assert fast.ahead == list(range(STEPS))


def test_a_worker_that_waits_leaves_when_the_job_ends(race):
    _, (_, staleness) = race(0)
    fast = Fast(staleness)
    fast.start()
    assert fast.reached(1)
    staleness._progress.stopped.set()
    fast.join(PATIENCE)
    assert fast.ahead == [0]


class Master:
    """The clocks of a master, asked without a wire."""

    def __init__(self, bound):
        self.clocks = Clocks()
        self.bound = bound
        self.calls = 0

    def call(self, _, request):
        self.calls += 1
        worker = WorkerId(request.worker)
        slowest = self.clocks.advance(worker, request.clock)
        return pb.ClockReply(slowest=slowest, next=self.clocks.next_told(worker, self.bound))


class Workers:
    """Workers whose `wait` answers at once, and what they really do."""

    def __init__(self, bound):
        self.master = Master(bound)
        self.bound = bound
        self.bounds, self.pulled, self.applied = {}, {}, {}
        self.training = set()
        self._progress = Progress()
        self._progress.stopped.set()

    def enter(self, index):
        if index in self.training:
            return
        self.master.clocks.enter(w(index))
        clock = self.master.clocks.of(w(index))
        staleness = self.bounds.setdefault(
            index, StalenessBound(self.master, index, 0, self.bound, self._progress)
        )
        staleness.begin(clock)
        self.pulled[index] = self.applied[index] = max(self.applied.get(index, 0), clock)
        self.training.add(index)

    def leave(self, index):
        self.bounds[index].end()
        self.fail(index)

    def fail(self, index):
        self.master.clocks.leave(w(index))
        self.training.discard(index)

    def die(self, index):
        self.master.clocks.forget(w(index))
        self.training.discard(index)
        del self.bounds[index], self.applied[index]

    def pull(self, index):
        ahead = self.pulled[index] - min(self.applied[each] for each in self.training)
        if self.bounds[index].wait():
            assert ahead <= self.bound
            self.pulled[index] += 1
        else:
            assert ahead > self.bound - max(0, self.bound // 2 - 1)

    def push(self, index):
        if self.applied[index] < self.pulled[index]:
            self.applied[index] += 1
            self.bounds[index].applied()


ACTIONS = ["pull", "pull", "pull", "push", "push", "push", "leave", "fail", "die", "enter"]


@given(
    st.integers(0, 12),
    st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 2)), max_size=150),
)
def test_nobody_goes_beyond_the_bound_and_nobody_waits_much_sooner(bound, actions):
    """F30: whatever is not told, in whatever order workers step, come and go."""
    workers = Workers(bound)
    for index in range(3):
        workers.enter(index)
    for action, index in actions:
        if action == "enter" or index in workers.training:
            getattr(workers, action)(index)


@pytest.mark.parametrize(("bound", "most"), [(0, 1.0), (2, 1.0), (8, 0.5), (64, 0.1)])
def test_workers_that_keep_step_ask_the_master_the_more_seldom_the_wider_the_bound(bound, most):
    workers = Workers(bound)
    for index in range(2):
        workers.enter(index)
    for _ in range(200):
        # Both, as with a bound of 0 none may pull before the other has pushed.
        for do in (workers.pull, workers.push):
            for index in range(2):
                do(index)
    assert sum(workers.applied.values()) == 400
    asked = workers.master.calls / 400
    assert asked <= most or bound < 2
