"""The consequences of the end of a process: pure decisions.

Counts against the relaunch limit whatever ended a worker, be it a crash or a
signal, but not what the cluster took away. Only failures within a window count, so that a
long job does not end of what a short one survives. Who is dead is established in
worker_lifecycle.py and server_lifecycle.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from shoal.config.job import JobConfig
from shoal.master.job.members.launcher import Exited
from shoal.master.job.members.members import ServerMember, WorkerMember
from shoal.master.job.members.restarts import RelaunchLimit
from shoal.master.work.failures import Failure
from shoal.master.work.phases import Phase


@dataclass(frozen=True)
class Relaunch:
    """Start the process again, after a pause in seconds."""

    pause: float = 0.0


@dataclass(frozen=True)
class GiveUp:
    """The job cannot go on."""

    failure: Failure


def after_worker_death(
    member: WorkerMember, exited: Exited, limit: RelaunchLimit, now: float
) -> Relaunch | GiveUp:
    """Decide if a dead worker is started again. To be asked once for each death."""
    if exited.refused:
        return Relaunch(member.restarts.refused(now))
    if member.excused:
        return Relaunch()
    failures = member.restarts.failed(now, limit.window)
    if failures <= limit.times:
        return Relaunch(member.restarts.pause(now))
    head = f"{member.id} {limit.exceeded(failures)}"
    if member.failure is not None:
        return GiveUp(
            Failure(
                member.failure.kind,
                f"{head}. It reported: {member.failure.message}",
                member.failure.traceback,
                member.failure.span,
            )
        )
    return GiveUp(Failure.internal(f"{head}. The last time: {exited.cause}.{_log(exited)}"))


def death_at_records(member: WorkerMember, exited: Exited) -> Failure:
    """The failure that is held against the records at which a worker's process ended."""
    error = f"{member.id} ended with {exited.cause}"
    return replace(Failure.internal(f"{error}.{_log(exited)}"), error=error)


def after_server_death(
    member: ServerMember,
    exited: Exited,
    config: JobConfig,
    phase: Phase,
    now: float,
    *,
    joins: bool = False,
) -> Relaunch | GiveUp:
    """Decide if a dead server is started again, to restore a checkpoint or --restore-from.

    To be asked once for each death. joins: it had nothing of the job yet.
    """
    died = f"parameter server {member.id} died ({exited.cause})"
    begun = phase not in (Phase.STARTING, Phase.DESCRIBING, Phase.EVALUATING_FIRST)
    if config.sync and begun and not config.keeps_log and not joins:
        return GiveUp(
            Failure.internal(
                f"{died}. Without a log of updates a server's death ends a job with --sync: what "
                "it held of the next update is gone. Go on with: shoal train --resume "
                f"{config.job_dir}.{_log(exited)}"
            )
        )
    if exited.refused:
        return Relaunch(member.restarts.refused(now))
    if not exited.counted:
        return Relaunch()
    limit = RelaunchLimit.of(config)
    failures = member.restarts.failed(now, limit.window)
    if failures > limit.times:
        return GiveUp(Failure.internal(f"{died}. It {limit.exceeded(failures)}.{_log(exited)}"))
    return Relaunch(member.restarts.pause(now))


RESTART_REASONS = ("killed", "crashed", "ended", "reported", "displaced", "wanted_again")


def restart_reason(exited: Exited, failure: Failure | None = None, *, asked: bool = False) -> str:
    """The reason for a restart, in one word of a few: a label of metrics.

    failure: what it reported. asked: it had been asked to end, and is wanted again.
    """
    if asked:
        return "wanted_again"
    if not exited.counted:
        return "displaced"  # the cluster took its place away
    if failure is not None:
        return "reported"
    if exited.signal_number is not None and not exited.crashed:
        return "killed"  # from outside, or by the master, as it did not answer
    return "crashed" if exited.crashed else "ended"


def _log(exited: Exited) -> str:
    if not exited.last_lines:
        return f" Its log is {exited.log}, and empty."
    return f" Its log is {exited.log}; it ends:\n{exited.last_lines}"
