"""A worker's own pushes in flight: those computed or sent that a pull may not have yet.

Owns telling which these are, how many of them each server had applied and a pull had not, and by
how much they move the non-trainable values (batch normalization's statistics): each step starts
from the moves of those before it, as it would with nothing in between. Moving the values for good
is the servers' (ps/model/tables.py).
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from shoal.proto.values.routing import slice_of

Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Missing:
    """The own pushes that a pull lacks.

    counts: how many, one a server; empty if there are none. change: by how much they move the
    flat non-trainable vector, float32 [n]; None if they do not.
    """

    counts: Sequence[int] = ()
    change: Float32 | None = None

    def version(self, versions: Sequence[int]) -> int:
        """The version that the servers will be at with them. versions: of the pull."""
        counts = self.counts or [0] * len(versions)
        return max(map(sum, zip(versions, counts, strict=True)))

    def then(self, changes: Sequence[Float32]) -> Missing:
        """With further changes, of the push that comes after them."""
        if not changes:
            return self
        known = [] if self.change is None else [self.change]
        return Missing(self.counts, np.sum([*known, *changes], axis=0))


NOTHING = Missing()


@dataclass
class _Computed:
    """A computed push. sent: by server, the sequence number that its part went out under last."""

    change: Float32
    sent: dict[int, int] = field(default_factory=dict)

    def lacking(self, applied: Sequence[int]) -> list[bool]:
        """True for each server that lacked its part. applied: PullReply's, one a server."""
        # To a server that came later it did not go, which has what the others had by then.
        other = max(self.sent.values()) if self.sent else None
        return [
            self.sent.get(server, last + 1 if other is None else other) > last
            for server, last in enumerate(applied)
        ]


class InFlightPushes:
    """The pushes of one worker, from their computation until every pull has them.

    One thread may compute pushes while another one sends them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._computed: dict[int, _Computed] = {}  # by the push's number, in their order
        # Of each server, the sequence numbers applied that no pull was seen to have.
        self._unseen: defaultdict[int, list[int]] = defaultdict(list)

    def restart(self) -> None:
        """Forget pushes that were computed and never sent: a pipeline ended early."""
        with self._lock:
            self._computed.clear()

    def computed(self, number: int, change: Float32) -> None:
        """The push of this number was computed. change: of the flat non-trainable vector."""
        with self._lock:
            self._computed[number] = _Computed(change)

    def sent(self, number: int, servers: Iterable[int], sequence: int) -> None:
        """Parts of a push go out to these servers; said before a pull can see one applied."""
        with self._lock:
            computed = self._computed.get(number)
            if computed is not None:  # else nothing is pulled ahead of pushes
                computed.sent.update(dict.fromkeys(servers, sequence))

    def applied(self, servers: Iterable[int], sequence: int) -> None:
        """Servers have applied what went out under a sequence number."""
        with self._lock:
            for server in servers:
                self._unseen[server].append(sequence)

    def applied_after(self, applied: Sequence[int]) -> list[int]:
        """Count own pushes that each server applied after those that its pull had.

        applied: the sequence number of the last of these, one a server; rises from pull to pull.
        """
        with self._lock:
            counts = []
            for server, last in enumerate(applied):
                unseen = self._unseen[server]
                if unseen and unseen[0] <= last:
                    self._unseen[server] = unseen = [each for each in unseen if each > last]
                counts.append(len(unseen))
            return counts

    def missing(self, applied: Sequence[int], dense: int) -> Missing:
        """The pushes that a pull lacks. Pulls come in order.

        applied: PullReply's, one a server. dense: how many servers have slices of the dense
        variables, by the pull's routing.
        """
        servers = len(applied)
        with self._lock:
            for number in list(self._computed):
                if any(self._computed[number].lacking(applied)):
                    break
                del self._computed[number]
            if not self._computed:
                return NOTHING
            pushes = [(each.change, each.lacking(applied)) for each in self._computed.values()]
        change = np.zeros_like(pushes[0][0])
        counts = [0] * servers
        for own, lacking in pushes:
            for server in np.flatnonzero(lacking).tolist():
                some = slice_of(own.size, server, dense)
                change[some] += own[some]
                counts[server] += 1
        return Missing(counts, change if change.size else None)
