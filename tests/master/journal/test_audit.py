"""The audit adds up for whatever happens to a job, and says so where it does not."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shoal.base.disk.job_folder import JobFolder
from shoal.master.job.events import (
    JobBegun,
    ProtectionChanged,
    Resumed,
    ServerRegistered,
    WorkerFenced,
    WorkerMet,
    WorkerRegistered,
)
from shoal.master.journal.audit import Auditor, audit
from shoal.master.journal.audit_report import text_of
from shoal.master.journal.deaths import Recovery
from shoal.master.journal.events import RecordedJob
from shoal.master.journal.journal import Journal
from shoal.master.result import result_of
from shoal.master.work.accounts.applied import AppliedPush, LastPush
from shoal.master.work.ids import ServerId
from shoal.master.work.outcomes import DataDescribed, Done
from shoal.master.work.units import Source
from tests.examples import examples
from tests.master.random_jobs import RandomJob
from tests.master.strategies import config, exited, finish_next, heartbeat, take, w


def audited(configuration, events):
    auditor = Auditor(RecordedJob(configuration, lambda _: None))
    for number, event in enumerate(events):
        auditor.follow(replace(event, wall=100.0 + number))
    return auditor.report()


@settings(max_examples=examples(25), deadline=None)
@given(seed=st.integers(0, 2**32), steps=st.integers(1, 400))
@example(seed=323, steps=200)  # stopped during tasks of which a server had lost a part
def test_every_job_adds_up_at_every_moment(seed, steps):
    arrives = seed % 3 == 1
    fields = {"arriving": 1.0, "until_idle": 30.0} if arrives else {"epochs": 2}
    configuration = config(workers="3", servers="2", relaunch_limit=20, **fields)
    world = RandomJob(configuration, seed)
    for _ in range(steps):
        world.step()
    report = audited(configuration, world.events)
    assert report.problems == []
    counts = dict(report.records)
    counts.pop("lost")  # and trained again, or yet to be
    assert counts.pop("total") == sum(counts.values())
    assert len([d for d in report.deaths if d.who.startswith("worker")]) == sum(
        member.deaths for member in world.job.members.workers.values()
    )


def trained(note):
    """A job of 40 records whose first task was half applied when its worker died."""
    job = RecordedJob(config(workers="2"), note)
    job.on(JobBegun(), 0.0)
    for server in job.members.servers:
        job.on(ServerRegistered(server, 0, "host:1"), 0.0)
    for worker in job.members.workers:
        job.on(WorkerRegistered(worker, 0), 0.0)
    finish_next(job, w(0), DataDescribed(training=(Source("t", 40),)))
    task = take(job, w(0))
    job.on(exited(w(0)), 2.0)
    job.on(WorkerFenced(w(0), 0, [AppliedPush(1, task.id, 5)]), 3.0)
    job.on(WorkerRegistered(w(0), 1), 4.0)
    return job


def finish(job):
    while not job.ended:
        finish_next(job, w(1), Done(), now=5.0)


@pytest.fixture
def folder(tmp_path):
    """The folder of a job that has ended."""
    folder = JobFolder(tmp_path)
    journal = Journal(folder.journal, config(workers="2"))
    finish(trained(journal.add))
    journal.close()
    return folder


def run_audit(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "shoal", "audit", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_the_command(folder):
    done = run_audit(folder.path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "trained exactly once              40" in done.stdout
    assert "worker-0: signal 9, SIGKILL; replaced after" in done.stdout
    assert done.stdout.endswith("everything is accounted for\n")
    told = json.loads(run_audit(folder.path, "--json").stdout)
    assert told["records"] == {
        "total": 40,
        "once": 40,
        "more": 0,
        "never": 0,
        "failed": 0,
        "lost": 0,
    }
    assert [death["who"] for death in told["deaths"]] == ["worker-0"]


def test_without_a_journal(tmp_path):
    done = run_audit(tmp_path)
    assert done.returncode == 2
    assert done.stderr == f"Error: there is no journal {tmp_path / 'journal'}\n"


def test_what_two_servers_have_differently_is_trained_more_than_once(folder):
    events = []
    job = RecordedJob(config(workers="1", servers="2"), events.append)
    job.on(JobBegun(), 0.0)
    for server in job.members.servers:
        job.on(ServerRegistered(server, 0, "host:1"), 0.0)
    job.on(WorkerRegistered(w(0), 0), 0.0)
    finish_next(job, w(0), DataDescribed(training=(Source("t", 10),)))
    task = take(job, w(0))
    job.on(exited(w(0)), 2.0)
    job.on(WorkerFenced(w(0), 0, [AppliedPush(1, task.id, 5), AppliedPush(2, task.id, 7)]), 3.0)
    finish_next(job, w(0), Done(), incarnation=1)
    report = audited(job.config, events)
    assert report.problems == []
    assert (report.records["once"], report.records["more"]) == (8, 2)


def test_a_ledger_that_is_wrong_is_told(monkeypatch, folder):
    """The audit does not believe the master's own sums."""
    from shoal.master.work.tasks import tasks

    monkeypatch.setattr(tasks.TaskBoard, "_credit", lambda self, lease, done: None)
    report = audit(folder)
    assert any("master's ledger has" in problem for problem in report.problems)
    assert "UNACCOUNTED FOR" in text_of(report)


def test_records_that_nobody_trained_are_told(monkeypatch, folder):
    from shoal.master.work.tasks import tasks

    credit = tasks.TaskBoard._credit

    # The rest of a dead worker's task is forgotten, and counted as trained.
    def forget(self, task_id, touched):
        lease = self._leases.pop(task_id)
        credit(self, lease, lease.task.records)

    monkeypatch.setattr(tasks.TaskBoard, "give_back", forget)
    events = []
    job = trained(events.append)
    finish(job)
    report = audited(job.config, events)
    assert any("never trained, though the job succeeded" in text for text in report.problems)


def test_recovery_times_end_with_a_successor_at_work():
    events = []
    job = RecordedJob(config(workers="2", servers="1"), events.append)
    job.on(JobBegun(), 0.0)
    server = ServerId(0)
    job.on(ServerRegistered(server, 0, "host:1"), 0.0)
    job.on(exited(server), 1.0)
    # The master died while it started the next one, which never ran.
    job.on(exited(server, 1), 2.0)
    job.on(ServerRegistered(server, 2, "host:2"), 3.0)
    for worker in job.members.workers:
        job.on(WorkerRegistered(worker, 0), 3.0)
    job.on(exited(w(1)), 4.0)
    report = audited(job.config, events)
    # Events are a second apart.
    assert [(d.who, d.recovered) for d in report.deaths] == [
        ("ps-0", 2.0),
        ("ps-0", 1.0),
        ("worker-1", None),
    ]
    assert report.recoveries == {
        "ps": Recovery(2, 2, 1.5, 2.0),
        "worker": Recovery(1, 0, None, None),
    }
    assert "  ps: 2 of 2 replaced, after 1.5 s (median), 2.0 s (p99)" in text_of(report)


def test_a_job_resumed_without_a_journal_of_before_has_no_death_that_nobody_knows():
    events = []
    job = RecordedJob(config(workers="1", servers="1"), events.append)
    job.on(Resumed("again", {}, None, [], [], "", ()), 0.0)
    assert audited(job.config, events).deaths == []


def test_what_a_log_did_and_when_there_was_none():
    events = []
    job = trained(events.append)
    server = ServerId(0)
    job.on(exited(server), 5.0)
    job.on(ServerRegistered(server, 1, "host:2", "it is back", 7), 6.0)
    job.on(ProtectionChanged(server, 1, 0.0, "its log is lost"), 7.0)
    job.on(ProtectionChanged(server, 1, 1.0, ""), 8.0)
    report = audited(job.config, events)
    assert report.updates["replayed"] == 7
    first, second = report.unprotected
    assert first.endswith("ps-0: not protected by a log: its log is lost")
    assert second.endswith("ps-0: protected again")
    assert first in text_of(report)


def test_damage_in_a_log_is_told_though_it_was_over_before_the_master_looked():
    events = []
    job = trained(events.append)
    server = ServerId(0)
    job.on(exited(server), 5.0)
    restored = "3 updates of its log were done again; warning: its log is damaged: a at byte 7"
    job.on(ServerRegistered(server, 1, "host:2", restored, 3), 6.0)
    job.on(ProtectionChanged(server, 1, 0.8, ""), 8.0)
    first, second = audited(job.config, events).unprotected
    assert first.endswith(f"ps-0: is back: {restored}")
    assert second.endswith("ps-0: protected again")


def test_what_a_server_lost_counts_once_however_often_the_same_checkpoint_is_restored():
    events = []
    job = trained(events.append)
    server = ServerId(0)

    def last(worker, sequence):
        return LastPush(w(worker), 0, sequence, 0, 0)

    def again(incarnation, now, *has):
        job.on(exited(server, incarnation - 1), now)
        job.on(ServerRegistered(server, incarnation, "host:2", "it is back", has=has), now)

    # Of worker 0 the checkpoint has 3 pushes; it was told of 7, and of worker 1's only one.
    job.heartbeat(w(1), 0, heartbeat(acknowledged=1), 5.0)
    again(1, 5.0, last(0, 3))
    job.on(WorkerMet(server, 1, last(0, 7)), 7.0)
    job.on(WorkerMet(server, 1, last(1, 1)), 7.0)
    again(2, 8.0, last(0, 3))
    job.on(WorkerMet(server, 2, last(0, 9)), 10.0)
    # Checkpoint 2 was taken at the 12th push, so what was lost before it stays lost.
    again(3, 11.0, last(0, 12), last(1, 1))
    job.on(WorkerMet(server, 3, last(0, 14)), 13.0)
    assert audited(job.config, events).updates["lost"] == (9 - 3) + (14 - 12) + 1
    assert result_of(job, 14.0)["servers"]["lost_pushes"] == 9
