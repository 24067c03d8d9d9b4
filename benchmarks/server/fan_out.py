"""Measure what a step's calls cost a worker, by the number of servers.

    python benchmarks/server/fan_out.py [--servers 1 10 100] [--ids 19600] [--steps N]

All servers are in one process, this one is the worker: it pulls the rows of random ids of two
tables (of 1 and 16 columns over the same ids) and the dense vector of the end-to-end benchmark's
network, and pushes as much, one step after the other. Three ways take turns: all servers at once
below Python, as workers do it; one by one in Python, as with TLS; and a bare loop in C that sends
requests made beforehand and receives the answers (bare_loop.c, compiled with `cc`). Prints, for
each number of servers and way, the CPU of the worker and of all servers a step, and its time.
Figures are the medians of the rounds.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partialmethod
from pathlib import Path
from unittest import mock

import numpy as np
from rich.console import Console
from rich.table import Table

from shoal.native.initializers import InitializerSpec
from shoal.native.optimizers import OptimizerSpec
from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.channels import rpc, serving
from shoal.proto.memory import keep_freed_memory
from shoal.proto.plane import message
from shoal.proto.plane.client import Pool
from shoal.proto.values.routing import Routing
from shoal.ps.service import ParameterServer
from shoal.worker.servers.fan_out import FannedOut
from shoal.worker.servers.group import ServerGroup
from shoal.worker.servers.ids import group_tables
from shoal.worker.servers.pull_requests import PullHead, PullPlan
from shoal.worker.servers.push_requests import PushPlan, split_by_owner
from shoal.worker.servers.pushing import Push

LOCAL = "127.0.0.1:0"
DIMS = (1, 16)
DENSE = 151_938
RANGE = 1_000_000
TICKS = os.sysconf("SC_CLK_TCK")
ADAGRAD = OptimizerSpec("adagrad").to_json()
SPEC = pb.ModelSpec(
    tables=[
        pb.TableSpec(
            name=f"t{dim}",
            dim=dim,
            optimizer=ADAGRAD,
            initializer=InitializerSpec("uniform").to_json(),
        )
        for dim in DIMS
    ],
    dense_optimizer=ADAGRAD,
    trainable=[pb.VariableSpec(name="kernel", shape=[DENSE])],
)


def serve(count: int) -> None:
    """Be all servers and their master; says where that is."""
    keep_freed_memory()
    routing = Routing.even(count)
    addresses = []
    kept = []
    for index in range(count):
        server = ParameterServer(index, routing)
        server.registration.begin_anew()
        kept.append(serving.serve(server.handlers(), LOCAL, 2))
        addresses.append(f"127.0.0.1:{kept[-1][1]}")
    reply = pb.RegisterWorkerReply(routing=routing.to_message(), servers=addresses)
    kept.append(serving.serve({methods.REGISTER_WORKER: lambda _: reply}, LOCAL, 1))
    print(kept[-1][1], flush=True)
    sys.stdin.read()
    os._exit(0)


class Servers:
    """So many servers in a process, and a worker's view of them."""

    def __init__(self, count: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--serve", str(count)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        port = self._process.stdout.readline().strip()
        self._master = rpc.Connection(f"127.0.0.1:{port}")
        self._group = ServerGroup(self._master, 0, 0, threading.Event())
        self._group.register(SPEC, np.zeros(DENSE, np.float32), np.zeros(0, np.float32))
        self._number = 0

    def step(self, ids: np.ndarray) -> None:
        """A pull and a push."""
        pulled = self._group.pull([[ids], [ids]], training=True)
        self._number += 1
        self._group.push(
            Push(
                {t: (pulled.ids[t].unique, rows) for t, rows in enumerate(pulled.rows)},
                (pulled.trainable, np.zeros(0, np.float32)),
                0.001,
                pulled.versions,
                pulled.times,
                pulled.applied,
                1,
                0,
                number=self._number,
            )
        )

    def bare_requests(self, ids: np.ndarray, number: int) -> list[list[bytes]]:
        """A pull's messages to all servers, and a push's, of another worker."""
        routing = self._group.routing
        caller = pb.PushIdentity(worker=9)
        found = group_tables([[ids], [ids]], routing)
        plan = PullPlan(found, DIMS)
        head = PullHead(routing.epoch, [-1] * routing.servers, True, caller)
        zeros = np.zeros(routing.servers, np.int64)
        caller = pb.PushIdentity(worker=9, sequence=number)
        parts = split_by_owner(
            {t: (found[t].unique, rows) for t, rows in enumerate(plan.rows)}, routing
        )
        push = PushPlan(
            parts,
            pb.PushRequest(
                identity=caller,
                routing_epoch=routing.epoch,
                tables=parts.tables,
                ids_of=parts.ids_of,
                learning_rate=0.001,
            ),
            (np.zeros(DENSE, np.float32), np.zeros(0, np.float32)),
            routing.servers,
            zeros + 1,
            zeros,
            zeros.astype(np.float64),
            zeros,
            [pb.FLOAT32] * len(parts.tables),
        )
        for rows in plan.rows:
            rows[:] = 0.0
        frames = {
            methods.PULL: [plan.frame(head, each) for each in range(routing.servers)],
            methods.PUSH: [push.frame(each) for each in range(routing.servers)],
        }
        return [
            [message.prefix(method.kind, len(each)) + each.joined() for each in made]
            for method, made in frames.items()
        ]

    @property
    def addresses(self) -> list[str]:
        """The addresses of all servers."""
        return [each.address for each in self._group._calls._circuits]

    def cpu(self) -> float:
        """Seconds of the servers' process."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def close(self) -> None:
        self._group.close()
        self._master.close()
        self._process.communicate("")


class Bare:
    """The bare loop, with connections of its own."""

    ROOM = 1 << 24

    def __init__(self, servers: Servers, loop: ctypes.CDLL) -> None:
        self._servers = servers
        self._loop = loop
        self._number = 0
        self._links = [Pool(each, "", None).connected() for each in servers.addresses]
        self._sockets = (ctypes.c_int * len(self._links))(*[link.number for link in self._links])
        # Memory that is not touched costs nothing.
        self._room = np.empty(self.ROOM, np.uint8)

    def step_calls(self, batches: list[np.ndarray]) -> list[tuple]:
        """The arguments of `exchange` for a pull and a push of each batch."""
        made = []
        for ids in batches:
            self._number += 1
            for requests in self._servers.bare_requests(ids, self._number):
                count = len(requests)
                arrays = [np.frombuffer(each, np.uint8) for each in requests]
                pointers = ctypes.c_void_p * count
                arguments = (
                    count,
                    self._sockets,
                    pointers(*[each.ctypes.data for each in arrays]),
                    (ctypes.c_size_t * count)(*[each.size for each in arrays]),
                    pointers(*[self._room.ctypes.data] * count),
                    ctypes.c_size_t(self.ROOM),
                )
                made.append((arguments, arrays))
        return made

    def run(self, calls: list[tuple]) -> None:
        """Make them."""
        for arguments, _ in calls:
            if failed := self._loop.exchange(*arguments):
                raise SystemExit(f"server {failed - 1} did not answer")

    def close(self) -> None:
        for link in self._links:
            link.close()


def compiled() -> ctypes.CDLL:
    """The bare loop."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder, "bare_loop.so")
        source = Path(__file__).with_name("bare_loop.c")
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", source, "-o", target], check=True)
        return ctypes.CDLL(str(target))


def measured(servers: Servers, steps: int, run: Callable[[], None]) -> tuple[float, float, float]:
    """Milliseconds a step: CPU of the worker, of the servers, and time."""
    began, own, theirs = time.perf_counter(), time.process_time(), servers.cpu()
    run()
    spent = time.process_time() - own, servers.cpu() - theirs, time.perf_counter() - began
    own, theirs, passed = (1000 * each / steps for each in spent)
    return own, theirs, passed


def rounds_of(
    servers: Servers, bare: Bare, batches: list[np.ndarray], turn: int
) -> dict[str, tuple]:
    """A round of each way. turn: which one is first."""
    calls = bare.step_calls(batches)

    def steps() -> None:
        for ids in batches:
            servers.step(ids)

    def one_by_one() -> None:
        with mock.patch.object(FannedOut, "run", partialmethod(FannedOut.run, one_by_one=True)):
            steps()

    ways = {
        "all at once": steps,
        "one by one, in Python": one_by_one,
        "bare loop": lambda: bare.run(calls),
    }
    names = list(ways)
    names = names[turn % len(names) :] + names[: turn % len(names)]
    found = {name: measured(servers, len(batches), ways[name]) for name in names}
    return {name: found[name] for name in ways}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--servers", type=int, nargs="+", default=[1, 10, 100])
    parser.add_argument("--ids", type=int, default=19_600)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--serve", type=int, default=0, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(given.serve)
    keep_freed_memory()
    rng = np.random.default_rng(0)
    batches = [rng.choice(RANGE, given.ids, replace=False) for _ in range(given.steps)]
    loop = compiled()
    made: dict[int, tuple[Servers, Bare]] = {}
    found: dict[tuple[int, str], list[tuple]] = {}
    try:
        for count in given.servers:
            servers = Servers(count)
            made[count] = servers, Bare(servers, loop)
            rounds_of(*made[count], batches[:5], 0)
        for turn in range(given.rounds):
            for count, (servers, bare) in made.items():
                for way, spent in rounds_of(servers, bare, batches, turn).items():
                    found.setdefault((count, way), []).append(spent)
    finally:
        for servers, bare in made.values():
            bare.close()
            servers.close()
    table = Table(title=f"a step's calls, {given.ids:,} ids of two tables, {DENSE:,} dense weights")
    table.add_column("servers", justify="right")
    table.add_column("way")
    for heading in ("CPU of the worker, ms", "CPU of all servers, ms", "time, ms"):
        table.add_column(heading, justify="right")
    for count, way in sorted(found, key=lambda each: each[0]):
        medians = [statistics.median(each) for each in zip(*found[count, way], strict=True)]
        table.add_row(str(count), way, *(f"{each:.2f}" for each in medians))
    Console().print(table)


if __name__ == "__main__":
    main()
