"""The resident memory of master and servers over very many small tasks: flat, or not.

    python -m benchmarks.memory --tasks 2000000 [FOLDER]

The real master process and real server processes, with logs of updates and checkpoints under way;
the workers are those of light.py, with tasks of one step each. They pull for every eighth step
only, as a pull is much of what a step costs. Prints the memory of each process at each tenth of
the tasks, the rate, and the milliseconds of CPU that a task took. Memory is the median of the last
looks, as a checkpoint or a journal segment that is compressed takes some for a moment. Exits with 1
if one has grown by more than 5% since the first tenth.
"""

from __future__ import annotations

import contextlib
import signal
import statistics
import sys
import tempfile
import time
from collections import defaultdict, deque
from pathlib import Path

import click

from benchmarks.light import LightJob, Load, cpu_seconds, resident_mb
from shoal.config.job import JobConfig

GROWTH = 0.05
"""Since the first tenth, that is not called a leak."""

# All rows are there long before the first tenth is done.
LOAD = Load(ids=2000, batch=8, dim=8, optimizer="adam", dense=64, pull_steps=8, rate=1e-6)

LOOK_SECONDS = 1.0
"""Between two looks at the job, which cost the master as much as some tasks."""

LOOKS = 20
"""Of which the median is taken: so many that a checkpoint is among them."""


@click.command()
@click.argument("folder", required=False)
@click.option("--tasks", default=200_000, show_default=True)
@click.option("--workers", default=4, show_default=True)
@click.option("--hosts", default=2, show_default=True, help="Processes of workers.")
@click.option("--servers", default=2, show_default=True)
@click.option("--checkpoint-seconds", default=20.0, show_default=True)
@click.option("--seconds", default=0.0, help="End after so many, with what was done. 0: no limit.")
def main(
    folder: str | None,
    tasks: int,
    workers: int,
    hosts: int,
    servers: int,
    checkpoint_seconds: float,
    seconds: float,
) -> None:
    """Run so many tasks and print what they cost."""
    # So that nothing is left behind then, either.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with tempfile.TemporaryDirectory(dir=folder) as made:
        path = Path(made) / "job"
        path.mkdir()
        config = JobConfig(
            model_def="none.none",
            command="train",
            job_dir=str(path),
            training_data=str(tasks),
            batch_size=1,
            num_minibatches_per_task=1,
            workers=str(workers),
            servers=str(servers),
            checkpoint_seconds=checkpoint_seconds,
        ).resolved()
        with LightJob(path, config, LOAD, hosts) as job:
            grown = watch(job, tasks, seconds)
            if grown is None:
                print(job.log_end)
    sys.exit(1 if grown is None or grown > GROWTH else 0)


def watch(job: LightJob, tasks: int, limit: float) -> float | None:
    """Print the memory at each tenth; how much the worst has grown since the first one.

    None if the job did not come so far.
    """
    began = time.monotonic()
    first: dict[str, float] | None = None
    last: dict[str, float] | None = None
    looks: defaultdict[str, deque[float]] = defaultdict(lambda: deque(maxlen=LOOKS))
    cpu: dict[str, float] = {}
    tenth = done = 0
    over = False
    while tenth < 10 and not over and not job.ended:
        time.sleep(LOOK_SECONDS)
        status = job.status()
        if status is None:
            continue
        done = status.ledger.trained_once  # a record each
        if not done:
            began = time.monotonic()
            continue
        with contextlib.suppress(FileNotFoundError):  # a process that has ended
            for name, process in job.processes().items():
                looks[name].append(resident_mb(process))
                cpu[name] = cpu_seconds(process)
        over = 0 < limit < time.monotonic() - began
        if done * 10 < tasks * (tenth + 1) and not over:
            continue
        tenth = done * 10 // tasks
        rate = done / (time.monotonic() - began)
        last = {
            name: statistics.median(each)
            for name, each in looks.items()
            if not name.startswith("workers")
        }
        first = first or last
        shown = ", ".join(f"{name} {mb:.1f} MB" for name, mb in last.items())
        costs = ", ".join(f"{name} {each * 1e3 / done:.2f}" for name, each in cpu.items())
        print(f"{done:,} tasks: {shown}; {rate:.0f} tasks/s; ms of CPU a task: {costs}", flush=True)
    if first is None or last is None:
        return None
    grown = {name: last[name] / mb - 1 for name, mb in first.items()}
    print(", ".join(f"{name} {each:+.1%}" for name, each in grown.items()), "since the first tenth")
    return max(grown.values())


if __name__ == "__main__":
    main()
