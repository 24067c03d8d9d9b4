"""Records at which the user's code fails: what is tried again, what is cut, what is given up.

A range that failed is tried again, by another worker where one is at work. If it fails again
it is cut: around what the worker suspects, or else in the middle. Its pieces are ordinary
tasks; the good ones are trained, the bad one is cut again, until a single record is left.
Owns these verdicts and the list of what was given up. Pure decisions: the queues are
tasks.py's and workload.py's, what follows from a record given up is task_outcomes.py's.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from shoal.master.work.failures import Failure
from shoal.master.work.ids import WorkerId
from shoal.master.work.tasks.kinds import KINDS
from shoal.master.work.units import Span, Task

FAILURES = 2
"""Exceptions at one range until it is cut: the first may have been a passing trouble."""

CRASHES = 3
"""Ends of the process at one range until it is cut: many things end a process."""

CRASHES_ALONE = 2
"""Ends of the process at a single record of a range that was cut, until it is given up."""


@dataclass(frozen=True)
class BadRecord:
    """A record that was given up, or several that follow one another and are there no more.

    data: "training", "validation" or "prediction". record: the first one's position in the source,
    from 0. place: the same in the words of the reader. error: the last line of the traceback.
    """

    data: str
    source: str
    record: int
    place: str
    error: str
    records: int = 1

    def __str__(self) -> str:
        return f"{self.data} data, {self.source}, {self.place}: {self.error}"


class BadRecords:
    """The records that were given up. limit: the number of records that may be."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.given_up: list[BadRecord] = []
        self._known: set[tuple[str, str, int]] = set()

    @property
    def count(self) -> int:
        """The number of records that were given up, each once for all epochs."""
        return len(self._known)

    @property
    def exceeded(self) -> bool:
        """True if more records were given up than the limit allows."""
        return self.count > self.limit

    def add(self, bad: BadRecord) -> bool:
        """Note records; whether one is new, and not that of an earlier epoch."""
        before = self.count
        numbers = range(bad.record, bad.record + bad.records)
        self._known.update((bad.data, bad.source, number) for number in numbers)
        if self.count == before:
            return False
        self.given_up.append(bad)
        return True

    def resumed(self, limit: int) -> None:
        """The job begins again: code or data may have been mended."""
        self.limit = limit
        self.given_up = []
        self._known.clear()

    def to_json(self) -> list[dict[str, Any]]:
        """Return the records as result.json lists them."""
        return [asdict(each) for each in self.given_up]

    def of(self, task: Task, span: Span, failure: Failure) -> BadRecord:
        """The records that a task was left with, as those to be given up."""
        place = failure.place or f"record {span.start}"
        error = failure.error or (failure.message.splitlines() or [""])[0]
        data = task.data or KINDS[task.kind].data
        return BadRecord(data, span.source, span.start, place, error, len(span))

    def explained(self, last: BadRecord, failure: Failure) -> Failure:
        """The failure of the job, which has met one bad record too many."""
        found = f"{last.source}, {last.place} ({last.data} data)"
        if self.limit:
            head = f"{self.count} records are bad, and --max-bad-records is {self.limit}"
            message = f"{head}. The last is {found}: {failure.message}"
        else:
            message = f"{found}: {failure.message}"
        return replace(
            failure, message=message, span=Span(last.source, last.record, last.record + 1)
        )


def after_failure(
    task: Task, rest: Span, *, suspected: Span | None, crash: bool, worker: WorkerId
) -> tuple[Task, ...]:
    """Return the rest of a failed task as new tasks without an id, in order.

    rest: the part of the span that is not done. suspected: the part that the worker blames for the
    failure, if it knows. crash: the worker's process has ended, and not from outside.

    Returns nothing if the rest is a single record that is to be given up.
    """
    assert task.span is not None
    moved = rest != task.span
    failures = (0 if moved else task.failures) + (not crash)
    crashes = (0 if moved else task.crashes) + crash
    if not _is_bad(rest, failures, crashes, suspect=task.suspect):
        return (piece(task, rest, failures=failures, crashes=crashes, failed_on=worker.index),)
    if len(rest) == 1:
        return ()
    return tuple(
        piece(task, span, failures=0, crashes=0, failed_on=-1, suspect=True)
        for span in _cut(rest, suspected)
    )


def _is_bad(rest: Span, failures: int, crashes: int, *, suspect: bool) -> bool:
    if not suspect:
        return failures >= FAILURES or crashes >= CRASHES
    return failures >= 1 or crashes >= (CRASHES_ALONE if len(rest) == 1 else 1)


def _cut(rest: Span, suspected: Span | None) -> list[Span]:
    """Pieces that are the rest together, the most suspected first."""
    source = rest.source
    if suspected is not None and suspected.source == source:
        start, end = max(rest.start, suspected.start), min(rest.end, suspected.end)
        if rest.start <= start < end <= rest.end and end - start < len(rest):
            pieces = [Span(source, start, end), Span(source, rest.start, start)]
            pieces.append(Span(source, end, rest.end))
            return [each for each in pieces if len(each)]
    middle = rest.start + (len(rest) + 1) // 2
    return [Span(source, rest.start, middle), Span(source, middle, rest.end)]


def piece(task: Task, span: Span, **changes: Any) -> Task:
    """A part of a task, without an id."""
    assert task.span is not None
    before = span.start - task.span.start
    trained = min(max(0, task.trained_before - before), len(span))
    return replace(
        task, id=0, span=span, trained_before=trained, position=task.position + before, **changes
    )


def without(task: Task, bad: Iterable[int]) -> list[Task] | None:
    """The pieces of a task between records that were given up; None if it holds none.

    bad: positions in its source.
    """
    assert task.span is not None
    spans = without_bad(task.span, bad)
    return None if spans == [task.span] else [piece(task, span) for span in spans]


def without_bad(span: Span, bad: Iterable[int]) -> list[Span]:
    """The pieces of a span between records that were given up, by position in its source."""
    inside = sorted(record for record in bad if span.start <= record < span.end)
    edges = [span.start - 1, *inside, span.end]
    spans = (Span(span.source, before + 1, after) for before, after in itertools.pairwise(edges))
    return [each for each in spans if len(each)]
