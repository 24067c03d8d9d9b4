"""Minibatches whose gradients were not finite and were left out (--nonfinite-gradients=skip).

Workers count; this is the sum over all their incarnations. No I/O.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from shoal.master.job.members.members import WorkerMember


@dataclass
class LeftOut:
    """minibatches, of so many records; last: what was wrong with the last, in words."""

    minibatches: int = 0
    records: int = 0
    last: str = ""

    def count(self, member: WorkerMember, minibatches: int, records: int, why: str) -> bool:
        """A worker's incarnation has left out so many in all; whether any are new."""
        before, of_records = member.left_out
        if minibatches <= before:
            return False
        self.minibatches += minibatches - before
        self.records += records - of_records
        self.last = why
        member.left_out = minibatches, records
        return True

    def to_json(self) -> dict[str, Any]:
        """The counts as in result.json."""
        return asdict(self)
