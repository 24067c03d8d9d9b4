"""Which pushes have been applied: each exactly once, none of a replaced worker.

Owns push identities and fencing. Does not know what a push holds.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from shoal.native.answering import Answerer
from shoal.native.pushes import PushRecord
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError

_KEPT = {"incarnation": 0, "sequence": 0, "task": 0, "records_done": 0, "fenced": -1}
"""Fields of a record that outlive the process, and what they are before its first push."""

FROZEN = "rows are being moved to another server"


class PushRegister:
    """The last push applied of each worker.

    A worker sends its pushes one after another with rising sequence numbers, so the
    last number applied tells of every push whether it was applied.

    The lock of a worker's record is held while one of its pushes is applied. A retry that overtakes
    its original waits for it and then finds it applied, and a fence waits too.
    """

    def __init__(self, answerer: Answerer | None = None) -> None:
        """answerer: of the server, applies pushes without Python by the same records."""
        self._workers: dict[int, PushRecord] = {}
        self._answerer = answerer
        self._lock = threading.Lock()
        self._updating = threading.Lock()
        self.duplicates = 0
        self._closed = False
        # While frozen: of each worker, the last push that is let in.
        self._let_in: dict[int, tuple[int, int]] | None = None
        self._behind: set[int] = set()  # the workers whose last one of these has not come

    def close(self) -> None:
        """Take no more pushes: what a checkpoint has from now on is all there ever was."""
        self._closed = True
        self._tell_answerer()

    def freeze(self, until: Iterable[pb.PushIdentity]) -> list[pb.LastPush]:
        """Take no more pushes until `thaw`, but those up to `until`; the last of each worker.

        Once none is under way. The servers of a job are made equal so: what one of them has of a
        worker, the others let in.
        """
        self._let_in = {each.worker: (each.incarnation, each.sequence) for each in until}
        self._behind = set(self._let_in)
        self._tell_answerer()
        has = self.last()
        for each in has:
            self._caught_up(each.identity)
        return has

    def _caught_up(self, identity: pb.PushIdentity) -> None:
        """A push is applied: no other one is let in of a worker whose last one it is."""
        until = (self._let_in or {}).get(identity.worker, (0, 0))
        if (identity.incarnation, identity.sequence) >= until:
            self._behind.discard(identity.worker)

    def thaw(self) -> None:
        """Take pushes again."""
        self._let_in = None
        self._tell_answerer()

    def _tell_answerer(self) -> None:
        if self._answerer is not None:
            self._answerer.take_pushes(not self._closed and self._let_in is None)

    def check_open(self, caller: pb.PushIdentity | None = None) -> None:
        """Raises WireError(NOT_READY) after `close`, and while no push is let in.

        caller: of whose pushes, by worker and incarnation; None: of any.
        """
        if self._closed:
            raise WireError(pb.NOT_READY, "the server is about to end")
        if (let_in := self._let_in) is None:
            return
        if caller is None:
            here = bool(self._behind)
        else:
            until = let_in.get(caller.worker, (-1, 0))
            here = caller.worker in self._behind and caller.incarnation <= until[0]
        if not here:
            raise WireError(pb.NOT_READY, FROZEN)

    def _check_let_in(self, identity: pb.PushIdentity) -> None:
        if (let_in := self._let_in) is None:
            return
        until = let_in.get(identity.worker, (0, 0))
        if (identity.incarnation, identity.sequence) > until:
            raise WireError(pb.NOT_READY, FROZEN)

    def has(self, identity: pb.PushIdentity) -> bool:
        """True if a push was applied, or is held; then it is counted as a duplicate."""
        worker = self._workers.get(identity.worker)
        if worker is None:
            return False
        with worker:
            same = worker.incarnation == identity.incarnation
            there = same and identity.sequence <= max(worker.sequence, worker.pending)
            self.duplicates += there
            return there

    def _worker(self, index: int) -> PushRecord:
        with self._lock:
            if index not in self._workers:
                record = PushRecord()
                if self._answerer is not None:
                    self._answerer.know(index, record)
                self._workers[index] = record
            return self._workers[index]

    @contextmanager
    def admit(self, push: pb.PushRequest) -> Iterator[bool]:
        """Enter with whether the push is to be applied; it is recorded on leaving.

        False means that it was applied before. Nothing is recorded if the body
        raises. Raises WireError: FENCED if a newer incarnation replaced the sender
        or it was fenced, NOT_READY after `close`.
        """
        identity = push.identity
        worker = self._worker(identity.worker)
        with worker:
            # Under the lock: `paused` has waited for whoever did not see it.
            self.check_open()
            refuse_below = max(worker.fenced + 1, worker.incarnation)
            if identity.incarnation < refuse_below:
                raise WireError(
                    pb.FENCED,
                    f"worker {identity.worker} incarnation {identity.incarnation} "
                    f"was replaced; pushes are taken from {refuse_below} on",
                )
            if identity.incarnation != worker.incarnation:
                seen = 0
            else:
                seen = max(worker.sequence, worker.pending)
            if identity.sequence <= seen:
                self.duplicates += 1
                yield False
                return
            self._check_let_in(identity)
            yield True
            if identity.incarnation != worker.incarnation:
                worker.sequence = worker.task = worker.records_done = worker.pending = 0
                worker.incarnation = identity.incarnation
            if push.hold:
                # Known, so that a retry does not bring it twice, but not applied: a
                # checkpoint must not say that it has it.
                worker.pending = identity.sequence
                return
            worker.sequence = identity.sequence
            worker.task = push.task
            worker.records_done = push.records_done
            self._caught_up(identity)

    def held_before(self, push: pb.PushRequest) -> None:
        """A push of a log waits for its update: its worker may send it once more."""
        identity = push.identity
        with (worker := self._worker(identity.worker)):
            if identity.incarnation > worker.incarnation:
                worker.sequence = worker.task = worker.records_done = worker.pending = 0
                worker.incarnation = identity.incarnation
            if identity.incarnation == worker.incarnation:
                worker.pending = max(worker.pending, identity.sequence)

    @contextmanager
    def updating(self) -> Iterator[None]:
        """Enter to apply pending gradients: one at a time, and none while paused."""
        with self._updating:
            yield

    @contextmanager
    def paused(self, *, wait: bool = True) -> Iterator[list[dict[str, int]]]:
        """Enter with the last push of each worker, once none is under way; new ones wait.

        Raises WireError(NOT_READY) if one is and `wait` is not set.
        """

        def enter(lock: threading.Lock | PushRecord) -> None:
            if not lock.acquire(wait):
                raise WireError(pb.NOT_READY, "a push is under way: ask again")
            stack.callback(lock.release)

        with ExitStack() as stack:
            enter(self._updating)
            enter(self._lock)
            for worker in self._workers.values():
                enter(worker)
            yield [
                {name: getattr(worker, name) for name in _KEPT} | {"worker": index}
                for index, worker in self._workers.items()
            ]

    def last(self, *, wait: bool = True) -> list[pb.LastPush]:
        """The last push applied of each worker. wait: for those under way, as `paused` takes it."""
        with self.paused(wait=wait) as applied:
            return [
                pb.LastPush(
                    identity=pb.PushIdentity(
                        worker=each["worker"],
                        incarnation=each["incarnation"],
                        sequence=each["sequence"],
                    ),
                    task=each["task"],
                    records_done=each["records_done"],
                )
                for each in applied
                if each["sequence"]
            ]

    def restore(self, applied: list[dict[str, Any]]) -> None:
        """Take what `paused` gave as applied, and nothing else."""
        found = {each["worker"]: each for each in applied}
        for index in found.keys() | self._workers.keys():
            with self._worker(index) as record:
                for name, value in (found.get(index) or _KEPT).items():
                    if name in _KEPT:
                        setattr(record, name, value)
                record.pending = 0

    def join(self, has: Iterable[pb.LastPush]) -> None:
        """Take the pushes that another server has as applied: all that is in them is here."""
        for each in has:
            who = each.identity
            with (record := self._worker(who.worker)):
                record.incarnation, record.sequence = who.incarnation, who.sequence
                record.task, record.records_done = each.task, each.records_done
                record.pending = 0

    def fence(self, index: int, incarnation: int) -> pb.FenceReply:
        """Refuse further pushes of `incarnation` and below; tell its last one applied."""
        worker = self._worker(index)
        with worker:
            worker.fenced = max(worker.fenced, incarnation)
            if worker.incarnation != incarnation:
                return pb.FenceReply()
            return pb.FenceReply(
                sequence=worker.sequence, task=worker.task, records_done=worker.records_done
            )
