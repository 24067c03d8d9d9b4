"""Processes that cannot run yet, and how long the job waits for them (--start-timeout).

Owns what counts as too long. Waiting for room is no failure: there will be some. An image or a
configuration that cannot be had is one after a while, unless a process of that role was there
already: then there is one, and whoever has it will come back. No I/O, no clock.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from shoal.config.groups.kubernetes import START_ERROR_SECONDS
from shoal.config.job import JobConfig
from shoal.master.job.members.launcher import Waiting
from shoal.master.job.members.members import ProcessState, ServerMember, WorkerMember
from shoal.master.job.members.membership import Membership
from shoal.master.work.failures import Failure
from shoal.master.work.ids import ProcessId, ServerId, Start


@dataclass(frozen=True)
class _Wait:
    """since: when it began. failing: when more than room began to be wanted; None: it is not."""

    start: Start
    since: float
    why: str
    failing: float | None


class StartWaits:
    """The processes of the job that `config` describes that wait for their start."""

    def __init__(self, config: JobConfig) -> None:
        self._config = config
        self._waits: dict[ProcessId, _Wait] = {}
        self._came: set[str] = set()

    def resumed(self, config: JobConfig) -> None:
        """The job goes on with this configuration, and new processes."""
        self._config = config
        self._waits.clear()
        self._came.clear()

    def waits(self, waiting: Waiting, now: float) -> None:
        """A process cannot run yet."""
        start = waiting.start
        before = self._waits.get(start.process)
        since, failing = now, now if waiting.error else None
        if before is not None and before.start == start:
            since = before.since
            if waiting.error and before.failing is not None:
                failing = before.failing
        self._waits[start.process] = _Wait(start, since, waiting.why, failing)

    def came(self, process: ProcessId) -> None:
        """A process is there."""
        self._came.add(process.role)
        self._waits.pop(process, None)

    def unheard(self, seconds: float, now: float) -> None:
        """Nobody looked at what they wait for so long."""
        for process, wait in self._waits.items():
            since, failing = min(now, wait.since + seconds), wait.failing
            if failing is not None:
                failing = min(now, failing + seconds)
            self._waits[process] = replace(wait, since=since, failing=failing)

    def too_long(self, members: Membership, min_workers: int, now: float) -> Failure | None:
        """The failure of a job of which a needed process has waited for too long; None if none."""
        # Without the other workers it goes on, and they may come yet.
        enough = members.workers_alive >= min(min_workers, members.workers_expected)
        for process, wait in self._waits.items():
            # A server that has no rows yet, or has them no more, the job can do without.
            needed = process in members.servers if isinstance(process, ServerId) else not enough
            said = self._late(wait, process.role, now)
            if said and needed:
                member = _member(members, process)
                if member is not None and _still(member, wait.start):
                    return Failure.of_user(f"{process} could not start{said}: {wait.why}")
        return None

    def _late(self, wait: _Wait, role: str, now: float) -> str:
        """A wait that is too long, in words; empty for one that is not."""
        if limit := self._config.start_timeout:
            return f" within {limit:g} s (--start-timeout)" if now - wait.since > limit else ""
        if wait.failing is None or role in self._came or now - wait.failing <= START_ERROR_SECONDS:
            return ""
        return f", as for {START_ERROR_SECONDS:g} s its image or configuration could not be had"


def _member(members: Membership, process: ProcessId) -> ServerMember | WorkerMember | None:
    if isinstance(process, ServerId):
        return members.server(process)
    return members.workers.get(process)


def _still(member: ServerMember | WorkerMember, start: Start) -> bool:
    """True if this start of the process is still to come."""
    starting = member.state == ProcessState.STARTING and not member.running
    return starting and member.incarnation == start.incarnation
