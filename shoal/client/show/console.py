"""A console of rich for terminals, without the control characters of others (plain.py)."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from shoal.client.show.plain import plain


class PlainConsole(Console):
    """A console of rich that prints its own styles, and no control character of a text."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """See Console."""
        for each in super().render(renderable, options):
            yield each if each.control else Segment(plain(each.text), each.style)

    def on_broken_pipe(self) -> None:
        """See Console; it is called while the error is handled, and rich would end the program."""
        raise
