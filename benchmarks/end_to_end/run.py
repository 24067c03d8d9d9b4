"""Samples a second of a whole job, against its compiled step, Keras and TensorFlow's strategy.

    python benchmarks/end_to_end/run.py [--ids N] [--rounds N] [--seconds S] [--depth D ...]
        [--processes N] [--servers N] [--warm-steps N]
        [--systems shoal torch jax log-file log-peer publish progressive insecure tls seen
        ceiling keras strategy]

DeepFM on a SYNTHETIC stream (model_zoo/criteo/prepare.py), batch 4096, one server and one
worker, or with --processes N as many of each (then only against TensorFlow's strategy).
`shoal` is with --durability=checkpoint; `log-file` and `log-peer` are with --durability=file and
--durability=peer, where they are asked for; `torch` and `jax` are shoal with the same model as a
module of PyTorch and for Keras on JAX; `publish` has a delta each second; `progressive` evaluates
the predictions of every 16th minibatch, of files with the same records; `insecure` and `tls` are
with --tls=never and --tls=always (benchmarks/security.py compares these); `seen` has all that
watches a job: metrics with hot ids, the live page, TensorBoard and events. Compare it with a job
that nothing watches: `--systems shoal seen --shoal=--metrics-seconds=0`. --servers says how many
servers shoal then has. With several depths, each is a system; what is called "shoal" is of the
first. The systems take turns, as this kind of machine's speed drifts; a ratio is of medians over
the rounds.

A round of shoal is a whole `shoal train` that reads Parquet files, observed from its second
epoch on and then stopped: as the peers, which have their tables and some data in memory from
the start, it then has a row for each id that comes. --warm-steps 20 observes it while it makes
them. CPU seconds a million samples are of all processes that train (for shoal worker and server).

Prints a table and writes build/bench/end_to_end.json in the form of native.json; results
for another number of ids or of processes that stand there are kept. With --systems it only
prints.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from shoal.base.disk.job_folder import JobFolder
from shoal.config.job import JobConfig
from shoal.model_zoo.criteo import prepare as stream
from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.channels.rpc import Connection
from shoal.proto.wire.transport import peer_name
from shoal.security.identities import client_identity

HERE = Path(__file__).parent
BENCH = Path("build/bench")
OUTPUT = BENCH / "end_to_end.json"
TF_KERAS = BENCH / "tf_keras"
"""Where `make bench-end-to-end` installs tf_keras, for the strategy alone."""
SYSTEMS = ("shoal", "ceiling", "keras", "strategy")
FLAGS = {
    "shoal": ("--durability", "checkpoint"),
    "torch": ("--durability", "checkpoint", "--model-def", "model_torch.custom_model"),
    "jax": ("--durability", "checkpoint", "--model-def", "model_jax.custom_model"),
    "log-file": ("--durability", "file"),
    "log-peer": ("--durability", "peer"),
    "insecure": ("--durability", "checkpoint", "--tls", "never"),
    "tls": ("--durability", "checkpoint", "--tls", "always"),
    "publish": (
        *("--durability", "checkpoint", "--publish-seconds", "1"),
        *("--publish", str((BENCH / "live").resolve())),
    ),
    "progressive": (
        *("--durability", "checkpoint", "--epochs", "1"),
        *("--progressive-steps", "16", "--progressive-window", "20000"),
        *("--training-data", str((BENCH / "end-to-end-stream").resolve())),
    ),
    "seen": (
        *("--durability", "checkpoint", "--metrics-seconds", "10", "--serve-metrics"),
        *("--metrics-hot-ids", "20", "--dashboard", "0"),
        *("--tensorboard-dir", str(BENCH / "seen"), "--events", str(BENCH / "seen.jsonl")),
    ),
}
"""Of the systems that are shoal."""
FILES = 64
"""Of `progressive`: more than a round trains on."""
START_SECONDS = 120
POLL_SECONDS = 0.02
"""While a job starts; so exact is its time."""
TICKS = os.sysconf("SC_CLK_TCK")

Measured = dict[str, float]


class Peer:
    """A process that trains when told to."""

    def __init__(self, *command: str) -> None:
        path = os.pathsep.join([str(TF_KERAS.resolve()), os.environ.get("PYTHONPATH", "")])
        self._process = subprocess.Popen(
            [sys.executable, *command],
            env=os.environ | {"PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._answer()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"Error: {' '.join(map(str, self._process.args))} ended")
        return line

    def measure(self, seconds: float) -> Measured:
        """Train for about so long."""
        assert self._process.stdin is not None
        print(seconds, file=self._process.stdin, flush=True)
        return dict(json.loads(self._answer()))

    def close(self) -> None:
        """End the process."""
        self._process.terminate()
        self._process.wait()


class Shoal:
    """A `shoal train` a round."""

    def __init__(
        self,
        folder: Path,
        depth: int,
        workers: int,
        servers: int,
        warm_steps: int,
        flags: list[str],
        batch: int = stream.BATCH,
    ) -> None:
        self._batch = batch
        self._warm_steps = warm_steps
        self._depth = depth
        self._workers = workers
        self._servers = servers
        self._data = str(folder / "train.parquet")
        if "--training-data" in flags:
            position = flags.index("--training-data")
            self._data = flags[position + 1]
            flags = flags[:position] + flags[position + 2 :]
        named = "--model-def" in flags
        self._model = flags.pop(flags.index("--model-def") + 1) if named else "model.custom_model"
        self._flags = [each for each in flags if each != "--model-def"]
        self._job = (BENCH / "end-to-end-job").resolve()

    def _command(self) -> list[str]:
        return [
            *(sys.executable, "-m", "shoal", "train", "--job-name", "end-to-end"),
            *("--job-dir", str(self._job), "--overwrite"),
            *("--model-zoo", str(HERE), "--model-def", self._model),
            *("--training-data", self._data),
            *("--batch-size", str(self._batch), "--num-minibatches-per-task", "64"),
            *("--epochs", "1000", "--pipeline-depth", str(self._depth)),
            *("--workers", str(self._workers), "--servers", str(self._servers)),
            *self._flags,
        ]

    @contextlib.contextmanager
    def _started(self) -> Iterator[tuple[subprocess.Popen[bytes], Connection]]:
        """A job, once its server is known to its master; it is stopped at the end."""
        (self._job / "master.json").unlink(missing_ok=True)
        process = subprocess.Popen(self._command(), stdout=subprocess.DEVNULL)
        try:
            server = self._server(process)
            yield process, server
            server.close()
        finally:
            process.send_signal(signal.SIGINT)
            process.wait()

    def start_seconds(self) -> float:
        """Start a job, and stop it when its server is known to its master: the time until then."""
        began = time.perf_counter()
        with self._started():
            return time.perf_counter() - began

    def measure(self, seconds: float) -> Measured:
        """Start a job, observe it for so long, stop it."""
        with self._started() as (process, server):
            self._until(process, server, self._warm_steps)
            before, began, cpu = self._steps(server), time.perf_counter(), self._cpu_seconds()
            time.sleep(seconds)
            after, ended = self._steps(server), time.perf_counter()
            spent = self._cpu_seconds() - cpu
            resident = {
                "worker_mb": self._resident_mb("shoal.worker"),
                "server_mb": self._resident_mb("shoal.ps"),
            }
        samples = (after - before) * self._batch
        measured = {"samples": samples, "seconds": ended - began, "cpu_seconds": spent}
        return measured | resident

    def _server(self, process: subprocess.Popen[bytes]) -> Connection:
        """A connection to the job's server, once the master tells its address."""
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end and process.poll() is None:
            if (self._job / "master.json").exists():
                address = json.loads((self._job / "master.json").read_text())["address"]
                config = JobConfig.load(self._job / "job.json")
                identity = client_identity(config, JobFolder(self._job))
                name = peer_name(config.token, "master")
                master = Connection(address, peer=name, identity=identity)
                reply = master.call(methods.GET_ROUTING, pb.GetRoutingRequest())
                master.close()
                if reply.servers and all(reply.servers):
                    name = peer_name(config.token, "ps", 0)
                    return Connection(reply.servers[0], peer=name, identity=identity)
            time.sleep(POLL_SECONDS)
        raise SystemExit(f"Error: the job did not start; see {self._job / 'logs'}")

    @staticmethod
    def _steps(server: Connection) -> int:
        return int(server.call(methods.STATUS, pb.ServerStatusRequest()).version)

    def _until(self, process: subprocess.Popen[bytes], server: Connection, steps: int) -> None:
        end = time.monotonic() + START_SECONDS
        while self._steps(server) < steps:
            if process.poll() is not None or time.monotonic() > end:
                raise SystemExit(f"Error: the job does not train; see {self._job / 'logs'}")
            time.sleep(0.1)

    def _cpu_seconds(self) -> float:
        """User and system time so far of the job's worker and server."""
        ticks = 0
        for fields in (*self._stats("shoal.worker"), *self._stats("shoal.ps")):
            ticks += int(fields[11]) + int(fields[12])
        return ticks / TICKS

    def _resident_mb(self, module: str) -> float:
        """Memory of the largest of the job's workers, or of its servers."""
        pages = max(int(fields[21]) for fields in self._stats(module))
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6

    def _stats(self, module: str) -> Iterator[list[str]]:
        """The fields of /proc/PID/stat from the third on, of the job's processes."""
        for process in Path("/proc").glob("[0-9]*"):
            try:
                words = (process / "cmdline").read_text().split("\0")
                fields = (process / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has ended
            if str(self._job / "job.json") in words and module in words:
                yield fields

    def close(self) -> None:
        """Nothing is left of a round."""


def results(ids: int, processes: int, rounds: dict[str, list[Measured]]) -> list[dict[str, Any]]:
    """Lines of end_to_end.json; "threads" are the workers, each with a server."""
    rates = {
        name: statistics.median(each["samples"] / each["seconds"] for each in measured)
        for name, measured in rounds.items()
    }
    cpu = {
        name: statistics.median(each["cpu_seconds"] / each["samples"] * 1e6 for each in measured)
        for name, measured in rounds.items()
    }
    common = {"operation": "train", "dim": 16, "ids": ids, "threads": processes}
    lines = [
        {"name": name, **common, "value": round(rate), "unit": "samples/s", "against": ""}
        | {"ratio": None, "cpu_seconds_per_million_samples": round(cpu[name], 2)}
        for name, rate in rates.items()
    ]
    if "shoal" not in rates:
        return lines
    ours = next(line for line in lines if line["name"] == "shoal")
    return lines + [
        ours | {"against": name, "ratio": round(rates["shoal"] / rate, 3)}
        for name, rate in rates.items()
        if name != "shoal"
    ]


def paired(rounds: dict[str, list[Measured]]) -> dict[str, float]:
    """Each system's samples/s divided by shoal's of the same round: the median over the rounds.

    Beside other work, which comes and goes, this tells more than a ratio of medians.
    """
    rates = {
        name: [each["samples"] / each["seconds"] for each in measured]
        for name, measured in rounds.items()
    }
    return {
        name: statistics.median(a / b for a, b in zip(own, rates["shoal"], strict=True))
        for name, own in rates.items()
        if name != "shoal"
    }


def _write_links(file: Path, folder: Path) -> None:
    """Give a file many names, for jobs that train on each file once."""
    folder.mkdir(exist_ok=True)
    for number in range(FILES):
        name = folder / f"{number}.parquet"
        name.unlink(missing_ok=True)
        name.hardlink_to(file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ids", type=int, default=1_000_000)
    parser.add_argument("--records", type=int, default=1 << 20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6.0, help="of each system a round")
    parser.add_argument(
        "--depth", type=int, nargs="+", default=[2], help="shoal's --pipeline-depth, one or more"
    )
    parser.add_argument("--processes", type=int, default=1, help="workers, and servers")
    parser.add_argument("--systems", nargs="+", choices=sorted({*SYSTEMS, *FLAGS}))
    parser.add_argument("--servers", type=int, default=0, help="0: as many as --processes")
    parser.add_argument("--warm-steps", type=int, help="of shoal, not observed; default: an epoch")
    parser.add_argument("--shoal", default="", help="more flags for shoal train, in one argument")
    options = parser.parse_args()
    # So that the job and the peers end with this process.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    folder = (BENCH / f"criteo-{options.ids}").resolve()
    described = stream.prepared(folder, options.ids, options.records)
    print(f"synthetic stream of {options.ids:,} ids, best AUC {described['best_auc']:.4f}")
    _write_links(folder / "train.parquet", BENCH / "end-to-end-stream")
    several = options.processes > 1
    warm_steps = options.warm_steps or options.records // stream.BATCH
    wanted = options.systems or (("shoal", "strategy") if several else SYSTEMS)
    systems: dict[str, Any] = {}
    given = str(folder), str(options.ids)
    count = str(options.processes)
    try:
        for kind in wanted:
            if kind in FLAGS:
                flags = [*options.shoal.split(), *FLAGS[kind]]
                servers = options.servers or options.processes
                for depth in options.depth:
                    name = kind if depth == options.depth[0] else f"{kind}, depth {depth}"
                    systems[name] = Shoal(
                        folder, depth, options.processes, servers, warm_steps, flags
                    )
            elif kind == "strategy":
                systems[kind] = Peer(str(HERE / "parameter_server.py"), *given, count, count)
            else:
                systems[kind] = Peer(str(HERE / "peers.py"), kind, *given)
        rounds: dict[str, list[Measured]] = {name: [] for name in systems}
        for number in range(options.rounds):
            for name, system in systems.items():
                measured = system.measure(options.seconds)
                rounds[name].append(measured)
                rate = measured["samples"] / measured["seconds"]
                memory = "".join(
                    f", {each} {measured[f'{each}_mb']:,.0f} MB"
                    for each in ("worker", "server")
                    if f"{each}_mb" in measured
                )
                spent = measured["cpu_seconds"] / measured["samples"] * 1e6
                what = f"{rate:,.0f} samples/s, {spent:.1f} s of CPU a million{memory}"
                print(f"round {number + 1}, {name}: {what}", flush=True)
    finally:
        for system in systems.values():
            system.close()
    made = results(options.ids, options.processes, rounds)
    each = f"{count} worker and server" if not several else f"{count} workers and servers"
    if options.servers:
        each = f"workers: {count}, servers: {options.servers}"
    title = f"DeepFM, synthetic stream, {options.ids:,} ids, depth {options.depth[0]}, {each}"
    table = Table(title=title)
    for heading in ("system", "samples/s", "CPU s a million samples", "shoal against it"):
        table.add_column(heading, justify="left" if heading == "system" else "right")
    ratios = {line["against"]: f"{line['ratio']:.2f}" for line in made if line["against"]}
    for line in made:
        if not line["against"]:
            cpu = str(line["cpu_seconds_per_million_samples"])
            table.add_row(line["name"], f"{line['value']:,}", cpu, ratios.get(line["name"], ""))
    Console(width=120).print(table)
    if "shoal" in rounds:
        for name, ratio in paired(rounds).items():
            print(f"{name} against shoal, median over the rounds of each: {ratio:.2f}")
    if options.systems:
        return  # a part, which is not to replace a whole
    kept = json.loads(OUTPUT.read_text()) if OUTPUT.exists() else []
    same = {"ids": options.ids, "threads": options.processes}
    kept = [line for line in kept if any(line[key] != same[key] for key in same)]
    OUTPUT.write_text(json.dumps(kept + made, indent=1) + "\n")
    print(f"written to {OUTPUT}")


if __name__ == "__main__":
    main()
