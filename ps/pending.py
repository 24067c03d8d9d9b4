"""Gradients that wait for the update they are to be part of, with --sync.

Owns which gradients are pending and which update was applied last. Which ones make an
update is the master's to say, the same to every server; how they change the values is
tables.py's.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError
from shoal.ps.gradients import Gradients

_Key = tuple[int, int, int]


def _key(gradient: pb.GradientId) -> _Key:
    return gradient.worker, gradient.incarnation, gradient.number


class PendingGradients:
    """The pending gradients of one server.

    A gradient is a list of pushes: of one, unless its push had to be sent once more
    because slots had moved meanwhile.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._gradients: dict[_Key, list[Gradients]] = {}
        self.update = 0

    def __len__(self) -> int:
        return len(self._gradients)

    def hold(self, push: pb.PushRequest, gradients: Gradients) -> None:
        """Keep what a push brought, as part of the gradient that it names."""
        key = push.identity.worker, push.identity.incarnation, push.hold
        with self._lock:
            self._gradients.setdefault(key, []).append(gradients)

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
            if request.update != self.update + 1:
                raise WireError(
                    pb.BAD_REQUEST, f"update {request.update} came after update {self.update}"
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
            return [self._gradients[key] for key in keys]

    def applied(self, request: pb.ApplyUpdateRequest) -> None:
        """An update is in the model: its gradients are pending no longer."""
        with self._lock:
            self.update = request.update
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
