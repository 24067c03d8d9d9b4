"""Showing a job in a notebook: one display below the cell, which is updated in its place.

Made by rich's own rendering for Jupyter, as HTML and as text, so that no widgets are needed.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.jupyter import JupyterMixin
from rich.text import Text

from shoal.base.words import counted
from shoal.client.show.console import PlainConsole
from shoal.client.show.display import Display, LineDisplay, LiveDisplay, SilentDisplay
from shoal.client.show.drawn import block
from shoal.client.show.plain import plain
from shoal.errors import UserError
from shoal.proto import shoal_pb2 as pb

SHOWN_EVENTS = 50
"""Lines of events that are kept: a long job must not make the notebook's file large."""

Bundle = dict[str, str]
"""What is shown, by its kind: text/html and text/plain."""

Show = Callable[[Bundle], Callable[[Bundle], None]]
"""Shows a bundle, and returns what shows another one in its place."""


def in_notebook() -> bool:
    """True if this program is the kernel of a notebook, whose cells show more than text."""
    if "IPython" not in sys.modules:
        return False
    from IPython import get_ipython

    return getattr(get_ipython(), "kernel", None) is not None


class NotebookDisplay(Display):
    """Events above a block, in one output of the cell that is drawn anew with each status."""

    def __init__(self, show: Show | None = None) -> None:
        """show: how a bundle gets into the notebook; by default as the kernel does."""
        super().__init__()
        self._show = show or _show
        self._update: Callable[[Bundle], None] | None = None
        self._events: deque[str] = deque(maxlen=SHOWN_EVENTS)
        self._told = 0
        self._last = ""
        self._block: Group | None = None
        self._shown: Bundle | None = None

    def __exit__(self, *_: object) -> None:
        # The last status may be older than the job's end.
        self._block = None
        self._draw()

    def event(self, text: str) -> None:
        """One line above the block; not the same one twice running."""
        text = plain(text)
        if text != self._last:
            self._last = text
            self._told += 1
            self._events.append(f"{time.strftime('%H:%M:%S')} {text}")
            self._draw()

    def draw(self, status: pb.JobStatus) -> None:
        """Draw the block anew."""
        self._block = block(status, self._course)
        self._draw()

    def _draw(self) -> None:
        bundle = _Drawn(self._lines(), self._block)._repr_mimebundle_([], [])
        if bundle == self._shown:
            return
        if self._update is None:
            self._update = self._show(bundle)
        else:
            self._update(bundle)
        self._shown = bundle

    def _lines(self) -> list[str]:
        left_out = self._told - len(self._events)
        return [f"({counted(left_out, 'line')} before)"] * (left_out > 0) + list(self._events)


class _Drawn(JupyterMixin):
    """Events and a block as rich draws them."""

    def __init__(self, lines: list[str], below: Group | None) -> None:
        self._lines = lines
        self._below = below

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from map(Text, self._lines)
        if self._below is not None:
            yield self._below


def _show(bundle: Bundle) -> Callable[[Bundle], None]:
    from IPython.display import display

    handle: Any = display(bundle, raw=True, display_id=True)
    return lambda changed: handle.update(changed, raw=True)


def default_display(verbose: int | str = "auto") -> Display:
    """A live display if standard output is a terminal or a notebook, else log lines.

    verbose: 0 for one that shows nothing, 1 for a live display, 2 for lines, as in Keras. Raises
    UserError if it is none of these.
    """
    if verbose not in ("auto", 0, 1, 2):
        raise UserError(f'verbose must be "auto", 0, 1 or 2, not {verbose!r}')
    if verbose == 0:
        return SilentDisplay()
    if in_notebook() and verbose != 2:
        return NotebookDisplay()
    live = verbose == 1 or (verbose == "auto" and sys.stdout.isatty())
    return LiveDisplay(PlainConsole()) if live else LineDisplay(sys.stdout)
