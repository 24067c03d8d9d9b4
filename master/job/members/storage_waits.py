"""Workers that wait for what is out of their hands, such as storage: told once for all of them.

Owns when that is a message: as the first of them begins to wait, and as nobody waits any more.
What each waits for now is in its `WorkerMember`. No I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterable

from shoal.master.job.members.members import WorkerMember
from shoal.master.work.ids import WorkerId


class StorageWaits:
    """The workers that have waited since the first of them began to."""

    def __init__(self) -> None:
        self._waited: set[WorkerId] = set()
        self._first = ""

    def says(self, member: WorkerMember, what: str, members: Iterable[WorkerMember]) -> str:
        """A worker waits for this, or for nothing more; returns the message that it makes, or "".

        members: of all workers.
        """
        others = any(each.waits_for for each in members if each is not member)
        before, member.waits_for = member.waits_for, what
        if what:
            begins = not (before or others)
            if begins:
                self._waited, self._first = set(), what
            self._waited.add(member.id)
            return f"{member.id} waits for {what}" if begins else ""
        if others or not before:
            return ""
        if len(self._waited) > 1:
            return f"{len(self._waited)} workers go on; the first has waited for {self._first}"
        return f"{member.id} goes on; it has waited for {before}"
