"""What follows from the end of a process: pure decisions.

Counts against the relaunch limit whatever ended a worker, be it a crash or a
signal, but not what the cluster took away. Who is dead is job.py's to establish.
"""

from __future__ import annotations

from dataclasses import dataclass

from shoal.master.failures import Failure
from shoal.master.launcher import Exited
from shoal.master.membership import ServerSlot, WorkerSlot


@dataclass(frozen=True)
class Relaunch:
    """Start the worker again."""


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


def after_server_death(slot: ServerSlot, exited: Exited) -> GiveUp:
    """The job's failure, for a server whose end was not asked for."""
    return GiveUp(
        Failure.internal(
            f"parameter server {slot.id} died ({exited.cause}). Its share of the model was in "
            "its memory only and is lost: no job restores a checkpoint yet, so the "
            f"job has to be run again.{_log(exited)}"
        )
    )


def _log(exited: Exited) -> str:
    if not exited.last_lines:
        return f" Its log is {exited.log}, and empty."
    return f" Its log is {exited.log}; it ends:\n{exited.last_lines}"
