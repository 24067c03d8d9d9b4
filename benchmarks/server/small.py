"""Small calls of many connections: the processor time of a server a call, and calls a second.

    python benchmarks/server/small.py [--connections N ...] [--seconds S] [--server PYTHON ...]
        [--expire-after SECONDS ...]

Client processes hold the connections. Each sends a request on every one of its own, then reads the
answers, and so on: 196 ids of a table of 16 columns with 100,000 rows. Pulls alone, pushes alone,
and steps, which are a pull and a push. Processor time is the server process's own. With several
--server, each the Python of another checkout of shoal, their servers are measured in turns; so are
tables whose rows expire after so many seconds, 0 for never: their pushes have the time of the day.
Prints a line a measurement.
"""

from __future__ import annotations

import argparse
import itertools
import json
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from capacity import ADAGRAD, cpu_seconds
from parts import master_of

from shoal.config.job import JobConfig
from shoal.native.initializers import InitializerSpec
from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.channels import rpc
from shoal.proto.methods import Method
from shoal.proto.plane import hello, message
from shoal.proto.plane.link import Link
from shoal.proto.wire import frames
from shoal.proto.wire.open_files import allow_open_files
from shoal.proto.wire.transport import arrays_address, open_socket
from shoal.worker.servers.group import ServerGroup
from shoal.worker.servers.pushing import Push

ROWS, IDS, DIM = 100_000, 196, 16
PROCESSES = 4
RATE = 0.001


class Caller:
    """One connection, and what is sent on it. worker: which calls. timed: pushes have a time."""

    def __init__(self, address: str, worker: int, *, timed: bool) -> None:
        self._timed = timed
        made: socket.socket = open_socket(arrays_address(address), 30.0)
        self.link = Link(made)
        hello.call(self.link, "", None, 30.0)
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


def client(
    address: str, number: int, count: int, kinds: list[str], seconds: float, *, timed: bool
) -> None:
    """Make `count` connections and call for so long; prints the calls."""
    allow_open_files()
    callers = [Caller(address, number * 10_000 + place, timed=timed) for place in range(count)]

    def turn() -> None:
        for kind in kinds:
            for each in callers:
                each.send(kind)
            for each in callers:
                each.receive()

    turn()
    print("ready", flush=True)
    sys.stdin.readline()
    done, end = 0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        turn()
        done += len(callers) * len(kinds)
    print(done, flush=True)


class Server:
    """A server process of one checkout, whose model is registered and whose rows are there."""

    def __init__(self, python: str, folder: Path, expire_after: int) -> None:
        self._expire_after = expire_after
        config = folder / "job.json"
        config.write_text(JobConfig(model_def="none.none", training_data="none").to_json())
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
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=folder, text=True
        )
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()
        master, port = master_of(self.address)
        connection = rpc.Connection(f"127.0.0.1:{port}")
        group = ServerGroup(connection, 1 << 20, 0, threading.Event())
        none = np.zeros(0, np.float32)
        table = pb.TableSpec(
            name="t",
            dim=DIM,
            optimizer=ADAGRAD,
            initializer=InitializerSpec("uniform").to_json(),
            expire_after=expire_after,
        )
        group.register(pb.ModelSpec(tables=[table], dense_optimizer=ADAGRAD), none, none)
        rows = np.arange(ROWS), np.zeros((ROWS, DIM), np.float32)
        group.push(Push({0: rows}, (none, none), RATE, [0], [0.0], [0], 0, 0))
        group.close()
        connection.close()
        master.stop(None)

    def measure(self, connections: int, kinds: list[str], seconds: float) -> tuple[float, float]:
        """CPU seconds a call, and calls a second."""
        share = min(PROCESSES, connections)
        processes = [
            subprocess.Popen(
                [
                    *(sys.executable, __file__, "--client", self.address),
                    *("--number", str(number), "--connections", str(connections // share)),
                    *("--kinds", *kinds, "--seconds", str(seconds)),
                    *("--expire-after", str(self._expire_after)),
                ],
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
    parser.add_argument("--expire-after", type=int, nargs="+", default=[0])
    parser.add_argument("--client", default="", help=argparse.SUPPRESS)
    parser.add_argument("--number", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.client:
        count = options.connections[0]
        timed = options.expire_after[0] > 0
        client(options.client, options.number, count, options.kinds, options.seconds, timed=timed)
        return
    allow_open_files()
    measured = itertools.product(
        options.connections,
        options.kinds,
        range(options.rounds),
        options.expire_after,
        options.server,
    )
    for connections, kinds, turn, expire_after, python in measured:
        with tempfile.TemporaryDirectory() as folder:
            server = Server(python, Path(folder), expire_after)
            try:
                cpu, rate = server.measure(connections, kinds.split(), options.seconds)
            finally:
                server.close()
        found = {
            "server": python.split("/.venv")[0],
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
