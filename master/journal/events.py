"""The events that changed a job, as values that can be written down and replayed.

An event is one call of a method of job.py that changed the job's state, with its
arguments. Doing the events of a journal again, in order, on a new job of the same
configuration makes the same job. No I/O; the file is journal.py's.

The constant reports of workers (records done, versions, clocks) make no event: the next
event carries the reports since the one before it. Reports that will come again anyway
(loss, stage times, the servers' status) are not kept.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import inspect
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message import Message

from shoal.config.job import JobConfig
from shoal.errors import UserError
from shoal.master.job import updates
from shoal.master.job.checkpoints import kept_checkpoints
from shoal.master.job.instructions import ClockAnswer, Finished, HeartbeatAnswer, Wait
from shoal.master.job.job import Job
from shoal.master.job.members.launcher import Exited
from shoal.master.work import failures, ids, outcomes
from shoal.master.work import units as work
from shoal.master.work.accounts import applied, spans
from shoal.master.work.ids import WorkerId
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError

_VALUES: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        ids.WorkerId,
        ids.ServerId,
        ids.Start,
        Exited,
        failures.Failure,
        work.Span,
        work.Source,
        work.FoundSource,
        applied.AppliedPush,
        applied.LastPush,
        kept_checkpoints.Taken,
        spans.Interval,
        updates.Gradient,
        outcomes.Done,
        outcomes.Trained,
        outcomes.DataDescribed,
        outcomes.StatesComputed,
        outcomes.MetricsComputed,
    )
}
"""The classes that may be among an event's arguments, by the name that is written."""


@dataclass(frozen=True)
class Event:
    """One change of a job.

    method: of Job. time: in the job's seconds. arguments: of the call, encoded, without
    the time. heard: since the event before: {"version": highest seen, "records": {task:
    records done}, "pushes": {worker: the last that all servers have}, "clocks": {worker:
    clock}, "slowest": clock, "waiting": workers that found no task}. task: the one that was
    leased, or 0.
    """

    method: str
    time: float
    arguments: dict[str, Any] = field(default_factory=dict)
    heard: dict[str, Any] = field(default_factory=dict)
    task: int = 0


def encode(value: Any) -> Any:
    """An argument as plain JSON values."""
    if isinstance(value, Message):
        text = base64.b64encode(value.SerializeToString()).decode()
        return {"$message": value.DESCRIPTOR.name, "bytes": text}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        name = type(value).__name__
        assert _VALUES.get(name) is type(value), f"{name} cannot be written down"
        fields = {f.name: encode(getattr(value, f.name)) for f in dataclasses.fields(value)}
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
    kind = _VALUES[value["$value"]]
    return kind(**{name: decode(each) for name, each in value.items() if name != "$value"})


EVENTS: Mapping[str, Callable[..., bool] | None] = {
    "begin": None,
    "master_restarted": None,
    "scale": None,
    "autoscaled": None,
    "worker_replaced": None,
    "scale_servers": lambda job, servers, why: servers != job.moves.servers_wanted,  # noqa: ARG005
    "move_wanted": None,
    "move_begun": None,
    "move_committed": None,
    "move_ended": None,
    "move_failed": None,
    "noted": None,
    "training_allowed": None,
    "worker_given_back": None,
    "workers_called_back": None,
    "server_registered": None,
    "worker_registered": None,
    "taken_for_dead": None,
    "process_waits": None,
    "server_hung": None,
    "process_exited": None,
    "process_failed": None,
    "fenced": None,
    "task_wanted": None,
    "task_ahead_wanted": None,
    "task_reported": None,
    "gradients_left_out": None,
    "pipeline_deepened": None,
    "worker_waits": None,
    "gradient_offered": None,
    "update_applied": None,
    "version_seen": lambda job, version: job.phases.starts_round(version),
    "worker_met": None,
    "servers_confirmed": None,
    "protection_changed": None,
    "resumed": None,
    "checkpoint_begun": None,
    "checkpoint_fixed": None,
    "checkpoint_taken": None,
    "checkpoint_recovered": None,
    "checkpoints_found": lambda job, there: bool(there or job.checkpoints.kept.all),
    "checkpoint_failed": None,
    "checkpoint_refused": None,
    "fail": lambda job, failure: not job.ended,  # noqa: ARG005
    "stop": lambda job, reason: not job.ended,  # noqa: ARG005
}
"""Every event there is: the method of Job whose call it is, with whether this call will be one.

A name that is not here is an error: in a journal, in what follows events (`known_events`), and
where no such method is left.
"""


def known_events(names: Iterable[str]) -> None:
    """Raise LookupError for a name that is no event's."""
    unknown = sorted(set(names) - EVENTS.keys())
    if unknown:
        raise LookupError(f"no events of a job: {', '.join(unknown)}")


_TOLD_INSIDE = frozenset({"training_allowed", "worker_given_back"})
"""Those that are events also where another call makes them, which may itself be none."""


class RecordedJob(Job):
    """A job that tells of its changes.

    note: is given each event, as part of the call that made it.
    """

    def __init__(self, config: JobConfig, note: Callable[[Event], object]) -> None:
        super().__init__(config)
        self._note = note
        self._inside = False
        self._replaying = False
        self._progressed: set[WorkerId] = set()
        self._stepped: set[WorkerId] = set()
        self._waiting: set[WorkerId] = set()
        self._told_version = 0

    def listen(self, note: Callable[[Event], object]) -> None:
        """Tell `note` of the events from now on."""
        self._note = note

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_note": None, "_inside": False, "_replaying": False}

    def heartbeat(
        self, worker: WorkerId, incarnation: int, beat: outcomes.Heartbeat, now: float
    ) -> HeartbeatAnswer:
        """See Job."""
        self._progressed.add(worker)
        return super().heartbeat(worker, incarnation, beat, now)

    def clock_reported(
        self, worker: WorkerId, incarnation: int, clock: int, now: float
    ) -> ClockAnswer:
        """See Job."""
        self._stepped.add(worker)
        return super().clock_reported(worker, incarnation, clock, now)

    def _heard(self) -> dict[str, Any]:
        heard: dict[str, Any] = {}
        if self.phases.version != self._told_version:
            heard["version"] = self.phases.version
        held = (self.leases.held(worker) for worker in self._progressed)
        records = {str(task.id): self.work.done(task) for task in held if task is not None}
        if any(records.values()):
            heard["records"] = records
        members = (self.members.workers.get(worker) for worker in self._progressed)
        told = {
            str(member.id.index): self.work.copies.told(member.id, member.incarnation)
            for member in members
            if member is not None
        }
        if any(told.values()):
            heard["pushes"] = told
        if self._stepped:
            heard["clocks"] = {str(w.index): self.clocks.of(w) for w in self._stepped}
            heard["slowest"] = self.clocks.slowest
        if self._waiting:
            heard["waiting"] = [worker.index for worker in self._waiting]
        return heard

    def _recorded(
        self, method: Callable[..., Any], worth: Callable[..., bool] | None, bound: dict[str, Any]
    ) -> Any:
        arguments = {name: value for name, value in bound.items() if name not in ("self", "now")}
        inside = self._inside
        if self._replaying or (inside and method.__name__ not in _TOLD_INSIDE):
            return method(**bound)
        if worth is not None and not worth(self, **arguments):
            return method(**bound)
        heard = self._heard()
        self._inside = True
        try:
            result = method(**bound)
        finally:
            self._inside = inside
        if isinstance(result, (Wait, Finished)):
            if isinstance(result, Wait):
                self._waiting.add(arguments["worker"])
            return result
        leased = result.id if isinstance(result, work.Task) else 0
        encoded = {name: encode(value) for name, value in arguments.items()}
        self._progressed.clear()
        self._stepped.clear()
        self._waiting.clear()
        self._told_version = self.phases.version
        # Last: whoever is told may look at the job as the event has left it.
        self._note(Event(method.__name__, bound["now"], encoded, heard, leased))
        return result

    def replay(self, events: Iterable[Event]) -> float:
        """Do the events again, in order, on this new job; returns the time of the last.

        What was to be done in the world is dropped; `master_restarted` says what of it
        is still to be done. Raises UserError where an event leads elsewhere than the
        first time: the journal is another version's.
        """
        time = 0.0
        self._replaying = True
        try:
            with _quiet():
                for event in events:
                    self._replay(event)
                    self.take_instructions()
                    time = event.time
        except (WireError, LookupError, TypeError, AttributeError, AssertionError) as error:
            raise UserError(
                f"the journal's event {event} cannot be done again by this version of shoal: "
                f"{error!r}"
            ) from error
        finally:
            self._replaying = False
            self._told_version = self.phases.version
        return time

    def hear(self, event: Event) -> None:
        """Take what was heard before an event that is to be done again."""
        self.phases.version = event.heard.get("version", self.phases.version)
        for task, done in event.heard.get("records", {}).items():
            self.work.progress_of(int(task), done)
        for index, number in event.heard.get("pushes", {}).items():
            worker = WorkerId(int(index))
            incarnation = self.members.workers[worker].incarnation
            self.work.copies.acknowledged(worker, incarnation, number)
        for worker, clock in event.heard.get("clocks", {}).items():
            self.clocks.advance(WorkerId(int(worker)), clock)
        self.clocks.allowed(event.heard.get("slowest", 0))
        for worker in event.heard.get("waiting", ()):
            self.clocks.leave(WorkerId(worker))
            self.updates.leave(WorkerId(worker))

    def _replay(self, event: Event) -> None:
        known_events([event.method])
        self.hear(event)
        arguments = {name: decode(value) for name, value in event.arguments.items()}
        result = getattr(self, event.method)(**arguments, now=event.time)
        if event.task != getattr(result, "id", 0):
            raise LookupError(f"now the answer is {result}")


def _make_recorded(name: str, worth: Callable[..., bool] | None) -> None:
    method = getattr(Job, name)
    signature = inspect.signature(method)

    @functools.wraps(method)
    def call(self: RecordedJob, *arguments: Any, **named: Any) -> Any:
        bound = signature.bind(self, *arguments, **named).arguments
        return self._recorded(method, worth, bound)

    setattr(RecordedJob, name, call)


for _name, _worth in EVENTS.items():
    _make_recorded(_name, _worth)


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
