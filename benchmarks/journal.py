"""Measure what the journal costs the master: per task, in memory, and at a new master's start.

    python benchmarks/journal.py [FOLDER]
    python benchmarks/journal.py --tasks 2000000 [FOLDER]

Threads act as workers that lease a task, tell of it once and report it, on a real
job and journal in FOLDER (whose disk is measured), without gRPC. Prints seconds per
task and the share of a task of one second. With --tasks one worker does so many small tasks,
and commits once for 200 of them, with a checkpoint after each 10,000; prints the resident memory
after each tenth, and the time in which a new master has the job again.
"""

from __future__ import annotations

import resource
import statistics
import tempfile
import threading
import time
from functools import partial
from pathlib import Path

import click

from shoal.config.job import JobConfig
from shoal.master.job.checkpoints.kept_checkpoints import Taken
from shoal.master.job.instructions import TakeCheckpoint
from shoal.master.job.job import Job
from shoal.master.journal.events import RecordedJob
from shoal.master.journal.journal import Journal
from shoal.master.shared_job import SharedJob
from shoal.master.work import outcomes
from shoal.master.work.ids import ServerId, WorkerId
from shoal.master.work.units import Source, Task

TASKS = 400

COMMIT_EVERY = 200
"""Tasks to a sync with --tasks: as if many workers shared it."""

CHECKPOINT_EVERY = 10_000
"""Tasks to a checkpoint with --tasks, whose leases the master then needs no more one by one."""


def _lease(worker: WorkerId, job: Job, now: float) -> object:
    return job.task_wanted(worker, 0, now)


def _beat(worker: WorkerId, task: Task, job: Job, now: float) -> None:
    job.heartbeat(worker, 0, outcomes.Heartbeat(task.id, 1, task.id), now)


def _report(worker: WorkerId, task: Task, job: Job, now: float) -> None:
    job.task_reported(worker, 0, task.id, outcomes.Done(), 1, now)


def run(folder: Path, workers: int, *, written: bool) -> float:
    """Seconds per task."""
    config = JobConfig(
        model_def="m.f",
        training_data="t",
        batch_size=1,
        num_minibatches_per_task=1,
        workers=str(workers),
    )
    journal = Journal(folder / f"{workers}-{written}-{time.time_ns()}", config)
    job = journal.restore() if written else RecordedJob(config, lambda _: None)
    shared = SharedJob(job, commit=journal.commit)
    shared.apply(lambda job, now: job.begin(now))
    shared.apply(lambda job, now: job.server_registered(ServerId(0), 0, "a:1", now))
    task = shared.apply(lambda job, now: job.task_wanted(WorkerId(0), 0, now))
    data = outcomes.DataDescribed(training=(Source("s", TASKS),))
    shared.apply(lambda job, now: job.task_reported(WorkerId(0), 0, task.id, data, 0, now))

    def work(worker: WorkerId) -> None:
        while isinstance(task := shared.apply(partial(_lease, worker)), Task):
            shared.apply(partial(_beat, worker, task))
            shared.apply(partial(_report, worker, task))

    threads = [threading.Thread(target=work, args=(WorkerId(i),)) for i in range(workers)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - began
    journal.close()
    return seconds / TASKS


def _resident_mb() -> float:
    """The process's resident memory now, in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def many(folder: Path, tasks: int) -> None:
    """One worker does so many tasks; then another master starts."""
    config = JobConfig(
        model_def="m.f",
        training_data="t",
        batch_size=1,
        num_minibatches_per_task=1,
        workers="1",
        checkpoint_seconds=float(CHECKPOINT_EVERY),  # a second is a task here
    )
    journal = Journal(folder / "journal", config)
    job = journal.restore()
    job.begin(0.0)
    job.server_registered(ServerId(0), 0, "a:1", 0.0)
    worker = WorkerId(0)
    task = job.task_wanted(worker, 0, 0.0)
    assert isinstance(task, Task)
    data = outcomes.DataDescribed(training=(Source("s", tasks),))
    job.task_reported(worker, 0, task.id, data, 0, 0.0)
    began = time.perf_counter()
    for number in range(1, tasks + 1):
        task = job.task_wanted(worker, 0, number)
        assert isinstance(task, Task)
        job.task_reported(worker, 0, task.id, outcomes.Done(), number, number)
        if number % COMMIT_EVERY == 0:
            job.tick(number)
            if any(isinstance(each, TakeCheckpoint) for each in job.take_instructions()):
                job.checkpoint_begun(number)
                job.checkpoint_taken(Taken(number, number, 0, 0.0), False, number)
            journal.commit()
        if number % (tasks // 10) == 0:
            each = (time.perf_counter() - began) / number
            print(
                f"{number:,} tasks: {_resident_mb():.1f} MB, {each * 1e6:.0f} us a task", flush=True
            )
    journal.close()
    began = time.perf_counter()
    again = Journal(folder / "journal", config)
    restored = again.restore()
    seconds = time.perf_counter() - began
    print(f"a new master has the job, {restored.work.tasks[0]:,} tasks, after {seconds:.2f} s")
    again.close()


@click.command()
@click.argument("folder", required=False)
@click.option("--tasks", default=0, help="Have one worker do so many.")
def main(folder: str | None, tasks: int) -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory(dir=folder) as made:
        if tasks:
            many(Path(made), tasks)
        else:
            costs(Path(made))


def costs(folder: Path) -> None:
    """Print the time that the journal adds to a task."""
    for workers in (1, 8):
        without, with_it = (
            statistics.median(run(folder, workers, written=written) for _ in range(3))
            for written in (False, True)
        )
        print(
            f"{workers} workers: {without * 1e3:.3f} ms a task without the journal, "
            f"{with_it * 1e3:.3f} ms with it: {(with_it - without) * 100:.2f} % of a task "
            "of one second"
        )


if __name__ == "__main__":
    main()
