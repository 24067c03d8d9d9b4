"""Measure what a step's calls cost a worker, by the number of servers.

    python benchmarks/server/fan_out.py [--servers 1 10 100] [--ids 19600] [--steps N]

All servers are in one process, this one is the worker: it pulls the rows of random ids of two
tables (of 1 and 16 columns over the same ids) and the dense vector of the end-to-end benchmark's
network, and pushes as much, one step after the other. Prints, for each number of servers, the CPU
of the worker and of all servers a step, and its time. The numbers of servers take turns; a figure
is the median of its rounds.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from shoal.native.initializers import InitializerSpec
from shoal.native.optimizers import OptimizerSpec
from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.channels import rpc, serving
from shoal.proto.memory import keep_freed_memory
from shoal.proto.values.routing import Routing
from shoal.ps.service import ParameterServer
from shoal.worker.servers.group import ServerGroup
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

    def cpu(self) -> float:
        """Seconds of the servers' process."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def close(self) -> None:
        self._group.close()
        self._master.close()
        self._process.communicate("")


def measured(servers: Servers, batches: list[np.ndarray]) -> tuple[float, float, float]:
    """Milliseconds a step: CPU of the worker, of the servers, and time."""
    began, own, theirs = time.perf_counter(), time.process_time(), servers.cpu()
    for ids in batches:
        servers.step(ids)
    spent = time.process_time() - own, servers.cpu() - theirs, time.perf_counter() - began
    own, theirs, passed = (1000 * each / len(batches) for each in spent)
    return own, theirs, passed


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
    made: dict[int, Servers] = {}
    found: dict[int, list[tuple[float, float, float]]] = {count: [] for count in given.servers}
    try:
        for count in given.servers:
            made[count] = Servers(count)
            measured(made[count], batches[:5])
        for _ in range(given.rounds):
            for count, servers in made.items():
                found[count].append(measured(servers, batches))
    finally:
        for servers in made.values():
            servers.close()
    table = Table(title=f"a step's calls, {given.ids:,} ids of two tables, {DENSE:,} dense weights")
    for heading in ("servers", "CPU of the worker, ms", "CPU of all servers, ms", "time, ms"):
        table.add_column(heading, justify="right")
    for count, rounds in found.items():
        medians = [statistics.median(each) for each in zip(*rounds, strict=True)]
        table.add_row(str(count), *(f"{each:.2f}" for each in medians))
    Console().print(table)


if __name__ == "__main__":
    main()
