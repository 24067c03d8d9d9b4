"""The checkpoints of a job that are there: which a server may restore, and which are removed.

Owns the policy of --keep-checkpoint-max. When one is taken is checkpoints.py's. No I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shoal.master.work.ids import ServerId


@dataclass(frozen=True)
class Taken:
    """A checkpoint that is complete.

    bytes: of all its files. seconds: it took. nonce: of the attempt to take it, which tells
    it from another of the same number.
    """

    number: int
    version: int
    bytes: int
    seconds: float
    nonce: str = ""


class KeptCheckpoints:
    """The complete checkpoints of one job. limit: of --keep-checkpoint-max.

    all: oldest first. best: number of that of the best evaluation, by the Checkpoint callback,
    which is never removed; 0 for none.
    """

    def __init__(self, limit: int) -> None:
        self.all: list[Taken] = []
        self.best = 0
        self._limit = limit
        # Nobody is to restore these any more, though they may be there.
        self._given_up: set[int] = set()
        self._outdated: list[int] = []  # of these, to be removed once there is a newer one
        # Whose shards some server has found damaged. It is not to restore them later either: they
        # may have what was trained again since, because it lacked it.
        self._damaged: dict[ServerId, set[int]] = {}

    @property
    def newest(self) -> int:
        """The number of the newest one; 0 for none."""
        return self.all[-1].number if self.all else 0

    def found(self, there: Sequence[Taken]) -> None:
        """These were taken before the master was started, oldest first."""
        known = {(each.number, each.nonce): each for each in self.all}  # with the time it took
        self.all = [
            known.get((each.number, each.nonce), each)
            for each in there
            if each.number not in self._given_up
        ]

    def add(self, taken: Taken) -> None:
        """A checkpoint is complete, the newest one."""
        self.all.append(taken)

    def surplus(self) -> tuple[int, ...]:
        """The numbers of those that are to be removed now; they are kept no longer."""
        surplus = [each for each in self.all[: -self._limit] if each.number != self.best]
        numbers = *self._outdated, *(each.number for each in surplus)
        self.all = [each for each in self.all if each not in surplus]
        self._outdated = []
        return numbers

    def offered(self, server: ServerId) -> list[Taken]:
        """The checkpoints that a server may restore that is started again, the newest first."""
        damaged = self._damaged.get(server, ())
        return [each for each in reversed(self.all) if each.number not in damaged]

    def restored(self, server: ServerId, number: int) -> None:
        """A server that is started again has restored this one, and none of the newer ones."""
        newer = {each.number for each in self.all if each.number > number}
        if newer:
            self._damaged.setdefault(server, set()).update(newer)

    def resumed(self, newest: int, given_up: Sequence[int], *, older: bool) -> None:
        """The job goes on from the checkpoint `newest`; 0: from the beginning.

        given_up: numbers of others that are there, and not good. older: those before it may be
        restored later.
        """
        if not older:
            outdated = [each.number for each in self.all if each.number < newest]
            self._outdated += outdated
            self._given_up.update(outdated)
        self._given_up.update(given_up)
        for damaged in self._damaged.values():
            damaged.discard(newest)
        self.found([each for each in self.all if each.number <= newest])
        self.best = self.best if self.best in {each.number for each in self.all} else 0
