"""What follows from the end of a process: pure decisions.

Counts against the relaunch limit whatever ended a worker, be it a crash or a
signal, but not what the cluster took away. Who is dead is established in
worker_lifecycle.py and server_lifecycle.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from shoal.config import JobConfig
from shoal.master.failures import Failure
from shoal.master.launcher import Exited
from shoal.master.membership import ServerSlot, WorkerSlot
from shoal.master.phases import Phase


@dataclass(frozen=True)
class Relaunch:
    """Start the process again."""


@dataclass(frozen=True)
class GiveUp:
    """The job cannot go on."""

    failure: Failure


def after_worker_death(slot: WorkerSlot, exited: Exited, relaunch_limit: int) -> Relaunch | GiveUp:
    """Whether a dead worker is started again."""
    if slot.leaving or not exited.counted or slot.starts - slot.forgiven <= relaunch_limit:
        return Relaunch()
    times = "once" if slot.deaths == 1 else f"{slot.deaths} times"
    head = (
        f"{slot.id} failed {times}, and --relaunch-limit {relaunch_limit} allows no further start"
    )
    if slot.failure is not None:
        return GiveUp(
            Failure(
                slot.failure.kind,
                f"{head}. It reported: {slot.failure.message}",
                slot.failure.traceback,
                slot.failure.span,
            )
        )
    return GiveUp(Failure.internal(f"{head}. The last time: {exited.cause}.{_log(exited)}"))


def death_at_records(slot: WorkerSlot, exited: Exited) -> Failure:
    """What may be held against the records at which a worker's process ended."""
    error = f"{slot.id} ended with {exited.cause}"
    return replace(Failure.internal(f"{error}.{_log(exited)}"), error=error)


def after_server_death(
    slot: ServerSlot, exited: Exited, config: JobConfig, phase: Phase
) -> Relaunch | GiveUp:
    """Whether a dead server is started again, to restore a checkpoint or --restore-from."""
    died = f"parameter server {slot.id} died ({exited.cause})"
    if config.sync and phase not in (Phase.STARTING, Phase.DESCRIBING, Phase.LOADING):
        return GiveUp(
            Failure.internal(
                f"{died}. With --sync a server's death ends the job: what it held of the next "
                f"update is gone. Go on with: shoal train --resume {config.job_dir}."
                f"{_log(exited)}"
            )
        )
    if slot.starts - slot.forgiven > config.relaunch_limit:
        return GiveUp(
            Failure.internal(
                f"{died}, and --relaunch-limit {config.relaunch_limit} allows no further start."
                f"{_log(exited)}"
            )
        )
    return Relaunch()


def _log(exited: Exited) -> str:
    if not exited.last_lines:
        return f" Its log is {exited.log}, and empty."
    return f" Its log is {exited.log}; it ends:\n{exited.last_lines}"
