"""Gradients that wait for the update they are to be part of, with --sync.

Owns which gradients are pending and which update was applied last. Which ones make an
update is the master's to say, the same to every server; how they change the values is
tables.py's. With a log of updates, each gradient is in it before its worker is answered.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError
from shoal.ps.model.gradients import Gradients

_Key = tuple[int, int, int]


def _key(gradient: pb.GradientId) -> _Key:
    return gradient.worker, gradient.incarnation, gradient.number


@dataclass(frozen=True)
class _Held:
    """A push. frame: of its call, in which the gradients lie."""

    gradients: Gradients
    frame: bytes | memoryview


class PendingGradients:
    """The pending gradients of one server.

    A gradient is a number of pushes, by sequence: one, unless its push had to be sent once
    more because slots had moved meanwhile.

    update: the last one applied; 0 for none.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._moved = threading.Condition(self._lock)
        self._gradients: dict[_Key, dict[int, _Held]] = {}
        self.update = 0

    def __len__(self) -> int:
        return len(self._gradients)

    def hold(self, push: pb.PushRequest, gradients: Gradients, frame: bytes | memoryview) -> None:
        """Keep what a push brought, as part of the gradient that it names; again: no change."""
        key = push.identity.worker, push.identity.incarnation, push.hold
        with self._lock:
            parts = self._gradients.setdefault(key, {})
            parts.setdefault(push.identity.sequence, _Held(gradients, frame))

    def begin(self, update: int) -> None:
        """Hold nothing; `update` is the last one that is in the model."""
        with self._lock:
            self._gradients.clear()
            self.update = update

    def frames(self) -> list[bytes | memoryview]:
        """The frames of all pushes held, in the order in which they came."""
        with self._lock:
            return [each.frame for parts in self._gradients.values() for each in parts.values()]

    def names(self) -> list[pb.GradientId]:
        """The ids of all gradients held."""
        with self._lock:
            return [
                pb.GradientId(worker=worker, incarnation=incarnation, number=number)
                for worker, incarnation, number in self._gradients
            ]

    def keep_only(self, worker: int, incarnation: int, kept: Iterable[int]) -> None:
        """Drop the gradients of a worker's incarnation, but for those kept."""
        numbers = set(kept)
        with self._lock:
            for key in list(self._gradients):
                if key[:2] == (worker, incarnation) and key[2] not in numbers:
                    del self._gradients[key]

    def named(self, request: pb.ApplyUpdateRequest) -> list[list[Gradients]] | None:
        """The gradients of the next update, in the request's order; None if it was applied.

        Raises WireError(BAD_REQUEST) if an update was left out, or is made of no gradient, of
        one twice, or of one that is not here.
        """
        with self._lock:
            if request.update <= self.update:
                return None
            if request.after and request.after != self.update:
                raise WireError(
                    pb.BAD_REQUEST,
                    f"update {request.update} comes after update {request.after}, and this "
                    f"server is at update {self.update}",
                )
            keys = [_key(each) for each in request.gradients]
            if not keys or len(set(keys)) < len(keys):
                raise WireError(
                    pb.BAD_REQUEST,
                    f"update {request.update} is made of {len(keys)} gradients, "
                    f"{len(set(keys))} of them different",
                )
            for worker, incarnation, number in keys:
                if (worker, incarnation, number) not in self._gradients:
                    raise WireError(
                        pb.BAD_REQUEST,
                        f"update {request.update} is made of gradient {number} of "
                        f"worker {worker}, which this server does not hold",
                    )
            return [[each.gradients for each in self._gradients[key].values()] for key in keys]

    def wait(self, update: int, seconds: float) -> None:
        """Return once an update is applied, or after so many seconds."""
        with self._moved:
            self._moved.wait_for(lambda: self.update >= update, seconds)

    def applied(self, request: pb.ApplyUpdateRequest) -> None:
        """An update is in the model: its gradients are pending no longer."""
        with self._lock:
            self.update = max(self.update, request.update)
            self._moved.notify_all()
            for each in (*request.gradients, *request.dropped):
                self._gradients.pop(_key(each), None)


class ReadersOrWriter:
    """Any number of readers, or one writer, which goes before readers that come later."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._readers = 0
        self._writing = False

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Enter once nobody writes."""
        with self._changed:
            self._changed.wait_for(lambda: not self._writing)
            self._readers += 1
        try:
            yield
        finally:
            with self._changed:
                self._readers -= 1
                self._changed.notify_all()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Enter once nobody else reads or writes."""
        with self._changed:
            self._changed.wait_for(lambda: not self._writing)
            self._writing = True
            self._changed.wait_for(lambda: not self._readers)
        try:
            yield
        finally:
            with self._changed:
                self._writing = False
                self._changed.notify_all()
