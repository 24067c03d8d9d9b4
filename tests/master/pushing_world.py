"""Servers that count what is pushed to them, and workers, that die at random around a job.

A record is a push, as in tests/master/peers.py. What a server has of each record is the truth,
to which the job's own account is compared: by parts of the rows, each of one server, which a job
that goes on with another number of servers has elsewhere.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from shoal.config.job import JobConfig
from shoal.master.job.checkpoints.kept_checkpoints import Taken
from shoal.master.job.instructions import Assignment, ConfirmServers, FenceWorker, StartProcess
from shoal.master.journal.events import Event, RecordedJob
from shoal.master.journal.resume import merged
from shoal.master.work.accounts.applied import AppliedPush, LastPush
from shoal.master.work.ids import ServerId, WorkerId
from shoal.master.work.outcomes import DataDescribed, Done, Heartbeat
from shoal.master.work.phases import Phase
from shoal.master.work.units import Source, Task
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError
from tests.master.strategies import exited

Record = tuple[int, str, int]
"""Epoch, source, position."""

PARTS = 6
"""Of the rows, so that 1, 2 and 3 servers have whole parts."""


@dataclass
class Held:
    """What a server has: of each record how often, and of each worker the last push.

    before: the same of each part that it has, in the model that the job was resumed from with
    another number of servers.
    """

    records: Counter[Record] = field(default_factory=Counter)
    last: dict[WorkerId, LastPush] = field(default_factory=dict)
    before: dict[int, Counter[Record]] = field(default_factory=dict)

    def of(self, part: int) -> Counter[Record]:
        """What it has of the records' pushes in one part of the rows."""
        return self.records + self.before.get(part, Counter())


def parts_of(server: int, servers: int) -> range:
    """The parts of the rows that a server holds."""
    return range(server * PARTS // servers, (server + 1) * PARTS // servers)


def held_by(held: list[Held], servers: int) -> list[Held]:
    """What so many servers hold that read the shards of others: no push counts as applied there."""
    found = {}
    for server, each in enumerate(held):
        found |= {part: each.of(part) for part in parts_of(server, len(held))}
    return [
        Held(before={part: found[part] for part in parts_of(server, servers)})
        for server in range(servers)
    ]


@dataclass
class Server:
    """history: after each push. saved: in checkpoints, by number.

    restored: the number of the one that it has restored.
    """

    incarnation: int = 0
    restored: int = 0
    up: bool = True
    held: Held = field(default_factory=Held)
    history: list[Held] = field(default_factory=list)
    saved: dict[int, Held] = field(default_factory=dict)
    fenced: dict[WorkerId, int] = field(default_factory=dict)
    met: set[tuple[WorkerId, int]] = field(default_factory=set)
    registered: Callable[[], None] = lambda: None  # its last call to register

    def take(self, push: LastPush, record: Record) -> None:
        """Apply a push, once."""
        before = self.held.last.get(push.worker)
        if before is not None and (before.incarnation, before.sequence) >= (
            push.incarnation,
            push.sequence,
        ):
            return
        self.held = replace(
            self.held,
            records=self.held.records + Counter([record]),
            last=self.held.last | {push.worker: push},
        )
        self.history.append(self.held)


@dataclass
class Worker:
    """A process. task, done: at work. waiting: servers that the push under way has to reach."""

    id: WorkerId
    incarnation: int
    told: dict[ServerId, LastPush] = field(default_factory=dict)
    task: Task | None = None
    ahead: Task | None = None
    done: int = 0
    sequence: int = 0
    waiting: list[ServerId] | None = None
    registered: bool = False


class PushingWorld:
    """A job of `records` records an epoch, and its world. draw(n) is from 0 to n-1.

    left: how many of these, the first ones, feed leaves: the others are in no push.
    """

    def __init__(
        self,
        config: JobConfig,
        draw: Callable[[int], int],
        records: int = 24,
        left: int | None = None,
    ) -> None:
        self.draw = draw
        self.left = records if left is None else left
        self.events: list[Event] = []
        self.job = RecordedJob(config, self.events.append)
        self.servers: dict[ServerId, Server] = {}
        self.workers: dict[WorkerId, Worker] = {}
        self.fences: list[FenceWorker] = []
        self.now = 0.0
        self.number = 0
        self.fixing: dict[ServerId, Held] | None = None
        # Checkpoints by number: what each server had that wrote it.
        self.taken: dict[int, list[Held]] = {}
        self.times_resumed = 0
        self.records = records
        self.job.begin(self.now)
        self.settle()
        for server in self.job.members.servers:
            self._register(server)
        self.describe()

    def describe(self) -> None:
        """A worker says what data there is."""
        first = self.workers[WorkerId(0)]
        who = first.id, first.incarnation
        self.job.worker_registered(*who, self.now)
        task = self.job.task_wanted(*who, self.now)
        assert isinstance(task, Task)
        assert task.kind == pb.DESCRIBE_DATA
        data = DataDescribed(training=(Source("s", self.records),))
        self.job.task_reported(*who, task.id, data, 0, self.now)

    def settle(self) -> None:
        """Do what the job wants done."""
        for each in self.job.take_instructions():
            if isinstance(each, FenceWorker):
                self.fences.append(each)
            elif isinstance(each, ConfirmServers):
                told = [tuple(server.held.last.values()) for server in self.servers.values()]
                self.job.servers_confirmed(told, self.now)
            elif isinstance(each, StartProcess) and isinstance(each.start.process, WorkerId):
                worker = each.start.process
                self.workers[worker] = Worker(worker, each.start.incarnation)
            elif isinstance(each, StartProcess):
                assert isinstance(each.start.process, ServerId)
                if (server := self.servers.get(each.start.process)) is None:
                    self.servers[each.start.process] = Server(each.start.incarnation)
                else:
                    server.incarnation, server.up = each.start.incarnation, False

    def step(self, choices: tuple[Callable[[Any], None], ...]) -> None:
        """One thing happens."""
        self.now += 1.0
        choices[self.draw(len(choices))](self)
        self.settle()

    # ------------------------------------------------------------ workers

    def work(self) -> None:
        """A worker goes on: to the next server with its push, the next record, task or report."""
        if not self.workers:
            return
        worker = list(self.workers.values())[self.draw(len(self.workers))]
        who = worker.id, worker.incarnation
        if not worker.registered:
            with contextlib.suppress(WireError):  # it waits for servers
                self.job.worker_registered(*who, self.now)
                worker.registered = True
        elif worker.task is None:
            task = self.job.task_wanted(*who, self.now)
            worker.task, worker.done = (task if isinstance(task, Task) else None), 0
        elif worker.waiting:
            self._push(worker, worker.waiting[0])
        elif worker.done < worker.task.records:
            assert worker.task.span is not None
            if worker.task.span.start + worker.done < self.left:
                worker.sequence += 1
                worker.waiting = list(self.servers)
            worker.done += 1
        elif worker.ahead is None and self.draw(2):
            ahead = self.job.task_ahead_wanted(*who, worker.task.id, self.now)
            worker.ahead = ahead if isinstance(ahead, Task) else None
        else:
            outcome = Done()
            arguments = worker.task.id, outcome, 0, self.now
            # Now and then the one after that is asked for in the same call.
            held = worker.ahead.id if worker.ahead is not None and self.draw(2) else 0
            answer = self.job.report_made(*who, *arguments, acknowledged=worker.sequence, held=held)
            after = answer.task if isinstance(answer, Assignment) else None
            worker.task, worker.ahead, worker.done = worker.ahead, after, 0

    def _push(self, worker: Worker, at: ServerId) -> None:
        server, task = self.servers[at], worker.task
        assert worker.waiting
        assert task is not None
        assert task.span is not None
        if not server.up:
            return
        key = worker.id, worker.incarnation
        if server.incarnation and key not in server.met:
            none = LastPush(*key, 0, 0, 0)
            self.job.worker_met(at, server.incarnation, worker.told.get(at, none), self.now)
            server.met.add(key)
        push = LastPush(*key, worker.sequence, task.id, worker.done)
        if server.fenced.get(worker.id, -1) < worker.incarnation:
            record = task.epoch, task.span.source, task.span.start + worker.done - 1
            server.take(push, record)
            worker.told[at] = push
            worker.waiting.pop(0)

    def beat(self) -> None:
        """A worker says how far it is."""
        for worker in self.workers.values():
            if worker.task is not None and self.draw(2):
                lacking = bool(worker.waiting)
                beat = Heartbeat(
                    worker.task.id,
                    worker.done - lacking,
                    acknowledged=worker.sequence - lacking,
                )
                self.job.heartbeat(worker.id, worker.incarnation, beat, self.now)

    def worker_dies(self) -> None:
        """A worker is killed."""
        if self.workers:
            worker = list(self.workers)[self.draw(len(self.workers))]
            dead = self.workers.pop(worker)
            self.job.process_exited(exited(worker, dead.incarnation), self.now)

    def fence(self) -> None:
        """All servers are there, and take no more pushes of a dead worker."""
        if self.fences and all(server.up for server in self.servers.values()):
            fence = self.fences.pop(0)
            pushes = []
            for server in self.servers.values():
                server.fenced[fence.worker] = fence.incarnation
                last = server.held.last.get(fence.worker)
                if last is None or last.incarnation != fence.incarnation:
                    pushes.append(AppliedPush(0, 0, 0))
                else:
                    pushes.append(AppliedPush(last.sequence, last.task, last.records_done))
            self.job.fenced(fence.worker, fence.incarnation, pushes, self.now)

    # ------------------------------------------------------------ servers

    def server_dies(self) -> None:
        """A server is killed."""
        at = ServerId(self.draw(len(self.servers)))
        server = self.servers[at]
        if server.up:
            if self.fixing is not None:
                self.fixing = None
                self.job.checkpoint_failed(f"{at} was killed", False, self.now)
            self.job.process_exited(exited(at, server.incarnation), self.now)

    def server_returns(self) -> None:
        """A server restores its newest checkpoint, and some of its log or nothing."""
        for at, server in self.servers.items():
            if not server.up and self.draw(2):
                while server.saved and not self.draw(8):
                    del server.saved[max(server.saved)]  # it is damaged
                offered = [each.number for each in self.job.checkpoints.kept.offered(at)]
                readable = sorted(server.saved.keys() & offered)
                while readable and not self.draw(8):
                    readable.pop()  # a resumed job can read it
                complete = readable == sorted(each.number for each in self.job.checkpoints.kept.all)
                newest = max(readable, default=0)
                base = server.saved[newest] if newest else Held()
                server.restored = newest
                after = [base, *_after(server.history, base)]
                # The log does not reach back beyond the newest that was complete.
                server.held = after[self.draw(len(after)) if complete else 0]
                # What was applied beyond it is gone from its past, too.
                server.history = server.history[: _position(server.history, server.held)]
                server.met, server.up = set(), True
                self._register(at)
                for worker, member in self.job.members.workers.items():
                    for over, incarnation in self.job.members.fences():
                        if over == worker and member:
                            server.fenced[worker] = incarnation

    def _register(self, at: ServerId) -> None:
        server = self.servers[at]
        incarnation, has = server.incarnation, tuple(server.held.last.values())
        restored = server.restored

        def call() -> None:
            self.job.server_registered(
                at, incarnation, "host", self.now, has=has, checkpoint=restored
            )

        call()
        server.registered = call

    def server_repeats(self) -> None:
        """A server's call to register comes once more, however late."""
        with contextlib.suppress(WireError):  # its incarnation is over
            self.servers[ServerId(self.draw(len(self.servers)))].registered()

    def resume(self, servers: int = 0) -> None:
        """All are killed, and the job goes on from the newest checkpoint that is whole.

        servers: so many from now on; 0: as many as before.
        """
        whole = [
            each
            for each in self.job.checkpoints.kept.all
            if all(each.number in server.saved for server in self.servers.values())
        ]
        if not whole or self.job.phases.phase == Phase.SUCCEEDED:
            return
        servers = servers or len(self.servers)
        # A server may find out that the newest is damaged, as it restores it; of one with another
        # number of servers the master knows before.
        if len(whole) > 1 and servers == len(self.servers) and not self.draw(4):
            damaged = whole.pop()
            self._resume(damaged, servers)
            at, member = list(self.job.members.servers.items())[self.draw(servers)]
            number = damaged.number
            self.job.checkpoint_refused(at, member.incarnation, number, "damaged", self.now)
            assert self.job.halted
        self._resume(whole[-1], servers)
        self._restore(whole[-1].number)
        self.describe()

    def resume_with_others(self) -> None:
        """As `resume`, with any number of servers."""
        self.resume(1 + self.draw(3))

    def _resume(self, taken: Taken, servers: int) -> None:
        """Have the job go on from this checkpoint."""
        self.times_resumed += 1
        self.workers.clear()
        self.fences.clear()
        self.fixing = None
        shards = tuple(tuple(held.last.values()) for held in self.taken[taken.number])
        assert all(self.job.work.copies.unreported(shard) is None for shard in shards)
        self.job.resumed(
            f"resumed {self.times_resumed}",
            {"servers": str(servers)},
            taken,
            tuple(number for number in self.taken if number > taken.number),
            merged(self.job.work.copies.in_shards(taken.number, shards)),
            self.now,
            "",
            shards,
        )
        self.settle()

    def _restore(self, number: int) -> None:
        """The servers that the job goes on with restore this checkpoint."""
        count = len(self.job.members.servers)
        held = self.taken[number]
        if len(held) != count:
            held = held_by(held, count)
        before, self.servers = self.servers, {}
        for at, member in self.job.members.servers.items():
            saved = {number: held[at.index]}
            if len(before) == count:
                saved = {n: each for n, each in before[at].saved.items() if n < number} | saved
            self.servers[at] = Server(member.incarnation, held=held[at.index], saved=saved)
            self.servers[at].history, self.servers[at].restored = [held[at.index]], number
            self._register(at)

    def checkpoint(self) -> None:
        """The next part of a checkpoint: begun, a server's shard, or all of it."""
        if not all(server.up for server in self.servers.values()):
            return
        if self.fixing is None:
            self.fixing = {}
            self.job.checkpoint_begun(self.now)
        elif len(self.fixing) < len(self.servers):
            at = ServerId(len(self.fixing))
            self.fixing[at] = self.servers[at].held
        else:
            self.number += 1
            self.job.checkpoint_fixed(self.now)
            self.job.checkpoint_taken(Taken(self.number, 0, 0, 0.0), False, self.now)
            kept = {each.number for each in self.job.checkpoints.kept.all}
            self.taken[self.number] = list(self.fixing.values())
            for at, held in self.fixing.items():
                saved = self.servers[at].saved
                saved[self.number] = held
                self.servers[at].saved = {n: each for n, each in saved.items() if n in kept}
            self.fixing = None

    # ------------------------------------------------------------ the end

    def finish(self) -> None:
        """Nobody dies any more, and the job comes to its end."""
        for _ in range(20_000):
            if self.job.ended:
                return
            self.now += 1.0
            for do in (
                PushingWorld.beat,
                PushingWorld.work,
                PushingWorld.fence,
                PushingWorld.server_returns,
            ):
                do(self)
                self.settle()
            self.job.servers.tick()
            self.settle()
        raise AssertionError(f"the job does not end: {self.job.phases.phase}")

    def account(self) -> list[str]:
        """Where the job's account of a record is not what a server has."""
        epochs, servers = self.job.config.epochs, len(self.servers)
        once = {(e, "s", r): 1 for e in range(epochs) for r in range(self.left)}
        told = [Counter(once) for _ in range(PARTS)]
        for each in self.job.work.copies.differences():
            change = 1 if each.kind == "repeated" else -1
            for part in parts_of(each.server, each.servers):
                for record in range(each.span.start, min(each.span.end, self.left)):
                    told[part][each.epoch, each.span.source, record] += change
        wrong = []
        for at, server in self.servers.items():
            for part in parts_of(at.index, servers):
                has = server.held.of(part)
                for record in told[part].keys() | has.keys():
                    if told[part][record] != has[record]:
                        said = f"{has[record]} times; told: {told[part][record]}"
                        wrong.append(f"{at} has {record} {said}")
        return wrong


def _position(history: list[Held], held: Held) -> int:
    """How many of the states came up to this one, by identity."""
    return next((n + 1 for n, each in enumerate(history) if each is held), 0)


def _after(history: list[Held], base: Held) -> list[Held]:
    return history[_position(history, base) :]


EVERYTHING = (
    *[PushingWorld.work] * 12,
    *[PushingWorld.beat] * 2,
    *[PushingWorld.checkpoint] * 3,
    PushingWorld.worker_dies,
    *[PushingWorld.fence] * 2,
    PushingWorld.server_dies,
    *[PushingWorld.server_returns] * 2,
    PushingWorld.server_repeats,
)

RESUMED = (*EVERYTHING, *EVERYTHING, PushingWorld.resume)
"""The job is killed whole as well; what it has lost by then may be in an older checkpoint."""

REDIVIDED = (*EVERYTHING, *EVERYTHING, PushingWorld.resume, PushingWorld.resume_with_others)
"""It also goes on with other numbers of servers."""
