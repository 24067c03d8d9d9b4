"""Servers that were told to end, and are to give what they have to the others before they do.

Owns which they are, and for how long each of them may wait for that. With its rows at other servers
training goes on while its successor starts; by a checkpoint it would wait for it. Pure, no I/O, no
clock. What moves when is moves.py's.
"""

from __future__ import annotations

from shoal.master.job.members import ProcessState, ServerMember
from shoal.master.job.membership import Membership
from shoal.master.work.ids import Start

SHARE = 0.5
"""Of the time until it is killed, for a server's rows to move. The rest is for a checkpoint, if
they could not."""

BYTES_PER_SECOND = 20e6
"""Of a server's tables, at least, as they move to others while the job trains on busy processors;
docs/notes/master.md has what was measured."""

FULL = 0.8
"""Of the memory that a server may have: with the rows that come to it, more is too much."""


class Departures:
    """The servers of one job that are to give away what they have."""

    def __init__(self) -> None:
        self._until: dict[Start, float] = {}
        self._given_up: set[Start] = set()
        self._gone: set[Start] = set()

    def known(self, start: Start) -> bool:
        """Whether the server has asked before."""
        return start in self._until

    def ask(self, member: ServerMember, members: Membership, seconds: float, now: float) -> None:
        """A server was told to end, and will be killed after so many seconds."""
        start = Start(member.id, member.incarnation)
        self._until[start] = now + SHARE * seconds
        others = [each for each in members.servers.values() if each is not member]
        size = sum(table.memory_bytes for table in member.told.tables)
        in_time = size / BYTES_PER_SECOND <= SHARE * seconds
        if not (others and in_time and all(_has_room(each, size / len(others)) for each in others)):
            self._given_up.add(start)

    def waits(self, start: Start, now: float) -> bool:
        """Whether the rows of a server that asked may still begin to move."""
        return start not in self._given_up and now < self._until.get(start, now)

    def refuse(self, start: Start) -> None:
        """A server takes a checkpoint, and does not wait any more."""
        self._given_up.add(start)

    def give_up(self) -> None:
        """A move has failed: those that wait take a checkpoint."""
        self._given_up.update(self._until)

    def gone(self, start: Start) -> bool:
        """Whether a server has nothing any more."""
        return start in self._gone

    def left(self, member: ServerMember) -> None:
        """A server has given away what it had."""
        self._gone.add(Start(member.id, member.incarnation))

    def waiting(self, members: Membership, now: float) -> list[int]:
        """The servers, by index, whose rows are to move now."""
        return [
            member.id.index
            for member in members.servers.values()
            if member.state is ProcessState.ALIVE
            and self.waits(Start(member.id, member.incarnation), now)
        ]


def _has_room(member: ServerMember, size: float) -> bool:
    """Whether a server can take rows of so many bytes, as far as that is known."""
    told = member.told
    return not told.memory_limit or told.memory_bytes + size <= FULL * told.memory_limit
