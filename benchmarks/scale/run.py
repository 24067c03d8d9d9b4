"""The load of a whole cluster on one machine: hundreds of workers, up to 16 servers, one master.

    python -m benchmarks.scale.run [--workers N] [--servers N] [--steps N] ... [FOLDER]

The master, the servers, leases, heartbeats, checkpoints and all calls are real; the workers are
those of light.py, which compute nothing and pull and push the rows of the SYNTHETIC click stream
(model_zoo/criteo/prepare.py). What limits this machine is therefore what the calls cost, for all
these processes share its cores: steps/s are no cluster's, but CPU seconds a step are.

Prints steps/s, the median and the 99th percentile of pulls and pushes, and the CPU of master,
servers and workers. Then it counts: each record trained once, each task leased and reported once,
and each row of the last checkpoint changed as often as pushes of it were acknowledged (with SGD and
gradients of 1, a row says how often). Exits with 1 if one of these is not so.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.light import COUNTS, LightJob, Load, cpu_seconds, results_folder
from shoal.checkpoints.contents import dense_slices, table_pieces
from shoal.checkpoints.folders import Checkpoint
from shoal.checkpoints.newest import checkpoint_at
from shoal.config.job import JobConfig

LOOK_SECONDS = 1.0


@dataclass(frozen=True)
class Setting:
    """A job of synthetic workers.

    hosts: processes of workers. steps: of all workers. batch: records of a step, of 26 ids each.
    ids, dim: of the table. dense: size of the dense vector. log_mb: of the servers' logs.
    evenly: a step has `batch` ids of the whole table instead.
    """

    workers: int = 400
    hosts: int = 4
    servers: int = 8
    steps: int = 4000
    steps_per_task: int = 4
    batch: int = 8
    ids: int = 1_000_000
    dim: int = 16
    dense: int = 1000
    heartbeat_seconds: float = 2.0
    log_mb: int = 0
    evenly: bool = False

    def config(self, path: Path) -> JobConfig:
        """The configuration of such a job in a folder."""
        return JobConfig(
            model_def="none.none",
            command="train",
            job_dir=str(path),
            training_data=str(self.steps * self.batch),
            batch_size=self.batch,
            num_minibatches_per_task=self.steps_per_task,
            workers=str(self.workers),
            servers=str(self.servers),
            timeout_seconds=600.0,  # nobody dies here; a machine that is busy is no failure
            start_timeout=3600.0,
            checkpoint_seconds=600.0,  # so that the last one is taken
            log_mb=self.log_mb,
        ).resolved()

    @property
    def load(self) -> Load:
        """The load of one worker: the values that it pulls and pushes."""
        size = self.ids, self.batch, self.dim
        return Load(
            *size,
            "sgd",
            self.dense,
            pull_steps=1,
            rate=1.0,
            clicks=not self.evenly,
            heartbeat_seconds=self.heartbeat_seconds,
        )


OPTIONS: dict[str, str] = {
    "hosts": "Processes of workers.",
    "steps": "Of all workers.",
    "batch": "Records of a step, of 26 ids each.",
    "dense": "Size of the dense vector.",
    "log_mb": "Limit of a server's log of updates.",
    "evenly": "A step has as many ids, drawn evenly, instead of records' ids.",
}


def options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of a setting."""
    for each in fields(Setting):
        flag = f"--{each.name.replace('_', '-')}"
        about = OPTIONS.get(each.name)
        switch = isinstance(each.default, bool)
        command = click.option(
            flag, default=each.default, is_flag=switch, show_default=not switch, help=about
        )(command)
    return command


@click.command()
@click.argument("folder", required=False)
@options
def main(folder: str | None, **given: Any) -> None:
    """Run such a job and print what it did."""
    # So that nothing is left behind then, either.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    setting = Setting(**given)
    measured, found, wrong = run(setting, folder)
    show(measured, found, setting)
    for each in wrong:
        print(f"WRONG: {each}")
    sys.exit(1 if wrong else 0)


def run(setting: Setting, folder: str | None) -> tuple[Measured, Results, list[str]]:
    """Run a job in a folder below `folder`; what was seen and counted, and what is wrong.

    Raises SystemExit with the end of the master's log if too little was seen.
    """
    with tempfile.TemporaryDirectory(dir=folder) as made:
        path = Path(made) / "job"
        path.mkdir()
        with LightJob(path, setting.config(path), setting.load, setting.hosts) as job:
            measured = observe(job)
            if measured is None:
                raise SystemExit(f"too little was seen of the job:\n{job.log_end}")
            found = Results(results_folder(job.folder))
            measured.staleness = float(job.result["staleness"]["mean"])
            return measured, found, mistakes(job.config, job.result, found)


@dataclass
class Measured:
    """The figures of a job, measured from outside.

    seconds: from the first trained records to the last. steps: in that time. cpu: seconds
    by process, in that time. staleness: pushes between a push and its pull, in the mean.
    """

    seconds: float
    steps: float
    cpu: dict[str, float]
    staleness: float = 0.0

    def cpu_of(self, role: str) -> float:
        """CPU seconds of all processes of a role: master, ps or workers."""
        return sum(each for name, each in self.cpu.items() if name.startswith(f"{role}-"))


def observe(job: LightJob) -> Measured | None:
    """Look at a job until it has ended."""
    looks: list[tuple[float, int, dict[str, float]]] = []
    while not job.ended:
        time.sleep(LOOK_SECONDS)
        status = job.status()
        if status is None or not status.ledger.trained_once:
            continue
        done = status.ledger.trained_once
        if not looks or done > looks[-1][1]:
            with contextlib.suppress(FileNotFoundError):  # a process that has ended
                cpu = {name: cpu_seconds(process) for name, process in job.processes().items()}
                looks.append((time.monotonic(), done, cpu))
    if len(looks) < 2:
        return None
    (began, before, spent), (ended, after, cpu) = looks[0], looks[-1]
    costs = {name: cpu[name] - seconds for name, seconds in spent.items()}
    return Measured(ended - began, (after - before) / job.config.batch_size, costs)


class Results:
    """The workers' results: sums of their counts, and the times of pulls and pushes."""

    def __init__(self, folder: Path) -> None:
        self.counts = dict.fromkeys(COUNTS, 0)
        pulls, pushes = [np.zeros(0)], [np.zeros(0)]
        files = sorted(folder.glob("*.npz"))
        self.workers = len(files)
        for each in files:
            with np.load(each) as found:
                for name in COUNTS:
                    self.counts[name] += int(found[name])
                pulls.append(found["pulls"])
                pushes.append(found["pushes"])
        self.pulls, self.pushes = np.concatenate(pulls), np.concatenate(pushes)


def show(measured: Measured, found: Results, setting: Setting) -> None:
    """Print the figures."""
    console = Console(width=100)
    rate = measured.steps / measured.seconds
    console.print(
        f"{setting.workers} workers, {setting.servers} servers: {rate:.0f} steps/s over "
        f"{measured.seconds:.0f} s, {found.counts['rows'] / found.counts['steps']:.0f} rows a step"
    )
    table = Table("call", "median, ms", "99th percentile, ms", "calls")
    for name, times in (("pull", found.pulls), ("push", found.pushes)):
        middle, most = np.percentile(times, (50, 99)) * 1e3
        table.add_row(name, f"{middle:.1f}", f"{most:.1f}", f"{times.size:,}")
    console.print(table)
    table = Table("processes", "CPU ms a step", "share of a core each")
    for role, count in (("master", 1), ("ps", setting.servers), ("workers", setting.hosts)):
        seconds = measured.cpu_of(role)
        share = seconds / measured.seconds / count
        table.add_row(role, f"{seconds * 1e3 / measured.steps:.2f}", f"{share:.2f}")
    console.print(table)


def mistakes(config: JobConfig, result: dict[str, Any], found: Results) -> list[str]:
    """List the differences from the expected result, in words. Prints the counts."""
    steps, rows = found.counts["steps"], found.counts["rows"]
    total = int(config.training_data.rpartition("/")[2])
    tasks = -(-total // (config.batch_size * config.num_minibatches_per_task))
    ledger = {"total": total, "trained_once": total, "repeated": 0, "failed": 0, "pending": 0}
    checkpoint = checkpoint_at(config.checkpoint_dir)
    changed, lowest, highest = changes(checkpoint) if checkpoint is not None else (0, 0, 0)
    wanted: dict[str, tuple[object, object]] = {
        "the job's end": (result["state"], "succeeded"),
        "the ledger": (result["ledger"], ledger),
        "starts of workers": (result["workers"]["starts"], config.num_workers),
        "workers that wrote their counts": (found.workers, config.num_workers),
        "records in tasks that were reported": (found.counts["records"], total),
        "tasks leased and reported": (found.counts["tasks"], tasks),
        "versions of the servers": (set(result["versions"].values()), {steps}),
        "changes of rows in the last checkpoint": (changed, rows),
        "changes of each dense value there": ({lowest, highest}, {steps}),
    }
    for name, (is_there, is_wanted) in wanted.items():
        print(f"{name}: {is_there}, " + ("exact" if is_there == is_wanted else f"not {is_wanted}"))
    return [name for name, (is_there, is_wanted) in wanted.items() if is_there != is_wanted]


def changes(checkpoint: Checkpoint) -> tuple[int, int, int]:
    """Count the changes of all rows, and the fewest and the most changes of a dense value.

    The values of the model all begin at 0, and each push subtracts 1.
    """
    servers = range(len(checkpoint.shards))
    pieces = (piece for server in servers for piece in table_pieces(checkpoint, server, 0))
    rows = sum(-float(piece["values"][:, 0].astype(np.float64).sum()) for piece in pieces)
    dense = np.concatenate([-dense_slices(checkpoint, server)["values"] for server in servers])
    return round(rows), round(float(dense.min())), round(float(dense.max()))


if __name__ == "__main__":
    main()
