"""Measure what a log at a peer costs a server: pushes a second, by size and number of pushers.

    python benchmarks/server/log.py [--rounds N] [--seconds S] [--pushers 1 8] [--ids 64 4096]

Two pairs of server processes, one without a log and one whose servers keep each other's
(--durability peer). A process of clients without TensorFlow pushes to the first server of a pair,
each client one push after the other; the pairs take turns. After each turn the log is dropped, as
after a checkpoint. Prints pushes a second, the CPU of both servers a push, and the median of the
log's pushes a second by those without a log in the same round.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from shoal.config.job import JobConfig
from shoal.native.initializers import InitializerSpec
from shoal.native.optimizers import OptimizerSpec
from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.channels import rpc, serving
from shoal.proto.errors import WireError
from shoal.proto.memory import keep_freed_memory
from shoal.proto.values.routing import Routing
from shoal.proto.wire import frames

DIM = 16
ROWS = 1_000_000
TICKS = os.sysconf("SC_CLK_TCK")
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
)
ROUTING = Routing.even(2)


class Pair:
    """Two servers of a job, of which this process is the master. durability: its."""

    def __init__(self, folder: Path, durability: str) -> None:
        folder.mkdir()
        self._addresses: dict[int, str] = {}
        self._there = threading.Event()
        self._master, port = serving.serve(
            {
                methods.GET_RESTORE: lambda _: pb.RestoreReply(),
                methods.REGISTER_SERVER: self._registered,
                methods.GET_ROUTING: self._located,
            },
            "127.0.0.1:0",
            4,
        )
        job = JobConfig(
            model_def="none.none",
            training_data="none",
            job_dir=str(folder),
            servers="2",
            durability="peer" if durability == "log" else durability,
            timeout_seconds=900.0,
        )
        (folder / "job.json").write_text(job.to_json())
        command = [sys.executable, "-m", "shoal.ps", "--config", str(folder / "job.json")]
        command += ["--master", f"127.0.0.1:{port}", "--index"]
        with (folder / "log").open("w") as log:
            self.processes = [
                subprocess.Popen([*command, str(index)], stdout=log, stderr=log)
                for index in range(2)
            ]
        self._there.wait()
        self.address = self._addresses[0]
        self._connections = [rpc.Connection(self._addresses[index]) for index in range(2)]
        for connection in self._connections:
            connection.call(methods.REGISTER, pb.RegisterRequest(model=SPEC))
            none = [np.zeros(0, np.float32)] * 2
            connection.call(
                methods.INITIALIZE_DENSE, frames.encode(pb.InitializeDenseRequest(), none)
            )
        self._turn = 0

    def _registered(self, request: pb.RegisterServerRequest) -> pb.RegisterServerReply:
        self._addresses[request.server] = request.address
        if len(self._addresses) == 2:
            self._there.set()
        return pb.RegisterServerReply(routing=ROUTING.to_message())

    def _located(self, _: Any) -> pb.RegisterWorkerReply:
        if not self._there.is_set():
            raise WireError(pb.NOT_READY, "not all are there")
        return pb.RegisterWorkerReply(servers=[self._addresses[index] for index in range(2)])

    def cpu(self) -> float:
        """CPU seconds of both servers."""
        return sum(cpu_seconds(each.pid) for each in self.processes)

    def drop(self) -> None:
        """Let go of the log, as if a checkpoint was complete."""
        self._turn += 1
        for connection in self._connections:
            connection.call(
                methods.BEGIN_CHECKPOINT,
                pb.BeginCheckpointRequest(number=self._turn, nonce="0" * 16),
            )
            connection.call(
                methods.COMPLETE_CHECKPOINT,
                pb.CompleteCheckpointRequest(number=self._turn, nonce="a"),
            )
            connection.call(
                methods.DROP_CHECKPOINT, pb.DropCheckpointRequest(number=self._turn, nonce="a")
            )

    def unprotected(self) -> str:
        """The reason why the first server's pushes are not protected; "" if they are."""
        return str(self._connections[0].call(methods.STATUS, pb.ServerStatusRequest()).unprotected)

    def close(self) -> None:
        """End the processes."""
        for each in (*self.processes,):
            each.kill()
            each.wait()
        for connection in self._connections:
            connection.close()
        self._master.stop(None)


def cpu_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def push_for(address: str, pushers: int, count: int, seconds: float, turn: int) -> None:
    """The process of clients: prints how many pushes were acknowledged."""
    keep_freed_memory()
    from shoal.native.ids import slot_of

    own = np.arange(ROWS, dtype=np.int64)
    own = own[ROUTING.owners[slot_of(own)] == 0]
    done = [0] * pushers
    go, ready = threading.Event(), threading.Barrier(pushers + 1)
    end = 0.0

    def work(worker: int) -> None:
        draw = np.random.default_rng(worker)
        connection = rpc.Connection(address)
        gradients = draw.normal(size=(count, DIM)).astype(np.float32)
        batches = [np.sort(draw.choice(own, count, replace=False)) for _ in range(8)]
        ready.wait()
        go.wait()
        while time.perf_counter() < end:
            header = pb.PushRequest(
                identity=pb.PushIdentity(
                    worker=worker, incarnation=turn, sequence=done[worker] + 1
                ),
                routing_epoch=1,
                tables=[0],
                ids_of=[0],
                learning_rate=0.001,
            )
            frame = frames.encode(header, [batches[done[worker] % 8], gradients])
            connection.call(methods.PUSH, frame)
            done[worker] += 1

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(pushers)]
    for thread in threads:
        thread.start()
    ready.wait()
    print("ready", flush=True)
    sys.stdin.readline()
    end = time.perf_counter() + seconds
    go.set()
    for thread in threads:
        thread.join()
    print(sum(done), flush=True)


def measured(pair: Pair, pushers: int, ids: int, seconds: float, turn: int) -> tuple[float, float]:
    """Pushes a second of one turn, and milliseconds of the servers' CPU a push."""
    command = [sys.executable, __file__, "--client", pair.address, "--pushers", str(pushers)]
    command += ["--ids", str(ids), "--seconds", str(seconds), "--turn", str(turn)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        cpu, began = pair.cpu(), time.perf_counter()
        count = int(process.communicate("go\n")[0])
        took, cpu = time.perf_counter() - began, pair.cpu() - cpu
    pair.drop()
    return count / took, 1e3 * cpu / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--pushers", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--ids", type=int, nargs="+", default=[64, 4096, 32768])
    parser.add_argument("--client", default="", help=argparse.SUPPRESS)
    parser.add_argument("--turn", type=int, default=0, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.client:
        push_for(given.client, given.pushers[0], given.ids[0], given.seconds, given.turn)
        return
    table = Table(title="pushes to one server, without a log and with one at a peer")
    for heading in (
        *("ids a push", "at once", "no log, pushes/s", "log, pushes/s", "ratio"),
        *("no log, CPU ms a push", "log, CPU ms a push"),
    ):
        table.add_column(heading, justify="right")
    turn = 0
    with tempfile.TemporaryDirectory() as folder:
        pairs: list[Pair] = []
        try:
            for durability in ("checkpoint", "log"):
                pairs.append(Pair(Path(folder, durability), durability))
            for ids in given.ids:
                for pushers in given.pushers:
                    rounds = []
                    for _ in range(given.rounds + 1):
                        turn += 1
                        rounds.append(
                            [measured(pair, pushers, ids, given.seconds, turn) for pair in pairs]
                        )
                    del rounds[0]  # its rows were new
                    rates = [[of[0] for of in each] for each in zip(*rounds, strict=True)]
                    cpu = [
                        statistics.median(of[1] for of in each)
                        for each in zip(*rounds, strict=True)
                    ]
                    ratio = statistics.median(log / none for none, log in zip(*rates, strict=True))
                    table.add_row(
                        *(f"{ids:,}", str(pushers)),
                        *(f"{statistics.median(each):,.0f}" for each in rates),
                        *(f"{ratio:.2f}", *(f"{each:.2f}" for each in cpu)),
                    )
            assert pairs[1].unprotected() == "", pairs[1].unprotected()
        finally:
            for pair in pairs:
                pair.close()
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
