"""A job's course as the page draws it: figures over time, lanes, evaluations, messages. No I/O.

It is told by the job's journal (shoal.master.journal.told_course) where that can be read, else by
the statuses that were seen; by those and by metrics.csv it knows the loss.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from shoal.proto import shoal_pb2 as pb
from shoal.tools.dashboard.lanes import ALIVE, Lane, Moment, in_order

MOST_POINTS = 400
"""Of a curve on the page."""

KEPT_POINTS = 4 * MOST_POINTS
"""Of a curve here; beyond, every second one is dropped."""

LEAST_WINDOW = 2.0
"""Seconds over which throughput is averaged, at least."""

MESSAGES = 500
"""Kept of the messages."""

_TOLD_AT = re.compile(r"^([\d.]+) s: (.*)$", re.DOTALL)


class Curve:
    """Values over the job's seconds, which only grow."""

    def __init__(self) -> None:
        self.points: list[tuple[float, tuple[float, ...]]] = []

    def add(self, at: float, *values: float) -> None:
        """Values at a moment; of one that has passed already, they are left out."""
        if self.points and at <= self.points[-1][0]:
            return
        self.points.append((at, values))
        if len(self.points) > KEPT_POINTS:
            # The newest stays as it is: of it, something is told next.
            self.points[:-1] = self.points[:-1:2]

    def thinned(self) -> list[tuple[float, tuple[float, ...]]]:
        """At most `MOST_POINTS` of the points, the first and the last among them."""
        step = max(1, math.ceil((len(self.points) - 1) / (MOST_POINTS - 1)))
        return [*self.points[:-1:step], *self.points[-1:]]


def rates(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The growth of a count per second, from (seconds, count), at even distances."""
    if len(points) < 2:
        return []
    begin, end = points[0][0], points[-1][0]
    window = max(LEAST_WINDOW, (end - begin) / 120)
    found = []
    place = 0
    before = points[0][1]
    steps = max(1, round((end - begin) / window))
    for step in range(1, steps + 1):
        at = begin + (end - begin) * step / steps
        while place + 1 < len(points) - 1 and points[place + 1][0] < at:
            place += 1
        (left, low), (right, high) = points[place], points[place + 1]
        count = low + (high - low) * (at - left) / (right - left)
        # Of a server's death the count falls: what was lost is trained again.
        found.append((at, max(0.0, count - before) * steps / (end - begin)))
        before = count
    return found


class Course:
    """The known part of a job's course."""

    def __init__(self) -> None:
        self.lanes: dict[str, Lane] = {}
        self.evaluations: list[dict[str, Any]] = []
        self.messages: list[dict[str, Any]] = []
        self._ledger, self._loss = Curve(), Curve()
        self._told_messages: set[str] = set()
        self.by_journal = False
        """The journal tells it; statuses then tell no more than the loss."""

    # ------------------------------------------------------------ being told

    def anew(self) -> Course:
        """A course that the journal is to tell from its beginning, with the loss of this one."""
        course = Course()
        course._loss, course.by_journal = self._loss, True
        return course

    def told(self, line: Mapping[str, Any]) -> None:
        """A line of the journal's course."""
        if (at := line.get("t")) is None:
            return
        if "process" in line:
            names = ("state", "incarnation", "deaths", "task", "kind", "records")
            self._process(line["process"], at, *(line[name] for name in names))
        elif "ledger" in line:
            self._add_ledger(at, line["ledger"])
        elif "evaluation" in line:
            self._evaluation(at, line["evaluation"])
        elif "message" in line:
            self._message(line["message"])

    def seen(self, status: pb.JobStatus) -> None:
        """A status, seen just now."""
        at = status.seconds
        if status.has_loss and status.state == "training":
            self._loss.add(at, status.loss)
        if status.ledger.total:
            self._add_ledger(at, [getattr(status.ledger, name) for name in LEDGER])
        if self.by_journal:
            for lane in self.lanes.values():
                lane.until(at)
            return
        for worker in status.workers:
            task, name = worker.task, f"worker-{worker.worker}"
            kind = pb.TaskKind.Name(task.kind) if task.id else ""
            records = task.range.end - task.range.start
            state = (worker.state, worker.incarnation, worker.deaths)
            self._process(name, at, *state, task.id, kind, records)
        for server in status.servers:
            state = (server.state, server.incarnation, server.deaths)
            self._process(f"ps-{server.server}", at, *state, 0, "", 0)
        if status.HasField("last_evaluation"):
            last = status.last_evaluation
            told = {"version": last.version, "epoch": last.epoch, "records": last.records}
            self._evaluation(at, told | {"metrics": dict(last.metrics)})
        for text in status.messages:
            self._message(text)

    def losses(self, text: Iterable[str]) -> None:
        """The lines of metrics.csv, as far as they are of before the first status seen."""
        older = Curve()
        first = self._loss.points[0][0] if self._loss.points else math.inf
        for row in csv.DictReader(text):
            try:
                at, loss = float(row["seconds"]), float(row["loss"])
            except (KeyError, TypeError, ValueError):
                continue  # nothing was trained yet, or the row is being written
            if at < first and row.get("state", "training") == "training":
                older.add(at, loss)
        older.points += self._loss.points
        self._loss = older

    def last(self) -> dict[str, Any]:
        """The seconds and the ledger of the last that is known; neither where nothing is."""
        known = [each.last for each in self.lanes.values()]
        if not self._ledger.points:
            return {"seconds": max(known)} if known else {}
        at, counts = self._ledger.points[-1]
        ledger = {"total": sum(counts), **dict(zip(LEDGER, counts, strict=True))}
        return {"seconds": max([at, *known]), "ledger": ledger}

    def ended(
        self,
        evaluations: Sequence[Mapping[str, Any]],
        messages: Iterable[str],
        seconds: float | None = None,
    ) -> None:
        """The job has ended, and its result tells these; seconds: None if it has none."""
        if seconds is None:
            seconds = self.last().get("seconds", 0.0)
        for lane in self.lanes.values():
            lane.until(seconds)
            lane.close()
        if not self.by_journal:
            for each in evaluations:
                self._evaluation(None, each)
            for text in messages:
                self._message(text)

    def _process(
        self,
        name: str,
        at: float,
        state: str,
        incarnation: int,
        deaths: int,
        task: int,
        kind: str,
        records: int,
    ) -> None:
        if name.startswith("ps-") and state == ALIVE:
            kind = ALIVE
        moment = Moment(state, incarnation, deaths, task, kind, records)
        self.lanes.setdefault(name, Lane()).see(at, moment)

    def _add_ledger(self, at: float, counts: Sequence[int]) -> None:
        self._ledger.add(at, *counts)

    def _evaluation(self, at: float | None, told: Mapping[str, Any]) -> None:
        known = {(each["version"], each["epoch"], each["records"]) for each in self.evaluations}
        if (told["version"], told["epoch"], told["records"]) not in known:
            metrics = {
                name: value if value is not None and math.isfinite(value) else None
                for name, value in sorted(told["metrics"].items())
            }
            self.evaluations.append({"t": at, **told, "metrics": metrics})

    def _message(self, text: str) -> None:
        if text in self._told_messages:
            return
        self._told_messages.add(text)
        found = _TOLD_AT.match(text)
        at, said = (float(found[1]), found[2]) if found else (None, text)
        self.messages.append({"t": at, "text": said})
        del self.messages[:-MESSAGES]

    # ------------------------------------------------------------ telling

    def to_json(self) -> dict[str, Any]:
        """The course as the page takes it: columns of curves, and lanes. Seconds of the job."""
        ledger = self._ledger.thinned()
        trained = [(at, counts[0] + counts[1]) for at, counts in self._ledger.points]
        begun = next((n for n, (_, count) in enumerate(trained) if count), len(trained))
        speed = rates(trained[max(0, begun - 1) :])
        loss = self._loss.thinned()
        return {
            "throughput": _columns(speed),
            "loss": _columns([(at, value[0]) for at, value in loss]),
            "ledger": [
                [round(at, 2) for at, _ in ledger],
                *([counts[n] for _, counts in ledger] for n in range(len(LEDGER))),
            ],
            "evaluations": self.evaluations,
            "lanes": [self.lanes[n].to_json(n) for n in sorted(self.lanes, key=in_order)],
        }


LEDGER = ("trained_once", "repeated", "failed", "pending")
"""The parts of the ledger, in the order of their columns."""


def _columns(points: Sequence[tuple[float, float]]) -> list[list[float | None]]:
    return [
        [round(at, 2) for at, _ in points],
        [value if math.isfinite(value) else None for _, value in points],
    ]
