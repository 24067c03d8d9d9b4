"""The error of a statement, with its line and a caret below the place."""

from __future__ import annotations

from shoal.errors import UserError
from shoal.sql.terms import Place

START = Place(1, 1)

_SHOWN = 100
"""Characters of a line that are shown."""


class SqlError(UserError):
    """A mistake in a statement.

    message: one sentence. place: in the text of all statements; None where no place is at fault.
    """

    def __init__(self, message: str, place: Place | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.place = place

    def explained(self, text: str) -> str:
        """The message with the number of the line, the line itself and a caret.

        text: that of all statements, which `place` counts in.
        """
        if self.place is None:
            return str(self)
        line = [*text.split("\n"), ""][self.place.line - 1].rstrip("\r")
        at = min(self.place.column - 1, len(line))
        cut = max(0, at - _SHOWN // 2) if len(line) > _SHOWN else 0
        shown = line[cut : cut + _SHOWN]
        # A tab stays one, so that the caret is below its place.
        before = "".join("\t" if each == "\t" else " " for each in shown[: at - cut])
        return f"line {self.place.line}: {self}\n  {shown}\n  {before}^"


class UnendedError(SqlError):
    """A quote or a comment that does not end: more text may mend it."""


def place_at(text: str, offset: int) -> Place:
    """The place of a character of a text."""
    before = text[:offset]
    return Place(before.count("\n") + 1, offset - before.rfind("\n"))


def offset_of(text: str, place: Place) -> int:
    """The number of characters of a text before a place: the reverse of `place_at`."""
    lines = text.split("\n")[: place.line - 1]
    return sum(len(line) + 1 for line in lines) + place.column - 1
