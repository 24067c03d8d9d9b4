"""The part of a worker's task that the servers have applied, by the last push that each has.

Owns that reasoning only. servers.py asks the servers, tasks.py decides about the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shoal.master.work.ids import WorkerId
from shoal.master.work.units import Task
from shoal.proto import shoal_pb2 as pb


@dataclass(frozen=True)
class LastPush:
    """A worker's last push that a server has, or had acknowledged.

    records_done: of the task, in the pushes up to this one; 0 while it is not known which.
    """

    worker: WorkerId
    incarnation: int
    sequence: int
    task: int
    records_done: int

    @staticmethod
    def from_message(message: pb.LastPush) -> LastPush:
        """Return the push that a message of the wire protocol describes."""
        who = message.identity
        return LastPush(
            WorkerId(who.worker),
            who.incarnation,
            who.sequence,
            message.task,
            message.records_done,
        )


@dataclass(frozen=True)
class AppliedPush:
    """The last push that a server has applied of a worker; sequence 0 for none."""

    sequence: int
    task: int
    records_done: int


def sequence_of(push: LastPush | None, incarnation: int) -> int | None:
    """The last push of a worker's incarnation that a server has; None for all there were."""
    if push is None or push.incarnation < incarnation:
        return 0
    return push.sequence if push.incarnation == incarnation else None


def certain_head(task: Task, push: AppliedPush | LastPush) -> int:
    """Head of a task that a server has for certain, whose last push of its worker this is."""
    if not push.sequence or push.task != task.id:
        return 0
    return min(push.records_done, task.records)


def possible_head(task: Task, push: AppliedPush | LastPush | None) -> int | None:
    """Head of a task that a server may have; None if it could not be asked."""
    if push is None:
        return None
    # A feed that shuffles says 0 until it is through: any record may be in a push.
    touched = push.sequence and push.task == task.id
    return certain_head(task, push) or (task.records if touched else 0)


def applied_heads(
    task: Task, pushes: Sequence[AppliedPush | None], acknowledged: int
) -> tuple[int, int]:
    """Count the records of a dead worker's task that the servers have applied.

    pushes: the last push that each server has; None for a server that could not be asked, of which
        only the `acknowledged` records that the worker last told are known.

    Returns the head of the span that all servers have, and the head that at least
    one has, in records.
    """
    heads = [acknowledged if push is None else certain_head(task, push) for push in pushes]
    possible = [possible_head(task, push) or 0 for push in pushes]
    # What was acknowledged is on all servers, whatever they say now.
    return max(min(heads, default=0), acknowledged), max((acknowledged, *possible))
