"""A lane for each process of a job: what it was at and when, its deaths and restarts. No I/O."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

MOST_SPANS = 240
"""Kept of a lane. A page is not wide enough for more; beyond, neighbours become one."""

STARTING, ALIVE = "starting", "alive"


@dataclass
class Span:
    """Something that a process was at, or several such things in a row. Seconds of the job.

    kind: of the tasks, such as TRAIN; STARTING; or ALIVE, of a server. tasks, records: how many.
    """

    start: float
    end: float
    kind: str
    tasks: int
    records: int

    def to_json(self) -> list[Any]:
        """The span as the page takes it."""
        return [round(self.start, 2), round(self.end, 2), self.kind, self.tasks, self.records]


@dataclass(frozen=True)
class Moment:
    """The present activity of a process. task: 0 for none."""

    state: str
    incarnation: int
    deaths: int
    task: int = 0
    kind: str = ""
    records: int = 0


@dataclass
class Lane:
    """One process. Moments are told in their order."""

    spans: list[Span] = field(default_factory=list)
    marks: list[tuple[float, str]] = field(default_factory=list)
    now: Moment | None = None
    _open: bool = False
    _grain: float = 0.0

    def see(self, at: float, now: Moment) -> None:
        """The process is at this, `at` seconds after the job's beginning."""
        before, self.now = self.now, now
        if self._open:
            self.spans[-1].end = max(at, self.spans[-1].end)
        if now == before:
            return
        if before is not None and now.deaths > before.deaths:
            self.marks.append((round(at, 2), "death"))
        started_again = before is not None and now.incarnation > before.incarnation
        if started_again:
            self.marks.append((round(at, 2), "restart"))
        kind = self._kind(now)
        same_task = before is not None and (before.task, self._kind(before)) == (now.task, kind)
        if same_task and not started_again:
            return
        self._open = bool(kind)
        if kind:
            self.spans.append(Span(at, at, kind, int(now.task > 0), now.records))
            if len(self.spans) > MOST_SPANS:
                self._merge()

    def until(self, at: float) -> None:
        """Extend the process's present activity to `at`."""
        if self._open:
            self.spans[-1].end = max(at, self.spans[-1].end)

    @property
    def last(self) -> float:
        """The time at which the process was last heard of; 0 if it never was."""
        return max([span.end for span in self.spans] + [at for at, _ in self.marks], default=0.0)

    def close(self) -> None:
        """The process is at nothing any more, as the job has ended."""
        self._open = False

    @staticmethod
    def _kind(now: Moment) -> str:
        if now.state == STARTING:
            return STARTING
        # What a dead worker held stays its own until the servers have fenced it.
        return now.kind if now.state == ALIVE else ""

    def _merge(self) -> None:
        """Make neighbours of one kind one span, so that about half of the room is free again."""
        length = self.spans[-1].end - self.spans[0].start
        self._grain = max(2 * self._grain, 2 * length / MOST_SPANS)
        merged = [self.spans[0]]
        for span in self.spans[1:-1]:
            last = merged[-1]
            if span.kind == last.kind and span.end - last.start < self._grain:
                last.end = span.end
                last.tasks += span.tasks
                last.records += span.records
            else:
                merged.append(span)
        # Short ones that alternate do not become one: then the oldest go.
        self.spans = [*merged, self.spans[-1]][-MOST_SPANS:]

    def to_json(self, name: str) -> dict[str, Any]:
        """The lane as the page takes it."""
        now = self.now
        return {
            "name": name,
            "state": now.state if now else "",
            "deaths": now.deaths if now else 0,
            "incarnation": now.incarnation if now else 0,
            "spans": [span.to_json() for span in self.spans],
            "marks": self.marks,
        }


def in_order(name: str) -> tuple[bool, int]:
    """Workers before servers, each by index."""
    role, _, index = name.rpartition("-")
    return role != "worker", int(index)
