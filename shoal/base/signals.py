"""Signals that a process acts on without stopping where it is."""

from __future__ import annotations

import _thread
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


def on_signal(number: signal.Signals, call: Callable[[], object]) -> None:
    """Call `call` on a thread of its own when this process gets the signal.

    A handler interrupts the main thread, which may hold any lock: also that of an event for
    which it waits, so that setting the event in a handler may wait for ever. A thread that is
    started without the module threading needs no lock.
    """

    def received(*_: object) -> None:
        try:
            _thread.start_new_thread(call, ())
        except RuntimeError:  # there is no thread left
            call()

    signal.signal(number, received)


def told_to_end() -> threading.Event:
    """An event that is set when this process gets SIGINT or SIGTERM."""
    told = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        on_signal(number, told.set)
    return told


@contextmanager
def ending_at_signals(server: Any) -> Iterator[None]:
    """End a server of uvicorn in the usual way at SIGINT and SIGTERM, and its command with it.

    uvicorn sends a signal again once it has shut down: these handlers take it.
    """

    def ends(_number: int, _frame: FrameType | None) -> None:
        server.should_exit = True

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, ends) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
