"""Jobs that live through random events, and what of a job a new master must know."""

from __future__ import annotations

import contextlib
import enum
import random
from collections import deque
from collections.abc import Callable
from dataclasses import is_dataclass
from functools import cached_property
from typing import Any, ClassVar

from google.protobuf.message import Message

from shoal.config.job import START_SECONDS, JobConfig
from shoal.master.job.events import (
    GradientOffered,
    JobBegun,
    JobStopped,
    ProcessFailed,
    ProtectionChanged,
    ServerRegistered,
    ServersConfirmed,
    TaskAheadWanted,
    TaskReported,
    UpdateApplied,
    WorkerFenced,
    WorkerRegistered,
)
from shoal.master.job.heard import HEARD
from shoal.master.job.instructions import (
    ApplyUpdate,
    FenceWorker,
    Instruction,
    KillProcess,
    StartProcess,
)
from shoal.master.job.members.members import ProcessState
from shoal.master.job.updates import Gradient
from shoal.master.journal.events import Entry, RecordedJob
from shoal.master.journal.records import entry_of, payload_of
from shoal.master.work import outcomes
from shoal.master.work.accounts.applied import AppliedPush
from shoal.master.work.failures import Failure
from shoal.master.work.ids import ServerId, Start, WorkerId
from shoal.master.work.phases import Phase
from shoal.master.work.units import FoundSource, Source, Span, Task
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError
from tests.master.strategies import confirm, exited, heartbeat

HEARD_AGAIN = {
    *("_stage_seconds", "throughput", "loss", "_instructions"),
    *("_joined", "_decided", "_blocks", "_orders", "_steps_per_epoch", "_sought"),
    *("_handlers", "_note", "_progressed", "_stepped", "_waiting", "_told_version"),
}
"""What a new master learns by itself, by the names of the fields, beside those of HEARD."""


def state(
    value: Any, *, skip: frozenset[str] = frozenset(), known: dict[int, Any] | None = None
) -> Any:
    """All that `value` is made of, as plain values to be compared.

    known: by id, what an object was found to be: parts of a job know each other.
    """
    known = {} if known is None else known

    def inner(part: Any) -> Any:
        return state(part, skip=skip, known=known)

    if isinstance(value, Message):
        return value.SerializeToString(deterministic=True)
    if isinstance(value, dict):
        return {str(key): inner(each) for key, each in value.items()}
    if isinstance(value, (list, tuple, deque)):
        return [inner(each) for each in value]
    if isinstance(value, (set, frozenset)):
        return sorted(str(each) for each in value)
    slots = getattr(type(value), "__slots__", ()) if is_dataclass(value) else ()
    plain = isinstance(value, enum.Enum) or callable(value)
    if (slots or hasattr(value, "__dict__")) and not plain:
        if id(value) not in known:
            fields = {name: getattr(value, name) for name in slots} or vars(value)
            left_out = HEARD_AGAIN | skip | HEARD.get(type(value), frozenset())
            attributes = vars(type(value)).items()
            # Computed once when it is asked for, which is no state.
            left_out |= {name for name, each in attributes if isinstance(each, cached_property)}
            known[id(value)] = {
                name: inner(each) for name, each in fields.items() if name not in left_out
            }
        return known[id(value)]
    return repr(value)


def differences(
    left: Any, right: Any, path: str = "job", compared: set[tuple[int, int]] | None = None
) -> list[str]:
    """Where two values of `state` differ."""
    compared = set() if compared is None else compared
    if (id(left), id(right)) in compared:
        return []  # said where it was met first
    compared.add((id(left), id(right)))
    if isinstance(left, dict) and isinstance(right, dict) and left.keys() == right.keys():
        pairs = [(f"{path}.{key}", left[key], right[key]) for key in left]
    elif isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        pairs = [(f"{path}[{i}]", a, b) for i, (a, b) in enumerate(zip(left, right, strict=True))]
    else:
        return [] if left == right else [f"{path}: {left} is not {right}"]
    return [each for name, a, b in pairs for each in differences(a, b, name, compared)]


class RandomJob:
    """A job and its world: processes that start, speak, lie silent, die, and are fenced."""

    def __init__(self, config: JobConfig, seed: int) -> None:
        self.events: list[Entry] = []
        self.job = RecordedJob(config, self.events.append)
        self.draw = random.Random(seed)
        self.now = 1.0
        self.running: set[Start] = set()
        self.fences: list[FenceWorker] = []
        self.updates: deque[int] = deque()
        self.gradients = self.pushes = 0
        self.done: dict[WorkerId, int] = {}
        self.version = 0
        self.clock: dict[WorkerId, int] = {}

    def adopt(self, job: RecordedJob) -> None:
        """Live on with another job, which is new too; its own listener hears first."""
        note = job._note

        def told(entry: Entry) -> None:
            note(entry)
            self.events.append(entry)

        job.listen(told)
        self.job = job

    def step(self) -> None:
        """One thing happens; a call that is refused is among the things."""
        self.now += self.draw.random()
        if self.job.members.workers[WorkerId(0)].state == ProcessState.PLANNED:
            self.job.on(JobBegun(), self.now)
        else:
            self.happens()
        for each in self.job.take_instructions():
            self.instructed(each)

    def happens(self) -> None:
        """One of the things that can happen to a job that has begun."""
        with contextlib.suppress(WireError):
            self.draw.choice(self.CHOICES)(self)

    def instructed(self, each: Instruction) -> None:
        """What the job wants done in its world."""
        if isinstance(each, StartProcess):
            self.running.add(each.start)
        elif isinstance(each, FenceWorker):
            self.fences.append(each)
        elif isinstance(each, ApplyUpdate):
            self.updates.append(each.update.number)
        elif isinstance(each, KillProcess) and each.start in self.running:
            self._exit(each.start)

    def _any_worker(self) -> tuple[WorkerId, int]:
        workers = [s for s in self.running if isinstance(s.process, WorkerId)]
        if not workers or self.draw.random() < 0.02:
            return WorkerId(self.draw.randrange(3)), self.draw.randrange(3)
        start = self.draw.choice(sorted(workers, key=str))
        assert isinstance(start.process, WorkerId)
        return start.process, start.incarnation

    def _held(self, worker: WorkerId) -> Task | None:
        member = self.job.members.workers.get(worker)
        return member.held if member is not None else None

    def _register(self) -> None:
        start = self.draw.choice(sorted(self.running, key=str) or [Start(WorkerId(9), 0)])
        if isinstance(start.process, ServerId):
            self.job.on(
                ServerRegistered(start.process, start.incarnation, f"host:{start}"), self.now
            )
        else:
            self.job.on(WorkerRegistered(start.process, start.incarnation), self.now)

    def _ask(self) -> None:
        worker, incarnation = self._any_worker()
        task = self.job.task_wanted(worker, incarnation, self.now)
        if isinstance(task, Task):
            self.done[worker] = 0

    def _ask_ahead(self) -> None:
        worker, incarnation = self._any_worker()
        task = self._held(worker)
        if not self.job.config.sync:
            self.job.on(TaskAheadWanted(worker, incarnation, task.id if task else 1), self.now)

    def _beat(self) -> None:
        worker, incarnation = self._any_worker()
        self.version += self.draw.randrange(3)
        task = self._held(worker)
        if task is not None:
            self.done[worker] = self.draw.randint(self.done.get(worker, 0), task.records)
        self.clock[worker] = self.clock.get(worker, 0) + self.draw.randrange(3)
        self.job.clock_reported(worker, incarnation, self.clock[worker], self.now)
        beat = heartbeat(
            task.id if task else 0,
            self.done.get(worker, 0),
            version=self.version,
            loss=0.5,
            loss_batches=1,
            acknowledged=self._acknowledged(),
        )
        self.job.heartbeat(worker, incarnation, beat, self.now)

    def _acknowledged(self) -> int:
        self.pushes += self.draw.randrange(3)
        return self.pushes

    def _offer(self) -> None:
        worker, incarnation = self._any_worker()
        task = self._held(worker)
        if not self.job.config.sync or task is None or task.kind != pb.TRAIN:
            return
        update = self.job.update_wanted(worker, incarnation, self.now)
        if update is not None:
            self.gradients += 1
            gradient = Gradient(worker, incarnation, self.gradients)
            update -= self.draw.random() < 0.1  # a late one
            done = self.draw.randint(0, task.records)
            self.job.on(GradientOffered(gradient, update, task.id, done), self.now)

    def _update(self) -> None:
        if self.updates:
            self.version += 1
            self.job.on(UpdateApplied(self.updates.popleft(), self.version), self.now)

    def _report(self) -> None:
        worker, incarnation = self._any_worker()
        task = self._held(worker)
        outcome: outcomes.Outcome = outcomes.Done()
        if task is not None and task.kind == pb.DESCRIBE_DATA:
            best = pb.BestRule(monitor="m", maximize=True)
            rules = pb.TrainingRules(plateau=pb.PlateauRule(best=best, patience=1))
            if self.draw.random() < 0.7:
                rules.export.CopyFrom(best)
                rules.checkpoint.CopyFrom(best)
            # Two parts of four tasks and one more, of training; one of the others.
            more = tuple(FoundSource(f"u{i}", 16.0) for i in range(self.draw.choice((0, 5))))
            outcome = outcomes.DataDescribed(
                *[(Source("s", 25, ((12, 2), (1, 1))), Source("t", 8))] * 3,
                rules,
                more_training=more,
                more_validation=more[:2],
                more_prediction=more[:2],
            )
        elif task is not None and task.kind == pb.DESCRIBE_SOURCES:
            sources = tuple(Source(name, 7 + len(task.sources)) for name in task.sources)
            outcome = outcomes.DataDescribed(**{task.data: sources})
        elif task is not None and task.kind == pb.LIST_SOURCES:
            names = {f"v{self.draw.randrange(12)}" for _ in range(self.draw.randrange(4))}
            come = [
                FoundSource(each, 1.0, self.draw.choice(("1", "1", "1", "2", "")))
                for each in sorted(names)
            ]
            outcome = outcomes.DataDescribed(more_training=tuple(come), token=f"{self.now}")
        elif task is not None and task.kind == pb.EVALUATE:
            variable = pb.DoubleArray(shape=[2], values=[1.0, 2.0])
            metric = pb.MetricState(name="m", variables=[variable])
            outcome = outcomes.StatesComputed(pb.MetricStates(metrics=[metric]))
        elif task is not None and task.kind == pb.FINISH_EVALUATION:
            outcome = outcomes.MetricsComputed({"m": self.draw.choice((0.4, 0.5, 0.6))})
        elif task is not None and task.kind == pb.TRAIN and self.job.config.progressive_steps:
            variable = pb.DoubleArray(shape=[1], values=[float(task.records)])
            metric = pb.MetricState(name="m", variables=[variable])
            told = pb.MetricStates(metrics=[metric]), task.records
            outcome = outcomes.Done("", *(told if self.draw.random() < 0.8 else ()))
        if self.draw.random() < 0.05:
            kind = pb.USER_CODE if self.draw.random() < 0.1 else pb.INTERNAL
            outcome = Failure(kind, "trouble\nof a kind", "Traceback")
        trained = outcomes.Trained()
        if task is not None and task.span is not None and self.draw.random() < 0.2:
            kind = pb.INTERNAL if self.draw.random() < 0.2 else pb.USER_CODE
            start = self.draw.randrange(task.span.start, task.span.end)
            span = Span(task.span.source, start, self.draw.randint(start + 1, task.span.end))
            outcome = Failure(kind, "a bad record", "Traceback", span)
            done = self.draw.randint(0, task.records - 1)
            trained = outcomes.Trained(done, self.draw.choice((done, task.records)))
        task_id = task.id if task is not None else self.draw.randrange(9)
        said = outcome, self.version, trained, self._acknowledged()
        self.job.on(TaskReported(worker, incarnation, task_id, *said), self.now)
        self.done.pop(worker, None)  # one leased ahead is at work now

    def _exit(self, start: Start) -> None:
        self.running.discard(start)
        # By a signal, or of itself, which may be held against its records.
        end = self.draw.choice(({}, {}, {"code": 3, "signal_number": None}))
        self.job.on(exited(start.process, start.incarnation, **end), self.now)

    def _worker_dies(self) -> None:
        if self.draw.random() < 0.3:
            worker, incarnation = self._any_worker()
            if Start(worker, incarnation) in self.running:
                self._exit(Start(worker, incarnation))

    def _fence(self) -> None:
        if not self.fences:
            return
        fence = self.fences.pop(0)
        task = self._held(fence.worker)
        pushes = [
            None
            if self.draw.random() < 0.1
            else AppliedPush(1, task.id if task else 0, self.draw.randint(0, 10))
            for _ in self.job.members.servers
        ]
        self.job.on(WorkerFenced(fence.worker, fence.incarnation, pushes), self.now)

    def _wait(self) -> None:
        if self.draw.random() < 0.05:
            self.now += self.draw.choice((31.0, 61.0, START_SECONDS / 2))
        self.job.tick(self.now)

    def _process_failed(self) -> None:
        if self.draw.random() < 0.1:
            worker, incarnation = self._any_worker()
            failure = Failure.internal("no more", "Traceback")
            self.job.on(ProcessFailed(Start(worker, incarnation), failure), self.now)

    def _protection(self) -> None:
        server = ServerId(self.draw.randrange(len(self.job.members.servers)))
        member = self.job.members.servers[server]
        absences = member.absences + self.draw.randrange(2)
        seconds = member.absent_seconds + self.draw.random()
        why = self.draw.choice(("", "its log is lost", "no log was begun"))
        self.job.on(ProtectionChanged(server, absences, seconds, why), self.now)

    def _confirm(self) -> None:
        if self.job.phases.phase == Phase.CONFIRMING:
            if self.draw.random() < 0.2:
                self.job.on(ServersConfirmed([None for _ in self.job.members.servers]), self.now)
            else:
                confirm(self.job, self.now)

    def _end(self) -> None:
        if self.draw.random() < 0.01:
            self.job.on(JobStopped("enough"), self.now)

    CHOICES: ClassVar[tuple[Callable[..., None], ...]] = (
        *[_register] * 3,
        *[_ask] * 5,
        *[_ask_ahead] * 3,
        *[_beat] * 4,
        *[_report] * 5,
        *[_offer] * 4,
        *[_update] * 2,
        _worker_dies,
        *[_fence] * 3,
        _wait,
        _process_failed,
        _protection,
        _confirm,
        _end,
    )


def plain(entry):
    """An event as its text gives it back."""
    return entry_of(payload_of(entry))
