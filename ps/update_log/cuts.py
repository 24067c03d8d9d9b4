"""The places in a log at which checkpoints were cut, until they are complete or given up.

Tells attempts at a checkpoint apart, and owns what the newest complete one has. No I/O; its owner
keeps threads apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shoal.ps.update_log.sinks import Standing


@dataclass(frozen=True)
class Noted:
    """The place in the log `name` at the cut of an attempt; as the sink's `drop` takes it."""

    nonce: str
    name: str
    step: int
    standing: Standing
    mark: Any


class Cuts:
    """The cuts of one server's log. saved: what is in the newest complete checkpoint, if known."""

    def __init__(self) -> None:
        self.saved: Standing | None = None
        self._noted: dict[int, Noted] = {}

    def note(self, number: int, noted: Noted) -> None:
        """Checkpoint `number` was cut."""
        self._noted[number] = noted

    def forget(self, number: int, nonce: str) -> None:
        """An attempt will not be complete."""
        noted = self._noted.get(number)
        if noted is not None and noted.nonce == nonce:
            del self._noted[number]

    def complete(self, number: int, nonce: str) -> Noted | None:
        """An attempt is complete; where it was cut, None if that is not known here."""
        noted = self._noted.get(number)
        if noted is not None and noted.nonce != nonce:
            return None  # of an earlier master's attempt, whose number came again
        self._noted = {n: each for n, each in self._noted.items() if n > number}
        if noted is not None:  # else it was cut by an earlier incarnation
            self.saved = noted.standing
        return noted

    def clear(self) -> None:
        """The model has what no checkpoint has, though they may have every push."""
        self.saved, self._noted = None, {}
