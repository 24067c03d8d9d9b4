"""`python -m shoal.master.journal.audit JOB_DIR`: what became of every record of a job.

Computed from the journal alone: its events are done again, and each lease, report and
fence is noted as an interval of records. The intervals are then added up and compared
with the ledger that the master kept. What is printed (audit_report.py) is for people, or
JSON; the exit code is 0 if everything is accounted for, 1 if not.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from shoal.base.disk.job_folder import JobFolder
from shoal.errors import EXIT_JOB_FAILED, EXIT_USER_ERROR, UserError
from shoal.master.job import events
from shoal.master.job.members.members import ProcessState, WorkerMember
from shoal.master.journal.audit_report import Report, problem_of, ranges_of, text_of, time_text
from shoal.master.journal.deaths import Death, recoveries
from shoal.master.journal.events import Entry, RecordedJob
from shoal.master.journal.reading import read
from shoal.master.work import outcomes
from shoal.master.work.accounts.applied import applied_heads
from shoal.master.work.accounts.spans import Coverage, Fate, Interval
from shoal.master.work.failures import Failure
from shoal.master.work.ids import ProcessId, ServerId
from shoal.master.work.record import WARNING
from shoal.master.work.units import Span, Task
from shoal.proto import shoal_pb2 as pb

_RUNNING = (ProcessState.STARTING, ProcessState.ALIVE)


class Auditor:
    """Follows a job through its journal."""

    def __init__(self, job: RecordedJob) -> None:
        self._job = job
        self._batch = job.config.batch_size
        self._coverage = Coverage((), job.config.epochs)
        self._open: dict[ProcessId, list[Death]] = {}
        self._wall = self._time = 0.0
        self._given_up = 0
        self.lost = 0
        self.deaths: list[Death] = []
        self.unprotected: list[str] = []
        self.updates: Counter[str] = Counter(
            {"acknowledged": 0, "repeated": 0, "lost": 0, "replayed": 0}
        )

    def follow(self, entry: Entry) -> None:
        """Do the next event, and note what it makes of records and processes."""
        # What was heard before the event belongs to the state that it met.
        self._job.hear(entry)
        before = {
            member.id: (member.state, member.incarnation)
            for members in (self._job.members.workers, self._job.members.servers)
            for member in members.values()
        }
        was_over = self._job.ended
        self._look(entry)
        self._job.replay([entry])
        self._note_given_up()
        if not was_over and not isinstance(entry.event, events.Resumed):
            self._note_deaths(entry, before)
        self._wall, self._time = entry.wall, entry.time

    def _look(self, entry: Entry) -> None:
        """Note what an event says of records and processes; of others only what follows counts."""
        match event := entry.event:
            case events.MasterRestarted():
                ended = Death("master", self._wall, "ended", entry.wall - self._wall)
                self.deaths.append(ended)
            case events.ServerRegistered():
                self.updates["replayed"] += event.replayed
                if WARNING in event.restored:
                    # It may be protected again before the master looks: the reason is only here.
                    said = f"is back: {event.restored}"
                    self._note_unprotected(entry, event.server, said)
            case events.CheckpointRecovered():
                self.updates["replayed"] += event.replayed
            case events.ProtectionChanged():
                said = f"not protected by a log: {event.why}" if event.why else "protected again"
                self._note_unprotected(entry, event.server, said)
            case events.TaskReported():
                self._task_reported(event)
            case events.WorkerFenced():
                self._fenced(event)
            case events.Resumed():
                self._resumed(entry, event.in_model)

    # ------------------------------------------------------------ processes

    def _note_deaths(self, entry: Entry, before: dict[ProcessId, tuple[ProcessState, int]]) -> None:
        for members in (self._job.members.workers, self._job.members.servers):
            for member in members.values():
                was, incarnation = before.get(member.id, (ProcessState.PLANNED, 0))
                died = member.state == ProcessState.DEAD and was != ProcessState.DEAD
                # A server is started again as soon as it is dead.
                died |= member.incarnation > incarnation and was in _RUNNING
                if died and not (isinstance(member, WorkerMember) and member.draining):
                    death = Death(str(member.id), entry.wall, _cause(entry.event))
                    # A start that came to nothing is a death as well; the one before it is
                    # over when there is a successor at last.
                    self._open.setdefault(member.id, []).append(death)
                    self.deaths.append(death)
                elif member.state == ProcessState.ALIVE and member.id in self._open:
                    for death in self._open.pop(member.id):
                        death.recovered = entry.wall - death.at

    def _note_unprotected(self, entry: Entry, server: ServerId, said: str) -> None:
        self.unprotected.append(f"{time_text(entry.wall)}  {server}: {said}")

    # ------------------------------------------------------------ records

    def _note_given_up(self) -> None:
        """Note the records that the event just done has given up."""
        given_up = self._job.work.board.given_up
        for interval in given_up[self._given_up :]:
            self._coverage.add(interval)
        self._given_up = len(given_up)
        for interval in self._job.work.taken_back:
            self._coverage.add(interval)
            self.lost += len(interval.span) * (interval.kind == "lost")
        self._job.work.taken_back.clear()

    def _task_reported(self, event: events.TaskReported) -> None:
        outcome, trained = event.outcome, event.trained
        task = self._job.members.workers[event.worker].holds(event.task_id)
        if task is None:
            return
        if isinstance(outcome, outcomes.DataDescribed) and self._job.config.command == "train":
            self._coverage.extend(outcome.training)
        elif task.kind == pb.TRAIN and isinstance(outcome, outcomes.Done):
            self._add("trained", task, 0, task.records)
        elif task.kind == pb.TRAIN and isinstance(outcome, Failure) and not outcome.another_tries:
            done = max(trained.done, self._job.work.done(task))
            self._add("trained", task, 0, done)
            self._add("touched", task, done, trained.touched)
            if outcome.span is None:  # else it was cut, or given up by itself
                self._add("failed", task, done, task.records)

    def _fenced(self, event: events.WorkerFenced) -> None:
        worker = event.worker
        member = self._job.members.workers[worker]
        task = member.held
        if member.incarnation != event.incarnation or member.fenced or task is None:
            return
        if task.kind == pb.TRAIN:
            pushes = self._job.updates.counted(worker, event.pushes)
            by_all, by_any = applied_heads(task, pushes, self._job.work.done(task))
            self._add("trained", task, 0, by_all)
            self._add("touched", task, by_all, by_any)

    def _resumed(self, entry: Entry, in_model: Iterable[Interval]) -> None:
        """Count acknowledged records that are not in the model as lost; they are trained again."""
        if self._wall:  # or nothing is known of what was before: the journal begins here
            self.deaths.append(Death("job", self._wall, "ended", entry.wall - self._wall))
        self._open.clear()
        self._close()
        before, self._coverage = self._coverage, self._coverage.emptied()
        self._given_up = 0
        for interval in in_model:
            self._coverage.add(interval)
        lost, found = before.difference(self._coverage)
        self.lost += lost
        self.updates["lost"] += -(-lost // self._batch)
        # A log may have what the last heartbeat did not tell.
        self.updates["acknowledged"] += -(-found // self._batch)

    def _close(self) -> None:
        """Count what is known of the leases that have not ended."""
        for member in self._job.members.workers.values():
            task = member.held
            if task is not None and task.kind == pb.TRAIN:
                self._add("trained", task, 0, self._job.work.done(task))

    def _counts(self) -> Counter[str]:
        counts: Counter[str] = Counter(once=0, more=0, never=0, failed=0)
        for fate in self._coverage.fates():
            counts[_class_of(fate)] += len(fate.span)
        return counts

    def _add(self, kind: str, task: Task, start: int, end: int) -> None:
        span = task.span
        if span is None or end <= start:
            return
        part = Span(span.source, span.start + start, span.start + end)
        self._coverage.add(Interval(kind, task.epoch, part))
        updates = -(-(end - start) // self._batch)
        self.updates["acknowledged" if kind == "trained" else "repeated"] += updates * (
            kind in ("trained", "touched")
        )

    # ------------------------------------------------------------ the end

    def report(self) -> Report:
        """The sums, and what does not add up."""
        job = self._job
        phase = job.phases.phase
        self._close()
        counts = self._counts()
        ledger = job.work.ledger
        # A rule of callbacks() may end training early: the rest was not to be trained.
        left_out = self._coverage.total - ledger.total
        complete = phase.complete and not left_out and not ledger.pending
        problems = []
        for fate in self._coverage.fates():
            problems += _problems_of(fate, complete=complete)
        ranges = ranges_of(job.work.copies.differences(), self._wall_at)
        # A job that has not come to its end may yet train them again.
        if phase.ended:
            problems += [problem_of(each) for each in ranges if each["kind"] == "lost"]
        counts["never"] -= left_out
        for name, counted, kept in (
            ("trained exactly once", counts["once"], ledger.trained_once),
            ("trained more than once", counts["more"], ledger.repeated),
            ("failed", counts["failed"], ledger.failed),
            ("never trained", counts["never"], ledger.pending),
        ):
            if counted != kept:
                problems.append(f"{counted:,} records are {name}; the master's ledger has {kept:,}")
        records = {"total": ledger.total, **counts, "lost": self.lost}
        return Report(
            job.config.job_name,
            phase.state,
            job.config.epochs if job.config.command == "train" else 0,
            records,
            {
                **self.updates,
                "lost": self.updates["lost"]
                + sum(lost.count for lost in job.work.copies.lost.values()),
                "left_out": job.left_out.minibatches,
            },
            self.deaths,
            job.work.failures.bad.to_json(),
            recoveries(self.deaths),
            self.unprotected,
            ranges,
            problems,
        )

    def _wall_at(self, time: float) -> float:
        """The wall clock at a moment of the job, by the last event."""
        return self._wall - (self._time - time)


def _cause(event: events.Event[Any]) -> str:
    for name in ("cause", "failure", "outcome"):
        if (value := getattr(event, name, None)) is not None:
            return str(getattr(value, "message", None) or value).splitlines()[0]
    return "taken for dead"


def _class_of(fate: Fate) -> str:
    trained, touched = fate.trained, fate.counts["touched"]
    if fate.counts["failed"]:
        return "failed"
    if not trained:
        return "never"
    return "more" if trained + touched > 1 else "once"


def _problems_of(fate: Fate, *, complete: bool) -> list[str]:
    where = f"{fate.span}, epoch {fate.epoch + 1}"
    if fate.trained > 1:
        return [f"{where}: acknowledged {fate.trained} times"]
    if fate.trained and fate.counts["failed"]:
        return [f"{where}: both trained and failed"]
    if complete and not fate.trained and not fate.counts["failed"]:
        return [f"{where}: never trained, though the job succeeded"]
    return []


def audit(folder: JobFolder) -> Report:
    """Audit the job in a folder. Raises UserError if its journal cannot be read."""
    config, entries = read(folder.journal)
    auditor = Auditor(RecordedJob(config, lambda _: None))
    for entry in entries:
        auditor.follow(entry)
    return auditor.report()


@click.command()
@click.argument("job_dir", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def main(job_dir: Path, as_json: bool) -> None:
    """Say what became of every record of the job in JOB_DIR."""
    try:
        report = audit(JobFolder(job_dir.absolute()))
    except UserError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(EXIT_USER_ERROR)
    click.echo(json.dumps(dataclasses.asdict(report), indent=2) if as_json else text_of(report))
    sys.exit(EXIT_JOB_FAILED if report.problems else 0)


if __name__ == "__main__":
    main(prog_name="shoal audit")
