"""The faults that are due at each moment of a job: a plain object, no I/O, no clock of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shoal.tools.chaos.faults import PHASES, Fault, When


@dataclass(frozen=True)
class Seen:
    """The progress of a job. steps: the number it will take in all; None where not known yet."""

    step: int = 0
    steps: int | None = None
    phase: str = PHASES[0]


class Schedule:
    """Faults that wait for their moment.

    left: those that are not due yet, in the order given.
    """

    def __init__(self, faults: Sequence[Fault]) -> None:
        """faults: none of them still to be drawn (faults.drawn)."""
        assert not any(fault.when.random for fault in faults)
        self.left = list(faults)

    def due(self, seen: Seen) -> list[Fault]:
        """The faults whose moment has come; each is given out once."""
        due = [fault for fault in self.left if _has_come(fault.when, seen)]
        self.left = [fault for fault in self.left if fault not in due]
        return due


def _has_come(when: When, seen: Seen) -> bool:
    if when.step is not None:
        return seen.step >= when.step
    if when.fraction is not None:
        return seen.steps is not None and seen.step >= int(when.fraction * seen.steps)
    if when.phase:
        # A job that was not looked at in between may have passed it.
        return seen.phase in PHASES and PHASES.index(seen.phase) >= PHASES.index(when.phase)
    return True
