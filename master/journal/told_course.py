"""`python -m shoal.master.journal.told_course JOB_DIR`: a job's course as lines of JSON.

For those who draw it, as `shoal dashboard` does: what each process was at and when, deaths,
evaluations, the ledger filling up, and all messages. Computed from the journal alone, whose events
are done again; nothing is changed. With --follow it goes on with a job that runs.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from shoal.base.disk.job_folder import JobFolder
from shoal.errors import EXIT_USER_ERROR, UserError
from shoal.master.job.job import Job
from shoal.master.job.members.members import ServerMember, WorkerMember
from shoal.master.journal.events import Entry, RecordedJob
from shoal.master.journal.reading import read_segments
from shoal.proto import shoal_pb2 as pb

LEDGER_SECONDS = 0.2
"""Of the job, between two lines about its ledger."""

LOOK_SECONDS = 1.0
"""Between two looks at a journal that is followed."""

RESTED = 10.0
"""Times as long as a look took is the pause after it: a long segment is read whole each time."""


class CourseTeller:
    """Tells of a job's course, event by event.

    tell: is given each line, a dictionary that JSON can write. t is in it, in seconds since the
        job's beginning, and one of:
        process: its name; with state, incarnation, deaths, task, kind, records. task is 0 for none.
        ledger: trained once, repeated, failed, pending, of all epochs; with version.
        evaluation: {version, epoch, metrics, records}. state: of the job. message: of the job.
    """

    def __init__(self, job: RecordedJob, tell: Callable[[dict[str, Any]], object]) -> None:
        self._job, self._tell = job, tell
        self._members: dict[str, tuple[Any, ...]] = {}
        self._ledger: tuple[int, ...] = ()
        self._told_ledger = -LEDGER_SECONDS
        self._evaluations = 0
        self._messages: list[str] = []
        self._state = ""

    def follow(self, entry: Entry) -> None:
        """Do the next event, and tell what it has changed."""
        job = self._job
        job.replay([entry])
        at = round(entry.time - job.record.started, 3)
        for name, now in _members(job):
            if self._members.get(name) != now:
                self._members[name] = now
                names = ("state", "incarnation", "deaths", "task", "kind", "records")
                self._tell({"t": at, "process": name, **dict(zip(names, now, strict=True))})
        self._follow_ledger(at)
        for result in job.work.evaluation_results[self._evaluations :]:
            self._tell({"t": at, "evaluation": asdict(result)})
        self._evaluations = len(job.work.evaluation_results)
        messages = job.record.messages
        if messages != self._messages:
            known = set(self._messages)
            for text in messages:
                if text not in known:
                    self._tell({"t": at, "message": text})
            self._messages = messages
        if job.phases.phase.state != self._state:
            self._state = job.phases.phase.state
            self._tell({"t": at, "state": self._state})

    def _follow_ledger(self, at: float) -> None:
        ledger = self._job.work.ledger
        now = (ledger.trained_once, ledger.repeated, ledger.failed, ledger.pending)
        if now == self._ledger or (ledger.pending and at - self._told_ledger < LEDGER_SECONDS):
            return
        self._ledger, self._told_ledger = now, at
        self._tell({"t": at, "ledger": list(now), "version": self._job.phases.version})


def _members(job: Job) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Each process's name, and what it is at now."""
    members: Iterable[WorkerMember | ServerMember]
    for members in (job.members.workers.values(), job.members.servers.values()):
        for member in members:
            task = member.held if isinstance(member, WorkerMember) else None
            at = (task.id, pb.TaskKind.Name(task.kind), task.records) if task else (0, "", 0)
            yield str(member.id), (member.state.value, member.incarnation, member.deaths, *at)


def events_from(journal: Path) -> Callable[[], Iterator[Entry]]:
    """A function that reads the events of a journal which no call of it has read before.

    It raises UserError, which names the file, if the journal cannot be read.
    """
    index, seen = 1, 0

    def new() -> Iterator[Entry]:
        nonlocal index, seen
        for segment in read_segments(journal, index):
            index = segment.header.index
            for position, entry in segment.entries():
                if position.number > seen:
                    seen = position.number
                    yield entry

    return new


def tell_course(folder: JobFolder, *, follow: bool) -> None:
    """Print the course of a job, then an empty object, and what is new if it is followed.

    Ends with the process that started it. Raises UserError if there is no journal to be read.
    """
    parent = os.getppid()
    new = events_from(folder.journal)
    config = next(read_segments(folder.journal)).header.config

    def tell(line: dict[str, Any]) -> None:
        print(json.dumps(line, separators=(",", ":")))

    teller = CourseTeller(RecordedJob(config, lambda _: None), tell)
    size = -1
    while os.getppid() == parent:
        began = time.monotonic()
        if (now := _size(folder.journal)) != size:
            for entry in new():
                teller.follow(entry)
            size = now
            tell({})
            sys.stdout.flush()
        if not follow:
            return
        time.sleep(max(LOOK_SECONDS, RESTED * (time.monotonic() - began)))


def _size(journal: Path) -> int:
    """The size of the journal's files in bytes, which grows with each event; 0 if unreadable."""
    try:
        return sum(path.stat().st_size for path in journal.iterdir())
    except OSError:
        return 0  # a file was replaced meanwhile


@click.command()
@click.argument("job_dir", type=click.Path(path_type=Path))
@click.option("--follow", is_flag=True, help="Go on with what happens.")
def main(job_dir: Path, follow: bool) -> None:
    """Print the course of the job in JOB_DIR."""
    try:
        tell_course(JobFolder(job_dir.absolute()), follow=follow)
    except UserError as error:
        click.echo(error, err=True)
        sys.exit(EXIT_USER_ERROR)
    except BrokenPipeError:
        os._exit(0)  # nobody reads it any more


if __name__ == "__main__":
    main()
