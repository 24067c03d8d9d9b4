"""What the journal costs the master per task: leasing and reporting with and without it.

    python benchmarks/journal.py [FOLDER]

Threads act as workers that lease a task, tell of it once and report it, on a real
runner and journal in FOLDER (whose disk is measured), without gRPC. Prints seconds per
task and the share of a task of one second.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import threading
import time
from functools import partial
from pathlib import Path

from shoal.config import JobConfig
from shoal.master import outcomes
from shoal.master.events import RecordedJob
from shoal.master.ids import ServerId, WorkerId
from shoal.master.job import Job
from shoal.master.journal import Journal
from shoal.master.runner import Runner
from shoal.master.work import Source, Task

TASKS = 400


def _lease(worker: WorkerId, job: Job, now: float) -> object:
    return job.task_wanted(worker, 0, now)


def _beat(worker: WorkerId, task: Task, job: Job, now: float) -> None:
    job.heartbeat(worker, 0, outcomes.Heartbeat(task.id, 1, task.id), now)


def _report(worker: WorkerId, task: Task, job: Job, now: float) -> None:
    job.task_reported(worker, 0, task.id, outcomes.Done(), 1, now)


def run(folder: Path, workers: int, *, written: bool) -> float:
    """Seconds per task."""
    config = JobConfig(
        "m.f", training_data="t", minibatch_size=1, num_minibatches_per_task=1, num_workers=workers
    )
    journal = Journal(folder / f"{workers}-{written}-{time.time_ns()}.sqlite", config)
    job = RecordedJob(config, journal.add if written else lambda _: None)
    runner = Runner(job, commit=journal.commit)
    runner.apply(lambda job, now: job.begin(now))
    runner.apply(lambda job, now: job.server_registered(ServerId(0), 0, "a:1", now))
    task = runner.apply(lambda job, now: job.task_wanted(WorkerId(0), 0, now))
    data = outcomes.DataDescribed(training=(Source("s", TASKS),))
    runner.apply(lambda job, now: job.task_reported(WorkerId(0), 0, task.id, data, 0, now))

    def work(worker: WorkerId) -> None:
        while isinstance(task := runner.apply(partial(_lease, worker)), Task):
            runner.apply(partial(_beat, worker, task))
            runner.apply(partial(_report, worker, task))

    threads = [threading.Thread(target=work, args=(WorkerId(i),)) for i in range(workers)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - began
    journal.close()
    return seconds / TASKS


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as folder:
        for workers in (1, 8):
            without, with_it = (
                statistics.median(run(Path(folder), workers, written=written) for _ in range(3))
                for written in (False, True)
            )
            print(
                f"{workers} workers: {without * 1e3:.3f} ms a task without the journal, "
                f"{with_it * 1e3:.3f} ms with it: {(with_it - without) * 100:.2f} % of a task "
                "of one second"
            )


if __name__ == "__main__":
    main()
