"""Small calls of many connections: the processor time of a server a call, and calls a second.

    python benchmarks/server/small.py [--connections N ...] [--seconds S] [--server PYTHON ...]
                                      [--ways WAY ...] [--expire-after SECONDS ...]

Client processes hold the connections. Each sends a request on every one of its own, then reads the
answers, and so on: 196 ids of a table of 16 columns with 100,000 rows. Pulls alone, pushes alone,
and steps, which are a pull and a push. Processor time is the server process's own. With several
--server, each the Python of another checkout of shoal, or several --ways (plain; tls, with mutual
TLS; python-tls, with that of Python's ssl), their servers are measured in turns. So are tables
whose rows expire after so many seconds, 0 for never: their pushes have the time of the day. Prints
a line a measurement.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from capacity import ADAGRAD, cpu_seconds

from shoal.base.disk.job_folder import JobFolder
from shoal.config.job import JobConfig, job_id_of
from shoal.native.initializers import InitializerSpec
from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.channels import rpc
from shoal.proto.identity import Identity
from shoal.proto.methods import Method
from shoal.proto.plane import message
from shoal.proto.plane.client import Pool
from shoal.proto.wire import frames
from shoal.proto.wire.open_files import allow_open_files
from shoal.proto.wire.transport import peer_name
from shoal.security.authority import Authority
from shoal.security.identities import keep

ROWS, IDS, DIM = 100_000, 196, 16
PROCESSES = 4
RATE = 0.001
TOKEN = "benchmark"
JOB = job_id_of(TOKEN)
PEER = peer_name(TOKEN, "ps", 0)
WAYS = {"plain": "", "tls": "c", "python-tls": "python"}


class Caller:
    """One connection, and what is sent on it. worker: which calls. timed: pushes have a time."""

    def __init__(
        self, address: str, worker: int, identity: Identity | None, *, timed: bool
    ) -> None:
        self._timed = timed
        self.link = Pool(address, PEER, identity).connected(30.0)
        self._identity = pb.PushIdentity(worker=worker)
        self._ids = np.random.default_rng(worker).integers(0, ROWS, IDS)
        self._gradients = np.full((IDS, DIM), 0.01, np.float32)
        pull = pb.PullRequest(
            caller=self._identity, dense_version=-2, training=True, **self._common()
        )
        self._pull = self._message(methods.PULL, frames.encode(pull, [self._ids]))

    def send(self, kind: str) -> None:
        data = self._pull if kind == "pull" else self._push()
        self.link.send([data], len(data), 60.0)

    def receive(self) -> None:
        until = time.monotonic() + 60.0
        found, size = self.link.next_prefix(until)
        assert found == message.ANSWER, bytes(self.link.read(size, until))
        self.link.read(size, until)

    def _push(self) -> bytes:
        self._identity.sequence += 1
        push = pb.PushRequest(identity=self._identity, learning_rate=RATE, **self._common())
        if self._timed:
            push.event_time = time.time_ns() // 1000
        return self._message(methods.PUSH, frames.encode(push, [self._ids, self._gradients]))

    @staticmethod
    def _common() -> dict[str, Any]:
        return {"routing_epoch": 1, "tables": [0], "ids_of": [0]}

    @staticmethod
    def _message(method: Method[Any, Any], frame: bytes) -> bytes:
        return message.prefix(method.kind, len(frame)) + frame


def authority_of(folder: Path, way: str) -> Authority | None:
    """The authority of a server's job."""
    if way == "plain":
        return None
    return Authority.from_key(JOB, JobFolder(folder).authority_key.read_bytes())


def client(options: argparse.Namespace) -> None:
    """Make connections and call for so long; prints the calls."""
    allow_open_files()
    (way,), kinds = options.ways, options.kinds
    authority = authority_of(Path(options.folder), way)
    callers = []
    for place in range(options.connections[0]):
        worker = options.number * 10_000 + place
        identity = authority.issue("worker", worker) if authority else None
        timed = options.expire_after[0] > 0
        callers.append(Caller(options.client, worker, identity, timed=timed))

    def turn() -> None:
        for kind in kinds:
            for each in callers:
                each.send(kind)
            for each in callers:
                each.receive()

    turn()
    print("ready", flush=True)
    sys.stdin.readline()
    done, end = 0, time.perf_counter() + options.seconds
    while time.perf_counter() < end:
        turn()
        done += len(callers) * len(kinds)
    print(done, flush=True)


class Server:
    """A server process of one checkout, whose model is registered and whose rows are there."""

    def __init__(self, python: str, folder: Path, way: str, expire_after: int) -> None:
        self.folder, self.way, self._expire_after = folder, way, expire_after
        self.environment = {**os.environ, "SHOAL_TLS": WAYS[way]}
        config = folder / "job.json"
        tls = "never" if way == "plain" else "always"
        job = JobConfig(model_def="none.none", training_data="none", token=TOKEN, tls=tls)
        config.write_text(job.to_json())
        identity = None
        if way != "plain":
            authority = Authority.made(JOB)
            JobFolder(folder).identities.mkdir()
            JobFolder(folder).authority_key.write_bytes(authority.key_pem)
            keep(authority.issue("ps"), JobFolder(folder))
            identity = authority.issue("worker", 1 << 20)
        command = [
            str(Path(python).absolute()),
            "-m",
            "shoal.ps",
            "--config",
            str(config),
            "--index",
            "0",
        ]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            text=True,
            env=self.environment,
        )
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()
        connection = rpc.Connection(self.address, peer=PEER, identity=identity)
        table = pb.TableSpec(
            name="t",
            dim=DIM,
            optimizer=ADAGRAD,
            initializer=InitializerSpec("uniform").to_json(),
            expire_after=expire_after,
        )
        model = pb.ModelSpec(tables=[table], dense_optimizer=ADAGRAD)
        worker = pb.PushIdentity(worker=1 << 20, sequence=1)
        connection.call(methods.REGISTER, pb.RegisterRequest(model=model, caller=worker))
        none = [np.zeros(0, np.float32)] * 2
        connection.call(methods.INITIALIZE_DENSE, frames.encode(pb.InitializeDenseRequest(), none))
        push = pb.PushRequest(
            identity=worker, learning_rate=RATE, routing_epoch=1, tables=[0], ids_of=[0]
        )
        rows = [np.arange(ROWS), np.zeros((ROWS, DIM), np.float32)]
        connection.call(methods.PUSH, frames.encode(push, rows))
        connection.close()

    def measure(self, connections: int, kinds: list[str], seconds: float) -> tuple[float, float]:
        """CPU seconds a call, and calls a second."""
        share = min(PROCESSES, connections)
        processes = [
            subprocess.Popen(
                [
                    *(sys.executable, __file__, "--client", self.address),
                    *("--number", str(number), "--connections", str(connections // share)),
                    *("--kinds", *kinds, "--seconds", str(seconds)),
                    *("--folder", str(self.folder), "--ways", self.way),
                    *("--expire-after", str(self._expire_after)),
                ],
                env=self.environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for number in range(share)
        ]
        try:
            for each in processes:
                assert each.stdout is not None
                assert each.stdout.readline() == "ready\n"
            before, began = cpu_seconds(self.process.pid), time.perf_counter()
            for each in processes:
                assert each.stdin is not None
                each.stdin.write("go\n")
                each.stdin.flush()
            calls = sum(int(each.communicate()[0]) for each in processes)
            took = time.perf_counter() - began
            return (cpu_seconds(self.process.pid) - before) / calls, calls / took
        finally:
            for each in processes:
                each.kill()
                each.wait()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--connections", type=int, nargs="+", default=[16, 200, 1000])
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--server", nargs="+", default=[sys.executable])
    parser.add_argument("--kinds", nargs="+", default=["pull", "push", "pull push"])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=["plain"])
    parser.add_argument("--folder", default="", help=argparse.SUPPRESS)
    parser.add_argument("--expire-after", type=int, nargs="+", default=[0])
    parser.add_argument("--client", default="", help=argparse.SUPPRESS)
    parser.add_argument("--number", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.client:
        client(options)
        return
    allow_open_files()
    measured = itertools.product(
        options.connections,
        options.kinds,
        range(options.rounds),
        options.expire_after,
        options.server,
        options.ways,
    )
    for connections, kinds, turn, expire_after, python, way in measured:
        with tempfile.TemporaryDirectory() as folder:
            server = Server(python, Path(folder), way, expire_after)
            try:
                cpu, rate = server.measure(connections, kinds.split(), options.seconds)
            finally:
                server.close()
        found = {
            "server": python.split("/.venv")[0],
            "way": way,
            "connections": connections,
            "calls": kinds,
            "expire_after": expire_after,
            "round": turn,
            "cpu_us": round(1e6 * cpu, 1),
            "rate": round(rate),
        }
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
