"""--event-time: which column has the time of a record, and in which unit it counts.

Owns the flag's form and the units. Times are microseconds since 1970 everywhere else; reading them
is worker/input/event_times.py's.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from shoal.errors import UserError

FLAG = "--event-time"

MICROSECONDS = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6, "d": 86_400e6}
"""In a unit of time since 1970."""


@dataclass(frozen=True)
class EventTime:
    """A column, and the unit of its numbers; "" where that is told by the column's type."""

    column: str
    unit: str = ""

    @classmethod
    def parse(cls, text: str) -> EventTime | None:
        """Parse the value of --event-time: COLUMN or COLUMN:UNIT; None for an empty one.

        Text after the last colon that is no unit belongs to the column's name.
        """
        column, colon, unit = text.rpartition(":")
        if colon and column and unit in MICROSECONDS:
            return cls(column, unit)
        return cls(text) if text else None

    def check_unit(self, columns: Container[str]) -> None:
        """Raise UserError where the text is one of these columns and what is no unit."""
        column, _, unit = self.column.rpartition(":")
        if column in columns and self.column not in columns:
            raise UserError(
                f"{FLAG} {self.column}: {unit!r} is no unit: give one of {', '.join(MICROSECONDS)}"
            )
