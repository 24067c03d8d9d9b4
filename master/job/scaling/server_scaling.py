"""The job gets more parameter servers itself, --autoscale with --servers. No I/O, no clock.

Owns when the servers are too few: one will need more memory than it may have, by its forecast, or
all the processor time of a core is used by each of them for a while. Which rows move then is
placement.py's. Servers are not taken away: rows that have grown stay.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from shoal.base.words import size
from shoal.config.budget import Budget
from shoal.config.options import JobOptions
from shoal.master.job.events import Event, Noted, ServersWanted
from shoal.master.job.heard import hears
from shoal.master.job.members.members import ServerMember
from shoal.master.job.members.membership import Membership
from shoal.master.job.moves.moves import Moves

FULL = 0.8
"""Of the memory that a server may have: more is about to be too much. While rows move away, what
comes meanwhile needs room as well."""

BUSY = 0.85
"""Of a core: a server that uses more, on average of all servers, has hardly any left."""

BUSY_WINDOWS = 2
"""In a row: the first steps of a job are no measure."""


@dataclass(frozen=True)
class MoreServers:
    """So many servers, and why, in words."""

    servers: int
    why: str


@hears("_began", "_used", "_busy", "_said", "_moves", "_moved")
class ServerScaler:
    """Decides for one job. wants: whether it is to decide at all; acts: or only says so.

    seconds: of a measurement. forecast: the memory that a server will need, in bytes, by its
    index; 0: not known.
    """

    def __init__(self, options: JobOptions, seconds: float) -> None:
        self.wants = options.scales_servers
        self.acts = options.autoscale == "on"
        self._most = options.server_range[1]
        self._seconds = seconds
        # On one machine all servers have the same memory.
        self._own_memory = bool(options.image)
        self._began: float | None = None
        self._used: dict[tuple[int, int], tuple[float, float]] = {}
        self._busy = 0
        self._said = 0
        self._moves, self._moved = 0, -math.inf

    def is_news(self, found: MoreServers) -> bool:
        """True if the job has not said so already, where it only says what it would do."""
        said, self._said = self._said, found.servers
        return said != found.servers

    def due(
        self,
        members: Membership,
        moves: Moves,
        forecast: Callable[[int], int],
        budget: Budget,
        now: float,
    ) -> Iterator[Event[None]]:
        """The event of a proposal of `look` that is to be followed, or told."""
        found = self.look(members, forecast, now, len(moves.routing.absent), moves.count)
        if found is None:
            return
        resource = budget.lacks(members.workers_wanted, found.servers)
        if self.acts and not resource:
            yield ServersWanted(found.servers, found.why)
        elif self.is_news(found):
            change = f"from {moves.servers_wanted} to {found.servers}"
            told = f"the number of servers would go {change}: {found.why}"
            limit = f"--max-resources has too little {resource} for a further server"
            yield Noted(f"warning: {limit}, and {found.why}" if resource else told)

    def look(
        self,
        members: Membership,
        forecast: Callable[[int], int],
        now: float,
        absent: int = 0,
        moves: int = 0,
    ) -> MoreServers | None:
        """The change to make now, if any. To be asked while the job trains and no rows move.

        absent: servers that have nothing now, and will have their share again. moves: how many have
        ended; after one, memory is judged when it has been told since, and a measurement's seconds
        later, since tables are compacted first.
        """
        servers = list(members.servers.values())
        count = len(servers) + absent
        if count >= self._most:
            return None
        if moves != self._moves:
            self._moves, self._moved = moves, now
        told = all(each.answered > self._moved for each in servers)
        judged = told and now >= self._moved + self._seconds
        why = (self._memory(servers, forecast) if judged else "") or self._processors(servers, now)
        return MoreServers(count + 1, why) if why else None

    def _memory(self, servers: list[ServerMember], forecast: Callable[[int], int]) -> str:
        if not self._own_memory:
            return ""
        for each in servers:
            limit = each.told.memory_limit
            needed = max(each.told.memory_bytes, forecast(each.id.index))
            if limit and needed > FULL * limit:
                return f"{each.id} will need {size(needed)} of memory, and {size(limit)} is there"
        return ""

    def _processors(self, servers: list[ServerMember], now: float) -> str:
        if self._began is not None and now - self._began < self._seconds:
            return ""
        before, self._began = self._used, now
        self._used = {
            (each.id.index, each.incarnation): (each.trained_seconds, each.trained_cpu_seconds)
            for each in servers
        }
        shares = []
        for key, (seconds, cpu) in self._used.items():
            then = before.get(key)
            if then is None or seconds - then[0] < self._seconds / 2:
                self._busy = 0
                return ""
            shares.append((cpu - then[1]) / (seconds - then[0]))
        mean = sum(shares) / len(shares)
        self._busy = self._busy + 1 if mean >= BUSY else 0
        if self._busy < BUSY_WINDOWS:
            return ""
        self._busy = 0
        return f"each uses {100 * mean:.0f}% of a core"
