"""Measure what a move of rows costs the workers that train meanwhile.

    make bench-moves   or   python benchmarks/moves.py [OUTPUT] [--rows N]

Two servers hold a table (by default 4 million rows of dim 16 with their Adagrad slots, about 0.5
GB), and a worker pulls and pushes random ids without a pause, one step after the other. Then two
more servers join, so that half of the rows move, and one leaves again. All servers are processes of
their own, the master's calls are those of master/calls/move_slots.py. Printed, and written to
OUTPUT/moves.json: the steps a second while rows move by those before, the times of pulls meanwhile,
for how long no push was taken, and the rate of the rows by that of plain bytes over a socket
between two processes. A checkpoint of all servers just before, on the disk of OUTPUT, is what
a server that is told to end waits for, instead of giving its rows away.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click
import numpy as np

from shoal.checkpoints.folders import begin
from shoal.files.storage import LocalStorage
from shoal.master.calls.move_slots import Servers, SlotMover
from shoal.master.calls.servers import Place, ServerConnections
from shoal.master.job.moves.placement import balanced
from shoal.master.work.ids import ServerId
from shoal.native.initializers import InitializerSpec
from shoal.native.optimizers import OptimizerSpec
from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.channels import rpc, serving
from shoal.proto.memory import keep_freed_memory
from shoal.proto.values.routing import Routing
from shoal.ps.saved.recovery import Sources
from shoal.ps.service import ParameterServer
from shoal.worker.servers.group import ServerGroup
from shoal.worker.servers.pushing import Push

LOCAL = "127.0.0.1:0"
DIM = 16
ROW_BYTES = 8 * DIM
"""Values and slots."""

ADAGRAD = OptimizerSpec("adagrad").to_json()
SPEC = pb.ModelSpec(
    tables=[
        pb.TableSpec(
            name="items",
            dim=DIM,
            optimizer=ADAGRAD,
            initializer=InitializerSpec("uniform").to_json(),
        )
    ],
    dense_optimizer=ADAGRAD,
    trainable=[pb.VariableSpec(name="kernel", shape=[1000])],
)
FILLED = 65_536
"""Rows that are made at once."""

Step = tuple[float, float, float]
"""When a step began, the seconds of its pull, and of all."""


def serve(index: int, output: Path) -> None:
    """Be one server, of two at first; says where it is."""
    keep_freed_memory()
    sources = Sources(checkpoints=str(output / "moves-checkpoints"))
    server = ParameterServer(index, Routing.even(2), sources=sources)
    server.moves.connect = lambda _, address: rpc.Connection(address)
    server.registration.begin_anew()
    _, port = serving.serve(server.handlers(), LOCAL, 4)
    print(port, flush=True)
    sys.stdin.read()
    os._exit(0)


class Job:
    """Servers in processes, and what a master and a worker know of them."""

    def __init__(self, count: int, output: Path) -> None:
        self._root = LocalStorage(output / "moves-checkpoints")
        self._processes = [
            subprocess.Popen(
                [sys.executable, __file__, str(output), "--serve", str(index)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            for index in range(count)
        ]
        self.places = {}
        for index, process in enumerate(self._processes):
            assert process.stdout is not None
            self.places[ServerId(index)] = Place(f"127.0.0.1:{int(process.stdout.readline())}", 0)
        self.routing = Routing.even(2)
        self._connections = ServerConnections("")
        self._mover = SlotMover(self._connections, threading.Event())
        self._attempt = 0
        self._master, port = serving.serve(
            {methods.REGISTER_WORKER: self._reply, methods.GET_ROUTING: self._reply}, LOCAL, 2
        )
        connection = rpc.Connection(f"127.0.0.1:{port}")
        self.group = ServerGroup(connection, 0, 0, threading.Event())
        self.group.register(SPEC, np.zeros(1000, np.float32), np.zeros(0, np.float32))

    def _reply(self, request: object) -> pb.RegisterWorkerReply:
        del request
        addresses = [place.address for place in self._routed().values()]
        return pb.RegisterWorkerReply(routing=self.routing.to_message(), servers=addresses)

    def _routed(self) -> dict[ServerId, Place]:
        return {at: place for at, place in self.places.items() if at.index < self.routing.servers}

    def move(self, servers: int) -> dict[str, float]:
        """Move the rows to this number of servers; return the move's own figures."""
        before, self._attempt = self.routing, self._attempt + 1
        after = Routing(before.epoch + 1, servers, balanced(before.owners, servers), before.dense)
        joining = {
            at: place for at, place in self.places.items() if before.servers <= at.index < servers
        }

        def commit(_: object) -> None:
            self.routing = after

        there = Servers(self._routed(), joining, ())
        moved = self._mover.move(before, after.to_message(), self._attempt, there, commit)
        every = there.all
        self._mover.settle(lambda: (after.to_message(), self._attempt), lambda: every)
        return {
            "rows": moved.rows,
            "bytes": moved.size,
            "seconds": moved.seconds,
            "no_push_seconds": moved.paused,
            "bytes_per_second": moved.size / moved.seconds,
        }

    def checkpoint(self) -> float:
        """Seconds that a checkpoint of all servers takes."""
        began = time.monotonic()
        attempt = begin(self._root, self.routing.epoch, "moves")
        of = {"number": attempt.number, "nonce": attempt.nonce}
        at = [rpc.Connection(place.address) for place in self._routed().values()]
        for each in at:
            each.call(methods.BEGIN_CHECKPOINT, pb.BeginCheckpointRequest(**of))
        with ThreadPoolExecutor(len(at)) as threads:
            request = pb.WriteShardRequest(**of)
            list(threads.map(lambda each: each.call(methods.WRITE_SHARD, request), at))
        seconds = time.monotonic() - began
        attempt.folder.remove()
        for each in at:
            each.close()
        return seconds

    def fill(self, rows: int) -> None:
        """Make so many rows."""
        for start in range(0, rows, FILLED):
            self.step(np.arange(start, min(rows, start + FILLED), dtype=np.int64))

    def step(self, ids: np.ndarray) -> Step:
        """Pull rows and push gradients for them."""
        began = time.monotonic()
        pulled = self.group.pull([[ids]], training=True)
        between = time.monotonic()
        gradients = np.full((pulled.ids[0].unique.size, DIM), 0.01, np.float32)
        dense = np.zeros(1000, np.float32), np.zeros(0, np.float32)
        push = Push(
            {0: (pulled.ids[0].unique, gradients)},
            dense,
            0.1,
            pulled.versions,
            pulled.times,
            pulled.applied,
            0,
            0,
        )
        self.group.push(push)
        return began, between - began, time.monotonic() - began

    def close(self) -> None:
        """End the servers."""
        self.group.close()
        for process in self._processes:
            process.kill()


class Training(threading.Thread):
    """A worker that trains all the time."""

    def __init__(self, job: Job, rows: int, batch: int) -> None:
        super().__init__(daemon=True)
        self.steps: list[Step] = []
        self.ended = threading.Event()
        self._job, self._rows, self._batch = job, rows, batch

    def run(self) -> None:
        """See Thread."""
        draw = np.random.default_rng(1)
        while not self.ended.is_set():
            self.steps.append(self._job.step(draw.integers(0, self._rows, self._batch)))

    def within(self, start: float, end: float) -> list[Step]:
        """The steps that began then."""
        return [each for each in self.steps if start <= each[0] < end]


def plain_copy(size: int) -> float:
    """Bytes a second of a plain copy to another process over a socket of this machine."""
    code = (
        "import socket,sys;s=socket.create_connection(('127.0.0.1',int(sys.argv[1])));"
        "b=bytearray(1<<22)\nwhile s.recv_into(b):pass"
    )
    with socket.create_server(("127.0.0.1", 0)) as listening:
        command = [sys.executable, "-c", code, str(listening.getsockname()[1])]
        reader = subprocess.Popen(command)
        connection, _ = listening.accept()
        piece = memoryview(np.ones(1 << 22, np.uint8).tobytes())
        began = time.monotonic()
        with connection:
            for _ in range(max(1, size >> 22)):
                connection.sendall(piece)
        reader.wait()
        return size / (time.monotonic() - began)


def measured(training: Training, job: Job, servers: int, quiet: float) -> dict[str, object]:
    """A move to so many servers, after some quiet seconds."""
    checkpoint = job.checkpoint()
    start = time.monotonic()
    time.sleep(quiet)
    begun = time.monotonic()
    moved = job.move(servers)
    ended = time.monotonic()
    time.sleep(0.5)
    before, meanwhile = training.within(start, begun), training.within(begun, ended)
    rate = len(before) / (begun - start)
    pulls = [1000 * each[1] for each in meanwhile]
    return {
        "servers": servers,
        "steps_per_second_before": round(rate, 1),
        "steps_while_moving_by_before": round(len(meanwhile) / (ended - begun) / rate, 3),
        "pull_ms_before_p99": round(float(np.percentile([1000 * s[1] for s in before], 99)), 1),
        "pull_ms_p99": round(float(np.percentile(pulls, 99)), 1) if pulls else None,
        "checkpoint_seconds": round(checkpoint, 2),
        "seconds_with_removal": round(ended - begun, 2),
        **{key: round(value, 3) for key, value in moved.items()},
        "rate_by_plain_copy": round(moved["bytes_per_second"] / plain_copy(int(moved["bytes"])), 3),
    }


@click.command()
@click.argument("output", type=click.Path(path_type=Path), default=Path("build/bench"))
@click.option("--rows", default=4_000_000, show_default=True)
@click.option("--batch", default=4096, show_default=True, help="Ids of a step.")
@click.option("--quiet", default=5.0, show_default=True, help="Seconds before each move.")
@click.option("--serve", "index", type=int, hidden=True)
def main(output: Path, rows: int, batch: int, quiet: float, index: int | None) -> None:
    """Measure; see the top of this file."""
    if index is not None:
        serve(index, output)
    output.mkdir(parents=True, exist_ok=True)
    job = Job(4, output)
    try:
        job.fill(rows)
        training = Training(job, rows, batch)
        training.start()
        found = [measured(training, job, servers, quiet) for servers in (4, 3)]
        training.ended.set()
        training.join()
    finally:
        job.close()
    (output / "moves.json").write_text(json.dumps(found, indent=2) + "\n")
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
