"""Servers that were told to end, and are to give what they have to the others before they do.

Owns which they are, and for how long each of them may wait for that. With its rows at other servers
training goes on while its successor starts; by a checkpoint it would wait for it. Pure, no I/O, no
clock. What moves when is moves.py's.
"""

from __future__ import annotations

from collections.abc import Sequence

from shoal.master.job.heard import hears, uses_heard
from shoal.master.job.members.members import ProcessState, ServerMember
from shoal.master.job.members.membership import Membership
from shoal.master.work.ids import Start

SHARE = 0.5
"""Of the time until a server is killed, for the move to begin; the other half is for the move, or
for a checkpoint if none has begun."""

BYTES_PER_SECOND = 50e6
"""Of a server's tables, at least, as they move to others while the job trains. On two busy cores
180 MB a second were measured (docs/notes/master.md); networks may be slower."""

DENSE_BYTES = 12
"""Of an element of the dense variables: its value, and two slots of an optimizer."""

FULL = 0.8
"""Of the memory that a server may have: with the rows that come to it, more is too much."""


@hears("_until", "_seconds", "_ending", "_given_up", "_closed")
class Departures:
    """The servers of one job that are to give away what they have."""

    def __init__(self) -> None:
        self._until: dict[Start, float] = {}
        self._seconds: dict[Start, float] = {}
        self._ending = False
        self._given_up: set[Start] = set()
        self._gone: set[Start] = set()
        self._closed: set[Start] = set()

    def known(self, start: Start) -> bool:
        """True if the server has asked before."""
        return start in self._until

    def ask(self, start: Start, seconds: float, now: float) -> None:
        """A server was told to end, and will be killed after so many seconds."""
        for by_start, value in ((self._until, now + SHARE * seconds), (self._seconds, seconds)):
            for over in [each for each in by_start if each.process == start.process]:
                del by_start[over]
            by_start[start] = value

    def waits(self, start: Start, now: float) -> bool:
        """True if the rows of a server that asked may still begin to move."""
        given_up = self._ending or start in self._given_up
        return not given_up and now < self._until.get(start, now)

    def closed(self, start: Start) -> None:
        """A server takes no more pushes; so the others that wait take a checkpoint with it."""
        _note(self._closed, start)
        self._refuse_all()

    def serving(self, members: Membership) -> bool:
        """True if a server that was told to end takes pushes still.

        A checkpoint for another one waits for it: after that this one would get none any more.
        """
        return not members.alive_servers.isdisjoint(self._until.keys() - self._closed)

    @uses_heard
    def refuse(self, start: Start) -> None:
        """A server takes a checkpoint, and does not wait any more."""
        _note(self._given_up, start)

    def _refuse_all(self) -> None:
        """All that wait take a checkpoint."""
        for start in self._until:
            _note(self._given_up, start)

    def end(self) -> None:
        """The master is about to end: nobody is to wait for a move that has not begun."""
        self._ending = True

    def gone(self, start: Start) -> bool:
        """True if a server has nothing any more."""
        return start in self._gone

    def left(self, member: ServerMember) -> None:
        """A server has given away what it had."""
        _note(self._gone, _start_of(member))

    def due(self, members: Membership, now: float) -> list[int]:
        """The servers, by index, whose rows are to move now.

        All that wait together, or none: without time, or memory at the others, they take a
        checkpoint. Nothing is known of that before they have said how they are.
        """
        servers = members.servers.values()
        alive = [each for each in servers if each.state is ProcessState.ALIVE]
        leaving = [each for each in alive if self.waits(_start_of(each), now)]
        staying = [each for each in servers if each not in leaving]
        if not leaving or not all(each.told.seconds for each in servers):
            return []
        rows = sum(each.table_bytes for each in leaving)
        seconds = min(self._seconds[_start_of(each)] for each in leaving)
        in_time = rows <= BYTES_PER_SECOND * SHARE * seconds
        if in_time and staying and _have_room(staying, leaving, rows):
            return [each.id.index for each in leaving]
        self._refuse_all()
        return []


def _note(starts: set[Start], start: Start) -> None:
    """Put a server's start in the place of its earlier ones, which are over."""
    starts -= {each for each in starts if each.process == start.process}
    starts.add(start)


def _start_of(member: ServerMember) -> Start:
    return Start(member.id, member.incarnation)


def _have_room(staying: Sequence[ServerMember], leaving: Sequence[ServerMember], rows: int) -> bool:
    """True if servers can take the rows of others, and their part of the dense variables.

    These are divided among the servers before the first one that leaves.
    """
    first = min(each.id.index for each in leaving)
    elements = sum(each.told.dense_elements for each in (*staying, *leaving))
    for each in staying:
        more = rows / len(staying)
        if each.id.index < first:
            more += DENSE_BYTES * (elements / first - each.told.dense_elements)
        limit = each.told.memory_limit
        if limit and each.told.memory_bytes + more > FULL * limit:
            return False
    return True
