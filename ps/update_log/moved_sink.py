"""A log whose first part is at one server and the rest at another.

Where other servers keep logs from a move on, a log goes on at the new keeper, and what it had is
needed from the old one until a checkpoint has all of that. Owns that the two are done again as one.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

from shoal.proto import shoal_pb2 as pb
from shoal.ps.update_log.peer_sink import PeerSink
from shoal.ps.update_log.sinks import Standing, TakenLog


class MovedSink:
    """The log that was at `former` and is at `now`; see Sink.

    log: the former one, by name, which is at `former` still; "" before it was taken.
    """

    def __init__(self, former: PeerSink, now: PeerSink, log: str = "") -> None:
        self.retry_seconds, self.entry_bytes = now.retry_seconds, now.entry_bytes
        self.now = now
        self._former: PeerSink | None = former
        self._log = log
        self._begun = bool(log)

    def clear(self) -> None:
        """See Sink."""
        self.now.clear()

    def reach(self) -> None:
        """See Sink."""
        self.now.reach()

    def begin(self, base: pb.LogBase) -> None:
        """See Sink."""
        self.now.begin(base)
        # What begins anew does not go on from there.
        self._leave(Standing(base.applied, base.update, base.epoch))

    def append(self, entry: pb.LogEntry, frame: bytes | memoryview) -> Callable[[], None]:
        """See Sink."""
        return self.now.append(entry, frame)

    def mark(self, standing: Standing) -> None:
        """See Sink."""

    def drop(self, log: str, step: int, standing: Standing, mark: Any) -> None:
        """See Sink."""
        self.now.drop(log, step, standing, mark)
        self._leave(standing)

    def check(self) -> None:
        """See Sink."""
        self.now.check()
        if self._former is not None and self._log:
            self._former.check_log(self._log)

    def take(self) -> TakenLog | None:
        """See Sink."""
        former = self._former.take() if self._former is not None else None
        rest = self.now.take()
        self._begun = rest is not None
        if former is None:
            return rest
        self._log = former.base.log
        if rest is None:
            return former
        base = pb.LogBase()
        base.CopyFrom(former.base)
        base.log = rest.base.log
        between = iter([(rest.base, b"")])
        return TakenLog(base, chain(former.entries, between, rest.entries), former.before)

    def adopt(self, base: pb.LogBase, step: int, standing: Standing) -> None:
        """See Sink."""
        if self._begun:
            self.now.adopt(base, step, standing)
            return
        # The server ended before it had begun a log there.
        rest = pb.LogBase()
        rest.CopyFrom(base)
        rest.ClearField("model")
        rest.ClearField("initial")
        self.now.begin(rest)

    def leave_keepers(self, servers: int) -> None:
        """See UpdateLog."""
        if self._former is not None and self._former.keeper >= servers:
            self._leave()

    def close(self) -> None:
        """See Sink."""
        self._leave()
        self.now.close()

    def _leave(self, standing: Standing | None = None) -> None:
        """Need nothing of the former log any more. standing: what has all of it; None: unknown."""
        former, self._former = self._former, None
        if former is not None:
            if standing is not None and self._log:
                former.forget(self._log, standing)
            former.close()


def moved(sink: PeerSink | MovedSink, now: PeerSink, log: str) -> MovedSink:
    """The sink of the log `log` of `sink`, which is to go on at `now`."""
    former = sink.now if isinstance(sink, MovedSink) else sink
    return MovedSink(former, now, log)
