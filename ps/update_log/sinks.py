"""The log of a server's pushes: what all its parts share.

Owns the words: what a log is made of, where it may be kept (`Sink`), and how it fails. The
server's own side is log.py, the places are peer_sink.py and file_sink.py, doing a log
again is replay.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from shoal.errors import Error
from shoal.proto import shoal_pb2 as pb
from shoal.ps.model.pushes import PushRegister


class LogLostError(Error):
    """The log is not there any more, or not to be reached or written; says why."""


class LogDamagedError(LogLostError):
    """A part of the log is not as written, or cannot be done again; says where, and the cost."""


class LogTakenError(Error):
    """A later incarnation of the server writes the log now: this one is over."""


@dataclass(frozen=True)
class Gap:
    """A place in a log where entries are missing.

    where: in words. entries: how many; 0 if that cannot be told.
    """

    where: str
    entries: int


@dataclass(frozen=True)
class Standing:
    """The updates that come before a log's entries, or are in a model.

    applied: the last push of each worker. update: with --sync, the last one applied. epoch: of the
    routing table of the rows that came from other servers.
    """

    applied: Sequence[pb.PushIdentity] = ()
    update: int = 0
    epoch: int = 0

    def has(self, base: pb.LogBase) -> bool:
        """True if all that is before a log is there: nothing lies between.

        A worker's pushes are applied in their order, so its last one stands for all before.
        """
        last = {each.worker: (each.incarnation, each.sequence) for each in self.applied}
        reached = base.update <= self.update and base.epoch <= self.epoch
        return reached and all(
            last.get(each.worker, (0, 0)) >= (each.incarnation, each.sequence)
            for each in base.applied
        )


Entries = Iterator[tuple[pb.LogEntry | pb.LogBase | Gap, bytes | memoryview]]


@dataclass(frozen=True)
class TakenLog:
    """A log that is to be done again, in the order of its steps.

    entries: each with its push. A base between them says what was applied by then. Raises
        LogLostError if it breaks off.
    before: what may have been of the log before `base`, and cannot be read, in words.
    """

    base: pb.LogBase
    entries: Entries
    before: str = ""


class Sink(Protocol):
    """The place that keeps one server's log. Any method may raise LogLostError or LogTakenError.

    retry_seconds: how long taking a log is tried again while it fails. entry_bytes: the cost of an
    entry there beside its push. keeps_moves: whether a log goes on when rows move between servers,
    with entries of what came; else it ends.
    """

    retry_seconds: float
    entry_bytes: int
    keeps_moves: bool

    def clear(self) -> None:
        """Remove everything that earlier runs of the job left."""

    def reach(self) -> None:
        """Make sure that a log could begin now."""

    def begin(self, base: pb.LogBase) -> None:
        """Begin a new log, which replaces any other of this server."""

    def append(self, entry: pb.LogEntry, frame: bytes | memoryview) -> Callable[[], None]:
        """Hand an entry on; the result waits until it is kept, and may be called again.

        The frame's memory is the sink's until the result has returned, or raised.
        """

    def mark(self, standing: Standing) -> Any:
        """Note where the log is, at a cut; for `drop`."""

    def drop(self, log: str, step: int, standing: Standing, mark: Any) -> None:
        """Let go of the entries of `log` up to `step`; it now stands on `standing`.

        Another log, which was begun meanwhile, is left as it is.
        """

    def check(self) -> None:
        """Look whether the log is still there."""

    def take(self) -> TakenLog | None:
        """The log that an earlier incarnation has left, to be written on; None: there is none."""

    def adopt(self, base: pb.LogBase, step: int, standing: Standing) -> None:
        """Write on with a log that was taken; what is applied now is in `base`.

        step, standing: of the checkpoint that it was done again on, which has the entries up
            to there; 0: of none, or not known.
        """

    def close(self) -> None:
        """End; what is kept stays."""


def identities(applied: Iterable[dict[str, int]]) -> list[pb.PushIdentity]:
    """The result of `PushRegister.paused`, as a log's base has it."""
    return [
        pb.PushIdentity(
            worker=each["worker"], incarnation=each["incarnation"], sequence=each["sequence"]
        )
        for each in applied
    ]


def applied_now(pushes: PushRegister) -> list[pb.PushIdentity]:
    """The last push applied of each worker. Waits for those under way."""
    with pushes.paused() as applied:
        return identities(applied)
