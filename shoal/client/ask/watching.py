"""Watching a running job from another terminal: asking its master again and again, and keys.

What is drawn is top.py's.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console, Group
from rich.live import Live

from shoal.client.ask.asking import status_of
from shoal.client.ask.running_job import RunningJob
from shoal.client.found.following import CALL_SECONDS
from shoal.client.show.drawn import ENDED
from shoal.client.show.top import Seen, page
from shoal.errors import UserError
from shoal.proto.channels.rpc import Connection

ASK_SECONDS = 1.0
"""Between two questions: the master itself asks the servers so often."""

RATES_SECONDS = 3.0
"""For the servers to tell what makes rates known, where one snapshot is wanted."""


def _ask(master: Connection, seen: Seen) -> None:
    seen.add(status_of(master), time.monotonic())


def snapshot(job: RunningJob, rows: int) -> Group:
    """The page of top, drawn once; with rates if servers tell them in time. Raises UserError."""
    seen = Seen()
    with job.master(CALL_SECONDS, patience=0.0) as master:
        give_up = time.monotonic() + RATES_SECONDS
        _ask(master, seen)
        while not seen.rates_known and time.monotonic() < give_up:
            time.sleep(ASK_SECONDS / 4)
            _ask(master, seen)
    return page(seen, rows, keys=False)


def watch(job: RunningJob, console: Console) -> str:
    """Draw the job anew each second, until it ends or q is pressed; returns how it ended, or "".

    A master that does not answer for a while, or is started again, is asked on.
    Raises UserError if it does not run at all.
    """
    seen = Seen()
    shown = False
    with contextlib.ExitStack() as screen:
        while True:
            try:
                with job.master(CALL_SECONDS, patience=0.0) as master:
                    while True:
                        _ask(master, seen)
                        if seen.status.state in ENDED:
                            return seen.status.state
                        if not shown:
                            live = screen.enter_context(
                                Live(console=console, screen=True, auto_refresh=False)
                            )
                            keys = screen.enter_context(_keys())
                            shown = True
                        live.update(page(seen, console.height), refresh=True)
                        if keys(ASK_SECONDS):
                            return ""
            except UserError as error:
                if not shown:
                    raise
                with contextlib.suppress(UserError):  # it may be the cluster that is away
                    if ended := job.ended():
                        return ended
                live.update(page(seen, console.height, str(error)), refresh=True)
            if keys(ASK_SECONDS):
                return ""


@contextmanager
def _keys() -> Iterator[Callable[[float], bool]]:
    """Gives a function that waits so many seconds, and says whether q was pressed meanwhile.

    Keys come one by one and are not shown until the end. Without a terminal none come.
    """
    if not sys.stdin.isatty():

        def wait(seconds: float) -> bool:
            time.sleep(seconds)
            return False

        yield wait
        return
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)

    def pressed(seconds: float) -> bool:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if select.select([terminal], [], [], left)[0]:
                keys = os.read(terminal, 64)
                if not keys or b"q" in keys.lower():
                    return True
        return False

    try:
        tty.setcbreak(terminal)
        yield pressed
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
