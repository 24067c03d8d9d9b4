"""--sync: k gradients are one serial step on their average; late ones do as they are told."""

import threading
from dataclasses import replace
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

from shoal.master.job.events import UpdateApplied
from shoal.master.job.job import Job
from shoal.master.job.updates import Gradient
from shoal.master.service import MasterService
from shoal.master.shared_job import SharedJob
from shoal.master.work.outcomes import DataDescribed
from shoal.master.work.units import Source
from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.channels import serving
from shoal.ps.model import pending
from shoal.worker.reports.progress import Progress
from shoal.worker.training.synchronous import SynchronousTraining
from tests.master.strategies import begun, take, w
from tests.waiting import until
from tests.worker.given import GivenTasks
from tests.worker.networks import CONFIG, as_batch, batches, network, served_embedding
from tests.worker.twins import assert_alike, gradients_of, twin_of

pytestmark = pytest.mark.slow

PATIENCE = 120
OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.5),
    "adagrad": lambda: keras.optimizers.Adagrad(0.5),
    "adam": lambda: keras.optimizers.Adam(0.05),
}


def apply(connect, made, number, gradients):
    """Have the servers apply an update of these (worker, number)."""
    named = [pb.GradientId(worker=worker, number=each) for worker, each in gradients]
    request = pb.ApplyUpdateRequest(update=number, gradients=named)
    for address in made.addresses:
        connect(address).call(methods.APPLY_UPDATE, request)


def serial_step(twin, rule, parts):
    """One step of plain Keras on the average of the gradients of several minibatches."""
    variables = twin.trainable_variables
    total = [np.zeros(v.shape, np.float32) for v in variables]
    for part in parts:
        _, gradients = gradients_of(twin, *part)
        for each, gradient in zip(total, gradients, strict=True):
            each += gradient.numpy()
    rule.apply([tf.constant(each / len(parts)) for each in total], variables)


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_an_update_is_one_serial_step_on_the_average(
    served, cluster, server_group, connect, servers, optimizer
):
    made = cluster(servers, synchronous=True)
    workers = [
        served(group=server_group(made, worker=i), worker=i, optimizer=optimizer) for i in range(2)
    ]
    twin, dense = twin_of(workers[0])
    rule = optimizer()
    steps = list(batches(8))
    for number, parts in enumerate(zip(steps[::2], steps[1::2], strict=True), 1):
        gradients = []
        for index, (model, part) in enumerate(zip(workers, parts, strict=True)):
            _, push = model.compute(model.prepare(as_batch(*part)), task=1)
            gradients.append((index, model.servers.hold(push)))
        apply(connect, made, number, gradients)
        serial_step(twin, rule, parts)
    assert [server.model.version for server in made.servers] == [4] * servers
    assert_alike(workers[0], twin, dense, rtol=1e-6, atol=2e-6)


def test_statistics_move_by_the_average_of_the_changes(served, cluster, server_group, connect):
    made = cluster(2, synchronous=True)
    first, second = (
        served(
            build=lambda: network(served_embedding, statistics=True),
            group=server_group(made, worker=i),
            worker=i,
        )
        for i in range(2)
    )
    pushes = [
        model.compute(model.prepare(as_batch(*batch)), task=1)[1]
        for model, batch in zip((first, second), batches(2), strict=True)
    ]
    before = first.state.read().numpy()
    gradients = [
        (i, model.servers.hold(push))
        for i, (model, push) in enumerate(zip((first, second), pushes, strict=True))
    ]
    start = np.concatenate([np.zeros_like(before[: before.size // 2]), np.ones(before.size // 2)])
    apply(connect, made, 1, gradients)
    first.pull_dense()
    expected = start + (pushes[0].dense[1] + pushes[1].dense[1]) / 2
    np.testing.assert_allclose(first.state.read(), expected, rtol=1e-6)


def test_a_pull_is_never_of_two_updates(server_group, served, cluster, connect):
    """One server has applied an update and the other not yet: the pull waits for it."""
    made = cluster(2, synchronous=True)
    group = server_group(made, whole_updates=True)
    model = served(group=group)
    _, push = model.compute(model.prepare(as_batch(*next(iter(batches())))), task=1)
    number = model.servers.hold(push)
    request = pb.ApplyUpdateRequest(update=1, gradients=[pb.GradientId(number=number)])
    connect(made.addresses[0]).call(methods.APPLY_UPDATE, request)
    none = [[np.zeros(0, np.int64)]] * 2
    pulled = []
    thread = threading.Thread(target=lambda: pulled.append(group.pull(none, training=True)))
    asked = made.servers[1].pulls.answered
    thread.start()
    while made.servers[1].pulls.answered < asked + 2:
        assert thread.is_alive()
        thread.join(0.001)  # it asks again and again
    assert not pulled
    connect(made.addresses[1]).call(methods.APPLY_UPDATE, request)
    thread.join(PATIENCE)
    assert pulled[0].updates == [1, 1]


# ---------------------------------------------------------------- with a master


class Slow(SynchronousTraining):
    """A worker that stands still between pull and push until it is let go on."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.computing, self.go_on = threading.Event(), threading.Event()
        compute = self._model.compute

        def slowly(*arguments):
            self.computing.set()
            assert self.go_on.wait(PATIENCE)
            return compute(*arguments)

        self._model.compute = slowly


@pytest.fixture
def patient(monkeypatch):
    """Servers that are made after this: pulls wait for their updates."""
    monkeypatch.setattr(pending, "UPDATE_SECONDS", PATIENCE)


@pytest.fixture
def race(connect, cluster, server_group, served):
    """A slow worker and a fast one, a real master's service, and its decisions applied."""
    running = []

    def make(**changes):
        made = cluster(2, synchronous=True)
        job: Job = begun(
            DataDescribed((Source("t", 40),)),
            workers="2",
            sync=True,
            batch_size=4,
            num_minibatches_per_task=5,
            **changes,
        )
        tasks = [take(job, w(index)).to_message() for index in range(2)]
        shared = SharedJob(job)
        service = MasterService(shared)
        server, port = serving.serve(service.handlers(), "127.0.0.1:0", 4)
        running.append(server)
        ending = threading.Event()
        connections = [connect(address) for address in made.addresses]

        def servers():
            while not ending.wait(0.001):
                for instruction in shared.apply(lambda job, _: job.take_instructions()):
                    update = instruction.update
                    request = pb.ApplyUpdateRequest(
                        update=update.number,
                        gradients=map(identity, update.gradients),
                        dropped=map(identity, update.dropped),
                    )
                    for connection in connections:
                        connection.call(methods.APPLY_UPDATE, request)
                    shared.apply(lambda job, now, n=update.number: job.on(UpdateApplied(n, n), now))

        thread = threading.Thread(target=servers)
        thread.start()
        running.append((ending, thread))
        master = connect(f"127.0.0.1:{port}")
        groups = [server_group(made, worker=i, whole_updates=True) for i in range(2)]
        config = replace(CONFIG, progressive_steps=1)
        workers = [
            kind(
                *(served(group=groups[i], worker=i, config=config), master, i, 0),
                *(Progress(), GivenTasks()),
            )
            for i, kind in enumerate((Slow, SynchronousTraining))
        ]
        return job, made, workers, tasks

    yield make
    for each in running:
        if isinstance(each, tuple):
            each[0].set()
            each[1].join()
        else:
            each.stop(None).wait()


def identity(gradient: Gradient) -> pb.GradientId:
    return pb.GradientId(
        worker=gradient.worker.index, incarnation=gradient.incarnation, number=gradient.number
    )


def batched(steps):
    return [as_batch(*each, done=4 * (i + 1)) for i, each in enumerate(steps)]


def in_thread(worker, task, count):
    worker._tasks = GivenTasks()
    worker._tasks.batches = lambda _: iter(batched(batches(count)))
    thread = threading.Thread(target=worker.run, args=(task,))
    thread.start()
    return thread


def held_when_read(worker, count, monkeypatch):
    """Have a worker hold gradients once so many batches are read."""
    hold = worker._model.servers.hold

    def held(push):
        until("all batches are read", lambda: worker._read == count)
        return hold(push)

    monkeypatch.setattr(worker._model.servers, "hold", held)


def calls_of(worker):
    """The methods that a worker calls at the master from now on."""
    called, call = [], worker._master.call

    def noted(method, request):
        called.append(method)
        return call(method, request)

    worker._master = SimpleNamespace(call=noted)
    return called


@pytest.mark.parametrize(("late", "folded", "dropped"), [("drop", 0, 1), ("fold", 1, 0)])
def test_with_a_backup_worker_nobody_waits_for_a_slow_one(race, late, folded, dropped):
    job, made, (slow, fast), tasks = race(grads_to_wait=1, sync_late=late)
    slower = in_thread(slow, tasks[0], 1)
    assert slow.computing.wait(PATIENCE)
    in_thread(fast, tasks[1], 3).join(PATIENCE)
    counts = job.updates.counts
    assert (counts.updates, counts.gradients) == (3, 3)
    slow.go_on.set()
    slower.join(PATIENCE)
    assert (counts.updates, counts.folded, counts.dropped) == (4, folded, dropped)
    until("the last update", lambda: job.updates.idle)
    # Every minibatch was trained, the late one too, and once; so its prediction counts once.
    assert job.work.ledger.trained_once == 16
    predicted = [[each[0] for each in worker._tasks.log] for worker in (slow, fast)]
    assert [each.count("predicted") for each in predicted] == [1, 3]
    assert [server.model.version for server in made.servers] == [4, 4]
    assert [
        server.status(pb.ServerStatusRequest()).staleness.maximum for server in made.servers
    ] == [3 * folded] * 2


def test_without_one_an_update_waits_for_the_slow_worker(race):
    job, made, (slow, fast), tasks = race(grads_to_wait=2)
    slower = in_thread(slow, tasks[0], 2)
    assert slow.computing.wait(PATIENCE)
    faster = in_thread(fast, tasks[1], 2)
    until("the fast one's gradient", lambda: job.work.ledger.trained_once == 4)
    until("its wait", lambda: fast._progress.take(1, 0).stage_seconds["wait for update"] > 0.02)
    assert faster.is_alive()
    assert [server.model.version for server in made.servers] == [0, 0]
    slow.go_on.set()
    for thread in (slower, faster):
        thread.join(PATIENCE)
    counts = job.updates.counts
    assert (counts.updates, counts.gradients, counts.dropped) == (2, 4, 0)


def test_workers_join_the_next_update_as_they_give_a_gradient_and_wait_at_the_servers(
    patient, race, monkeypatch
):
    job, made, workers, tasks = race(grads_to_wait=2)
    workers[0].go_on.set()
    for worker in workers:
        held_when_read(worker, 4, monkeypatch)
    called = [calls_of(worker) for worker in workers]
    threads = [in_thread(*each, 4) for each in zip(workers, tasks, strict=True)]
    for thread in threads:
        thread.join(PATIENCE)
    assert [each.count(methods.JOIN_UPDATE) for each in called] == [1, 1]
    assert [each.count(methods.OFFER_GRADIENT) for each in called] == [4, 4]
    assert job.updates.counts.updates == 4
    until("all updates", lambda: [server.model.version for server in made.servers] == [4, 4])


def test_a_worker_that_has_to_read_first_joins_no_update_ahead(race, monkeypatch):
    job, _, (_, fast), tasks = race(grads_to_wait=1)
    called, reads = calls_of(fast), threading.Event()

    def slowly():
        yield from batched(batches(1))
        assert reads.wait(PATIENCE)
        yield from batched(batches(2))[1:]

    fast._tasks = GivenTasks()
    fast._tasks.batches = lambda _: slowly()
    thread = threading.Thread(target=fast.run, args=(tasks[1],))
    thread.start()
    until("its first update", lambda: job.updates.idle and job.updates.counts.updates == 1)
    assert job.updates.quiet
    reads.set()
    thread.join(PATIENCE)
    assert called.count(methods.JOIN_UPDATE) >= 2
    assert job.updates.counts.gradients == 2


def test_after_a_resumption_servers_may_lack_the_last_updates_that_were_decided(race):
    job, made, (_, fast), tasks = race(grads_to_wait=1)
    job.updates._open = 10
    job.updates.resumed()
    in_thread(fast, tasks[1], 2).join(PATIENCE)
    until("the updates", lambda: job.updates.idle)
    assert [server.model.version for server in made.servers] == [2, 2]
    assert job.updates.made == 11


def test_a_worker_that_waits_at_the_servers_gives_the_gradient_of_one_that_died(race):
    job, _, (slow, fast), tasks = race(grads_to_wait=2)
    slower = in_thread(slow, tasks[0], 1)
    assert slow.computing.wait(PATIENCE)
    called = calls_of(fast)
    faster = in_thread(fast, tasks[1], 2)
    until("its first gradient", lambda: methods.OFFER_GRADIENT in called)
    until("its question", lambda: called.count(methods.JOIN_UPDATE) > 1)
    assert job.updates.counts.updates == 0
    job.updates.leave(w(0))
    faster.join(PATIENCE)
    assert (job.updates.counts.updates, job.updates.counts.gradients) == (1, 2)
    slow.go_on.set()
    slower.join(PATIENCE)


def test_a_worker_that_waits_leaves_when_the_job_ends(race):
    _, _, (slow, fast), tasks = race(grads_to_wait=2)
    slower = in_thread(slow, tasks[0], 1)
    assert slow.computing.wait(PATIENCE)
    faster = in_thread(fast, tasks[1], 3)
    fast._progress.stopped.set()
    faster.join(PATIENCE)
    assert not faster.is_alive()
    slow.go_on.set()
    slower.join(PATIENCE)


def test_with_accumulation_a_gradient_is_of_several_minibatches(race):
    job, made, (_, fast), tasks = race(grads_to_wait=1)
    fast._model.accumulated = 2
    in_thread(fast, tasks[1], 5).join(PATIENCE)
    until("the updates", lambda: job.updates.idle)
    counts = job.updates.counts
    assert (counts.updates, counts.gradients, counts.dropped) == (3, 3, 0)  # of 2, 2 and 1
    assert job.work.ledger.trained_once == 20
    assert [server.model.version for server in made.servers] == [3, 3]
