"""Strategies and small builders that the tests of the master share."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from shoal.config.job import JobConfig
from shoal.master.job.job import Job
from shoal.master.job.members.launcher import Exited
from shoal.master.work import outcomes
from shoal.master.work.accounts.applied import LastPush
from shoal.master.work.ids import ServerId, Start, WorkerId
from shoal.master.work.phases import Phase
from shoal.master.work.tasks.tasks import TaskBoard
from shoal.master.work.units import Source, Task, TaskIds

units = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 3)), max_size=3).map(tuple)
"""Of a source: pieces that are decoded as a whole."""

sources = st.lists(
    st.one_of(st.tuples(st.integers(0, 40), st.just(())), st.tuples(st.just(0), units)),
    min_size=1,
    max_size=4,
).map(
    lambda shapes: [
        Source(f"part-{i}", n or sum(each * times for each, times in of), of)
        for i, (n, of) in enumerate(shapes)
    ]
)


def config(**changes: Any) -> JobConfig:
    """A training job's configuration: tasks of 10 records."""
    values: dict[str, Any] = {
        "model_def": "model.custom_model",
        "job_name": "test",
        "training_data": "train.csv",
        "batch_size": 5,
        "num_minibatches_per_task": 2,
        "checkpoint_seconds": 0.0,
    }
    return JobConfig(**(values | changes))


def board(
    *lengths: int | Source,
    records_per_task: int = 10,
    epochs: int = 1,
    seed: int = 0,
    max_steps: int = 0,
    batch_size: int = 1,
    complete: bool = True,
    **shuffle: Any,
) -> TaskBoard:
    return TaskBoard(
        [n if isinstance(n, Source) else Source(f"part-{i}", n) for i, n in enumerate(lengths)],
        records_per_task=records_per_task,
        epochs=epochs,
        seed=seed,
        next_id=TaskIds(),
        max_steps=max_steps,
        batch_size=batch_size,
        complete=complete,
        **shuffle,
    )


def w(index: int) -> WorkerId:
    return WorkerId(index)


def exited(process: WorkerId | ServerId, incarnation: int = 0, **changes: Any) -> Exited:
    values: dict[str, Any] = {"code": None, "signal_number": 9, "log": "some.log"}
    return Exited(Start(process, incarnation), **(values | changes))


def begun(described: outcomes.DataDescribed | None = None, **changes: Any) -> Job:
    """A job whose processes are all registered at time 0, its data described if given."""
    job = Job(config(**changes))
    register(job, described)
    return job


def pushed(job: Job) -> Job:
    """The same job, to whose servers a gradient counts as pushed."""
    job.work.copies._pushes.count = 1
    return job


def register(job: Job, described: outcomes.DataDescribed | None = None) -> None:
    """Let a new job begin and its processes register; describe its data if given.

    That a gradient was pushed is taken for granted: most of these jobs say nothing of pushes.
    """
    job.begin(0.0)
    pushed(job)
    for server in job.members.servers:
        job.server_registered(server, 0, f"host:{server.index}", 0.0)
    for worker in job.members.workers:
        job.worker_registered(worker, 0, 0.0)
    job.take_instructions()
    if described is not None:
        finish_next(job, w(0), described)


def take(job: Job, worker: WorkerId, incarnation: int = 0, now: float = 1.0) -> Task:
    """The task that the worker is given; the test fails if there is none."""
    task = job.task_wanted(worker, incarnation, now)
    assert isinstance(task, Task)
    return task


def finish_next(
    job: Job,
    worker: WorkerId,
    outcome: outcomes.Outcome,
    *,
    incarnation: int = 0,
    version: int = 0,
    now: float = 1.0,
) -> Task:
    """Take a task and report `outcome` for it."""
    task = take(job, worker, incarnation, now)
    job.task_reported(worker, incarnation, task.id, outcome, version, now)
    confirm(job, now)
    return task


def confirm(job: Job, now: float) -> None:
    """Where the job asks its servers what they have: each has everything."""
    if job.phases.phase == Phase.CONFIRMING:
        # Of a later incarnation of every worker: so nothing of an earlier one is missing.
        has = [LastPush(w(index), 1_000_000, 1, 0, 0) for index in range(20)]
        job.servers_confirmed([has for _ in job.members.servers], now)
