"""Gradients that wait for the update they are to be part of, with --sync.

Owns which gradients are pending and which update was applied last. Which ones make an
update is the master's to say, the same to every server; how they change the values is
tables.py's. With a log of updates, each gradient is in it before its worker is answered.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass

from shoal.native.whole import WholeUpdates
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError
from shoal.ps.model.gradients import Gradients

_Key = tuple[int, int, int]

UPDATE_SECONDS = 1.0
"""For the update that a pull waits for. A gradient for it may be missing since a worker died."""


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

    whole: keeps updates and pulls apart, and has the number of the last one applied.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._gradients: dict[_Key, dict[int, _Held]] = {}
        self.whole = WholeUpdates(UPDATE_SECONDS)

    @property
    def update(self) -> int:
        """The last update applied; 0 for none."""
        return self.whole.update

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
            self.whole.update = update

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

    def applied(self, request: pb.ApplyUpdateRequest) -> None:
        """An update is in the model: its gradients are pending no longer."""
        with self._lock:
            self.whole.update = max(self.update, request.update)
            for each in (*request.gradients, *request.dropped):
                self._gradients.pop(_key(each), None)
