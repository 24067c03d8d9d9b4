"""Rows per second of one parameter server: gathered, and updated per optimizer.

In process (the row store alone) and over gRPC on loopback (a server process, frames
both ways). Run with `make bench`; each line's extra_info holds million rows a second.
"""

import subprocess
import sys

import numpy as np
import pytest

from shoal.config import JobConfig
from shoal.native.initializers import InitializerSpec
from shoal.native.optimizers import OptimizerSpec
from shoal.native.rowstore import RowStore
from shoal.proto import frames, methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.memory import keep_freed_memory
from shoal.proto.rpc import Connection

ROWS = 1_000_000
IDS = 65_536
DIMS = (16, 64)
OPTIMIZERS = ("sgd", "adagrad", "rowwise_adagrad", "adam", "ftrl")
RATE = 0.001


@pytest.fixture(scope="module")
def ids():
    """Batches of distinct ids out of all rows, so that no batch finds its rows cached."""
    rng = np.random.default_rng(0)
    return [rng.choice(ROWS, IDS, replace=False) for _ in range(16)]


def report(benchmark, call, ids, dim):
    """Measure `call` over the batches and note million rows a second."""
    batches = iter(ids * 10_000)
    benchmark.pedantic(lambda: call(next(batches)), rounds=40, warmup_rounds=4)
    benchmark.extra_info |= {
        "dim": dim,
        "ids": IDS,
        "million_rows_per_second": round(IDS / benchmark.stats["median"] / 1e6, 2),
    }


@pytest.fixture(params=DIMS, ids=lambda dim: f"dim{dim}")
def dim(request):
    return request.param


def filled(dim, optimizer):
    store = RowStore(dim, OptimizerSpec(optimizer), InitializerSpec("uniform"), 0)
    store.insert(np.arange(ROWS))
    return store


def test_gather_in_process(benchmark, dim, ids):
    store = filled(dim, "adagrad")
    out = np.empty((IDS, dim), np.float32)
    report(benchmark, lambda batch: store.lookup(batch, out), ids, dim)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_update_in_process(benchmark, dim, ids, optimizer):
    store = filled(dim, optimizer)
    gradients = np.random.default_rng(1).normal(size=(IDS, dim)).astype(np.float32)
    report(
        benchmark,
        lambda batch: store.update(batch, gradients, learning_rate=RATE, step=1),
        ids,
        dim,
    )


class Server:
    """A server process with one table of ROWS rows, and a connection to it."""

    def __init__(self, folder, dim, optimizer):
        config = folder / "job.json"
        config.write_text(JobConfig(model_def="none.none", training_data="none").to_json())
        command = [sys.executable, "-m", "shoal.ps", "--config", str(config), "--index", "0"]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        keep_freed_memory()  # as workers do
        self.connection = Connection(self.process.stdout.readline().strip())
        rule = OptimizerSpec(optimizer).to_json()
        table = pb.TableSpec(
            name="items",
            dim=dim,
            optimizer=rule,
            initializer=InitializerSpec("uniform").to_json(),
        )
        model = pb.ModelSpec(tables=[table], dense_optimizer=rule)
        self.connection.call(methods.REGISTER, pb.RegisterRequest(model=model))
        self.sequence = 0
        for first in range(0, ROWS, IDS):
            some = np.arange(first, min(first + IDS, ROWS))
            self.push(some, np.zeros((some.size, dim), np.float32))

    def pull(self, ids):
        header = pb.PullRequest(routing_epoch=1, tables=[0], dense_version=-2, training=True)
        frame = self.connection.call(methods.PULL, frames.encode(header, [ids]))
        return frames.decode(frame, pb.PullReply)[1][0]

    def push(self, ids, gradients):
        self.sequence += 1
        header = pb.PushRequest(
            identity=pb.PushIdentity(sequence=self.sequence),
            routing_epoch=1,
            tables=[0],
            learning_rate=RATE,
        )
        self.connection.call(methods.PUSH, frames.encode(header, [ids, gradients]))

    def close(self):
        self.connection.call(methods.SHUTDOWN, pb.ShutdownRequest(reason="benchmark ends"))
        self.connection.close()
        self.process.wait(30)
        self.process.stdout.close()


@pytest.fixture
def serve(tmp_path):
    """Start a Server."""
    servers = []

    def start(dim, optimizer):
        servers.append(Server(tmp_path, dim, optimizer))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def test_gather_over_grpc(benchmark, dim, ids, serve):
    server = serve(dim, "adagrad")
    assert server.pull(ids[0]).shape == (IDS, dim)
    report(benchmark, server.pull, ids, dim)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_update_over_grpc(benchmark, dim, ids, serve, optimizer):
    server = serve(dim, optimizer)
    gradients = np.random.default_rng(1).normal(size=(IDS, dim)).astype(np.float32)
    report(benchmark, lambda batch: server.push(batch, gradients), ids, dim)
