"""A job's events as they are written down and done again.

master/job/events.py has the events. Doing those of a journal again, in order, on a new job of the
same configuration makes the same job. No I/O; the file is journal.py's.

The constant reports of workers (records done, versions, clocks) make no event: the next
event carries the reports since the one before it. Reports that will come again anyway
(loss, stage times, the servers' status) are not kept.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message import Message

from shoal.config.job import JobConfig
from shoal.errors import UserError
from shoal.master.job import updates
from shoal.master.job.events import (
    Event,
    JobFailed,
    JobStopped,
    Published,
    Result,
    Taken,
    TaskWanted,
)
from shoal.master.job.instructions import Finished, Wait
from shoal.master.job.job import Job
from shoal.master.work import failures, ids, outcomes
from shoal.master.work import units as work
from shoal.master.work.accounts import applied, spans
from shoal.master.work.ids import WorkerId
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError

_KINDS: dict[str, type] = Event.kinds | {
    kind.__name__: kind
    for kind in (
        ids.WorkerId,
        ids.ServerId,
        ids.Start,
        failures.Failure,
        work.Span,
        work.Source,
        work.FoundSource,
        applied.AppliedPush,
        applied.LastPush,
        Taken,
        Published,
        spans.Interval,
        updates.Gradient,
        outcomes.Done,
        outcomes.Trained,
        outcomes.DataDescribed,
        outcomes.StatesComputed,
        outcomes.MetricsComputed,
    )
}
"""The classes of events and of their fields, by the name that is written."""


@dataclass(frozen=True)
class Entry:
    """An event that has happened, as the journal has it.

    time: in the job's seconds. heard: since the event before: {"version": highest seen, "records":
    {task: records done}, "pushes": {worker: the last that all servers have}, "clocks": {worker:
    clock}, "slowest": clock, "waiting": workers that found no task}. task: the one that was
    leased, or 0. wall: when it was written, in seconds of the wall clock.
    """

    event: Event[Any]
    time: float
    heard: dict[str, Any] = field(default_factory=dict)
    task: int = 0
    wall: float = field(default=0.0, compare=False)


@functools.cache
def _fields(kind: type) -> tuple[tuple[str, Any], ...]:
    """The fields of a dataclass with their defaults, which are not written."""
    return tuple((each.name, each.default) for each in dataclasses.fields(kind))


def encode(value: Any) -> Any:
    """An event, or a value in it, as plain JSON values."""
    if isinstance(value, Message):
        text = base64.b64encode(value.SerializeToString()).decode()
        return {"$message": value.DESCRIPTOR.name, "bytes": text}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        name = type(value).__name__
        assert _KINDS.get(name) is type(value), f"{name} cannot be written down"
        each = ((name, getattr(value, name), default) for name, default in _fields(type(value)))
        fields = {name: encode(part) for name, part, default in each if part != default}
        return {"$value": name, **fields}
    if isinstance(value, dict):
        return {"$map": {key: encode(each) for key, each in value.items()}}
    if isinstance(value, (list, tuple)):
        return [encode(each) for each in value]
    assert value is None or isinstance(value, (bool, int, float, str)), value
    return value


def decode(value: Any) -> Any:
    """The value that was given to `encode`; sequences come back as tuples."""
    if isinstance(value, list):
        return tuple(decode(each) for each in value)
    if not isinstance(value, dict):
        return value
    if "$message" in value:
        return getattr(pb, value["$message"]).FromString(base64.b64decode(value["bytes"]))
    if "$map" in value:
        return {key: decode(each) for key, each in value["$map"].items()}
    kind = _KINDS[value.pop("$value")]
    return kind(**{name: decode(each) for name, each in value.items()})


class RecordedJob(Job):
    """A job that tells of its changes.

    note: is given each event, as part of the call that made it.
    """

    def __init__(self, config: JobConfig, note: Callable[[Entry], object]) -> None:
        super().__init__(config)
        self._note = note
        self._progressed: set[WorkerId] = set()
        self._stepped: set[WorkerId] = set()
        self._waiting: set[WorkerId] = set()
        self._told_version = 0

    def listen(self, note: Callable[[Entry], object]) -> None:
        """Tell `note` of the events from now on."""
        self._note = note

    def __getstate__(self) -> dict[str, Any]:
        left_out = ("_note", "_handlers")  # functions, which a state has none of
        return {name: each for name, each in vars(self).items() if name not in left_out}

    def heartbeat(
        self, worker: WorkerId, incarnation: int, beat: pb.HeartbeatRequest, now: float
    ) -> pb.HeartbeatReply:
        """See Job."""
        self._progressed.add(worker)
        return super().heartbeat(worker, incarnation, beat, now)

    def clock_reported(
        self, worker: WorkerId, incarnation: int, clock: int, now: float
    ) -> pb.ClockReply:
        """See Job."""
        self._stepped.add(worker)
        return super().clock_reported(worker, incarnation, clock, now)

    def _heard(self) -> dict[str, Any]:
        heard: dict[str, Any] = {}
        if self.phases.version != self._told_version:
            heard["version"] = self.phases.version
        workers = self.members.workers
        members = [workers[worker] for worker in self._progressed if worker in workers]
        held = (member.held for member in members)
        records = {str(task.id): self.work.done(task) for task in held if task is not None}
        if any(records.values()):
            heard["records"] = records
        told = {
            str(member.id.index): self.work.copies.told(member.id, member.incarnation)
            for member in members
        }
        if any(told.values()):
            heard["pushes"] = told
        if self._stepped:
            heard["clocks"] = {str(w.index): self.clocks.of(w) for w in self._stepped}
            heard["slowest"] = self.clocks.slowest
        if self._waiting:
            heard["waiting"] = [worker.index for worker in self._waiting]
        return heard

    def on(self, event: Event[Result], now: float) -> Result:
        """See Job; what has happened is told. If there was no task to lease, nothing has."""
        heard, was_over = self._heard(), self.ended
        result = super().on(event, now)
        nothing = was_over and isinstance(event, (JobFailed, JobStopped))
        if nothing or isinstance(result, (Wait, Finished)):
            if isinstance(event, TaskWanted) and isinstance(result, Wait):
                self._waiting.add(event.worker)
            return result
        leased = result.id if isinstance(result, work.Task) else 0
        self._progressed.clear()
        self._stepped.clear()
        self._waiting.clear()
        self._told_version = self.phases.version
        # Last: whoever is told may look at the job as the event has left it.
        self._note(Entry(event, now, heard, leased))
        return result

    def replay(self, entries: Iterable[Entry]) -> float:
        """Do the events again, in order, on this new job; returns the time of the last.

        What was to be done in the world is dropped; `MasterRestarted` says what of it
        is still to be done. Raises UserError where an event leads elsewhere than the
        first time: the journal is another version's.
        """
        time = 0.0
        try:
            with _quiet():
                for entry in entries:
                    self.hear(entry)
                    result = super().on(entry.event, entry.time)
                    if entry.task != getattr(result, "id", 0):
                        raise LookupError(f"now the answer is {result}")
                    self.take_instructions()
                    time = entry.time
        except (WireError, LookupError, TypeError, AttributeError, AssertionError) as error:
            raise UserError(
                f"the journal's event {entry} cannot be done again by this version of shoal: "
                f"{error!r}"
            ) from error
        finally:
            self._told_version = self.phases.version
        return time

    def hear(self, entry: Entry) -> None:
        """Take what was heard before an event that is to be done again."""
        self.phases.version = entry.heard.get("version", self.phases.version)
        for task, done in entry.heard.get("records", {}).items():
            self.work.progress_of(int(task), done)
        for index, number in entry.heard.get("pushes", {}).items():
            worker = WorkerId(int(index))
            incarnation = self.members.workers[worker].incarnation
            self.work.copies.acknowledged(worker, incarnation, number)
        for worker, clock in entry.heard.get("clocks", {}).items():
            self.clocks.advance(WorkerId(int(worker)), clock)
        self.clocks.allowed(entry.heard.get("slowest", 0))
        for worker in entry.heard.get("waiting", ()):
            self.clocks.leave(WorkerId(worker))
            self.updates.leave(WorkerId(worker))


@contextmanager
def _quiet() -> Iterator[None]:
    """Log nothing below a warning: what is done again was logged the first time."""
    names = (
        "shoal.master.work.record",
        "shoal.master.job.phase_machine",
        "shoal.master.job.task_outcomes",
    )
    loggers = [logging.getLogger(name) for name in names]
    levels = [each.level for each in loggers]
    for each in loggers:
        each.setLevel(logging.WARNING)
    try:
        yield
    finally:
        for each, level in zip(loggers, levels, strict=True):
            each.setLevel(level)
