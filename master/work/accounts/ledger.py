"""The ledger of training records: how many of a job's records ended in which way.

Owns the counts, and the intervals of records that ended in an exceptional way. The queues of
tasks and their leases are in tasks.py. No I/O and no clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from shoal.master.work.accounts.lease_copies import Piece
from shoal.master.work.accounts.spans import Fate, Interval
from shoal.master.work.units import Span, Task


@dataclass(frozen=True)
class Ledger:
    """Records over all epochs: total = trained_once + repeated + failed + pending.

    repeated: trained, and then, because a worker died before all servers had their
        gradients, trained again.
    """

    total: int = 0
    trained_once: int = 0
    repeated: int = 0
    failed: int = 0
    pending: int = 0

    @property
    def trained(self) -> int:
        """Records whose gradients every server has acknowledged."""
        return self.trained_once + self.repeated


@dataclass
class Account:
    """The records that are settled: trained by all servers, or given up.

    Settled records are numbers, and intervals only where they are the exception:

    given_up: single records given up in every epoch and ranges given up in one, in the order of
        their ends, as "failed".
    taken_back: counted as trained and trained again, as "lost", and also as "touched" where some
        server still has it. Since the last checkpoint only: an audit takes them event by event.
    """

    given_up: list[Interval] = field(default_factory=list)
    taken_back: list[Interval] = field(default_factory=list)
    _trained_once: int = 0
    _repeated: int = 0
    _failed: int = 0

    def clear(self) -> None:
        """Forget everything: the job goes on from another model."""
        self._trained_once = self._repeated = self._failed = 0
        self.given_up.clear()
        self.taken_back.clear()

    def in_model(self, fate: Fate) -> None:
        """These records are in the model from which the job was resumed."""
        if fate.counts["trained"] + fate.counts["touched"] > 1:
            self._repeated += len(fate.span)
        else:
            self._trained_once += len(fate.span)

    def trained(self, task: Task, start: int, end: int) -> None:
        """All servers have records [start, end) of a task, counted from the start of its span.

        Those in the head that an earlier lease had trained count as repeated.
        """
        repeated = max(0, min(end, task.trained_before) - start)
        self._repeated += repeated
        self._trained_once += end - start - repeated

    def failed(self, epoch: int, span: Span) -> None:
        """These records are given up."""
        self._failed += len(span)
        self.given_up.append(Interval("failed", epoch, span))

    def left_undone(self, records: int) -> None:
        """The job ends by a task, of which so many records are not trained."""
        self._failed += records

    def lost(self, piece: Piece) -> bool:
        """These records counted as trained, and will be trained again.

        Returns whether that will train some of them twice.
        """
        self._repeated -= piece.repeated
        self._trained_once -= len(piece.span) - piece.repeated
        touched = piece.elsewhere or piece.repeated > 0
        for kind in ("lost", "touched") if touched else ("lost",):
            self.taken_back.append(Interval(kind, piece.epoch, piece.span))
        return touched

    def ledger(self, total: int) -> Ledger:
        """The counts of this moment, of so many records over all epochs."""
        settled = self._trained_once + self._repeated + self._failed
        return Ledger(total, self._trained_once, self._repeated, self._failed, total - settled)
