"""A worker's own steps that are computed, and that the values of a pull do not have yet.

Owns telling which these are, and by how much they move the non-trainable values (batch
normalization's statistics): each step starts from the moves of those before it, as it would
with nothing in between. Moving the values for good is the servers' (ps/tables.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shoal.proto.routing import slice_of
from shoal.worker.servers.pulling import Pulled
from shoal.worker.servers.pushing import Push

Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class UnderWay:
    """The own pushes that a pull lacks.

    counts: of them, one a server; empty if there are none. moves: by how much they change
    the flat non-trainable vector, float32 [n]; None if they do not.
    """

    counts: Sequence[int] = ()
    moves: Float32 | None = None

    def version(self, versions: Sequence[int]) -> int:
        """The version that the servers will be at with them. versions: of the pull."""
        counts = self.counts or [0] * len(versions)
        return max(map(sum, zip(versions, counts, strict=True)))

    def then(self, moves: Sequence[Float32]) -> UnderWay:
        """With further moves, of the push that comes after them."""
        if not moves:
            return self
        known = [] if self.moves is None else [self.moves]
        return UnderWay(self.counts, np.sum([*known, *moves], axis=0))


NOTHING = UnderWay()


class OwnMoves:
    """The pushes of one worker, from their computation until every pull has them.

    For the thread that computes; another one may send what was added.
    """

    def __init__(self) -> None:
        self._made: deque[tuple[Float32, dict[int, int]]] = deque()

    def add(self, push: Push) -> None:
        """A push was computed, and is on its way."""
        if not push.left_out:
            self._made.append((push.dense[1], push.sent))

    def under_way(self, pulled: Pulled) -> UnderWay:
        """What `pulled` lacks. Pulls come in their order."""
        servers = len(pulled.applied)
        while self._made and not any(self._lacking(pulled, self._made[0][1])):
            self._made.popleft()
        if not self._made:
            return NOTHING
        moves = np.zeros_like(pulled.state)
        counts = [0] * servers
        for change, sent in self._made:
            for server, lacks in enumerate(self._lacking(pulled, sent)):
                if lacks:
                    some = slice_of(change.size, server, servers)
                    moves[some] += change[some]
                    counts[server] += 1
        return UnderWay(counts, moves if moves.size else None)

    @staticmethod
    def _lacking(pulled: Pulled, sent: dict[int, int]) -> list[bool]:
        """Whether each server had not applied its part of a push."""
        return [
            sent.get(server, applied + 1) > applied for server, applied in enumerate(pulled.applied)
        ]
