"""What a job keeps does not grow with the number of tasks that have ended, nor with deaths."""

from __future__ import annotations

import gc
import sys
import types

import pytest

from shoal.master.job.checkpoints.kept_checkpoints import Taken
from shoal.master.job.instructions import StartProcess
from shoal.master.journal import state
from shoal.master.journal.events import RecordedJob
from shoal.master.work.accounts import lease_book
from shoal.master.work.accounts.applied import AppliedPush
from shoal.master.work.outcomes import DataDescribed, Done, Heartbeat
from shoal.master.work.units import Source
from tests.master.strategies import begun, config, exited, register, take, w

pytestmark = pytest.mark.slow

WORKERS = 4
SERVERS = 4
TASKS = 16_000
DEATHS = 10_000
CODE = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType)


@pytest.fixture(autouse=True)
def leases_are_packed_as_in_a_job(monkeypatch):
    monkeypatch.setattr(lease_book, "PACKED_TOGETHER", 512)


def size(job):
    """Bytes of all objects that a job is made of."""
    seen, left, total = set(), [job], 0
    while left:
        each = left.pop()
        if id(each) in seen or isinstance(each, CODE):
            continue
        seen.add(id(each))
        total += sys.getsizeof(each)
        left += gc.get_referents(each)
    return total


class Worked:
    """A job of small tasks, whose workers lease one ahead."""

    def __init__(self, **changes):
        self.job = begun(
            DataDescribed(training=(Source("t", TASKS * 10),)), workers=str(WORKERS), **changes
        )
        self.done = 0
        for index in range(WORKERS):
            take(self.job, w(index))

    def until(self, tasks, checkpoint_every=0):
        """Report tasks until so many are done. checkpoint_every: take one after so many."""
        while self.done < tasks:
            self.done += 1
            worker, now = w(self.done % WORKERS), self.done / 100
            task = self.job.task_wanted(worker, 0, now)  # again: the one that it holds
            self.job.task_ahead_wanted(worker, 0, task.id, now)
            version = sequence = self.done
            self.job.task_reported(worker, 0, task.id, Done(), version, now, acknowledged=sequence)
            if checkpoint_every and self.done % checkpoint_every == 0:
                self.job.checkpoints.tick(now)
                self.job.checkpoint_begun(now)
                self.job.checkpoint_taken(Taken(self.done, version, 1, 0.1), False, now)
            if self.done % 100 == 0:
                self.job.tick(now)
                self.job.take_instructions()
        return size(self.job)


def test_a_task_that_has_ended_takes_few_bytes_until_the_next_checkpoint():
    worked = Worked()
    few = worked.until(2_048)
    many = worked.until(10_240)
    # An object for each of them would be several hundred bytes.
    assert (many - few) / 8_192 < 45


def test_with_checkpoints_a_job_of_many_tasks_keeps_as_much_as_one_of_few():
    worked = Worked(checkpoint_steps=500, keep_checkpoint_max=2)
    few = worked.until(3_200, checkpoint_every=400)
    many = worked.until(15_200, checkpoint_every=400)
    assert many < few * 1.05


def test_a_job_of_many_deaths_keeps_as_much_as_one_of_few():
    """Each worker dies in its first task; most had pushed more than they had told."""
    changes = {"relaunch_limit": DEATHS, "checkpoint_steps": 1, "keep_checkpoint_max": 2}
    job = RecordedJob(config(servers=str(SERVERS), epochs=DEATHS, **changes), lambda _: None)
    register(job, DataDescribed(training=(Source("t", 1_000),)))
    incarnation, sizes = 0, {}
    for deaths in range(1, DEATHS + 1):
        now = deaths * 4_000.0  # later than any pause before a start
        task = take(job, w(0), incarnation, now)
        job.heartbeat(w(0), incarnation, Heartbeat(task.id, 5, 1, 0.5, deaths), now)
        job.process_exited(exited(w(0), incarnation), now)
        pushes = 1 + (deaths % 3 > 0)
        applied = [AppliedPush(pushes, task.id, 5 * pushes)] * SERVERS
        job.fenced(w(0), incarnation, applied, now)
        told = job.take_instructions()
        (incarnation,) = [each.start.incarnation for each in told if isinstance(each, StartProcess)]
        job.worker_registered(w(0), incarnation, now)
        if deaths % 20 == 0:
            job.checkpoint_begun(now)
            job.checkpoint_taken(Taken(deaths, deaths, 1, 0.1, f"n{deaths}"), False, now)
        if deaths in (DEATHS // 5, DEATHS):
            sizes[deaths] = len(state.dump(job))
    assert job.work.ledger.trained >= 5 * DEATHS
    few, many = sizes.values()
    assert many < few * 1.2
