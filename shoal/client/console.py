"""What goes to a terminal, without the control characters of others.

Messages, names and source lines of a job may have been written by anybody's code or data. With an
escape character in them they could change the terminal's title, colors or content.
"""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

_CONTROLS = dict.fromkeys(
    code for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"
)


def plain(text: str) -> str:
    """The text without control characters but the ends of lines and tabs."""
    return text.translate(_CONTROLS)


class PlainConsole(Console):
    """A console of rich that prints its own styles, and no control character of a text."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """See Console."""
        for each in super().render(renderable, options):
            yield each if each.control else Segment(plain(each.text), each.style)
