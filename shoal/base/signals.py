"""Signals that a process acts on without stopping where it is."""

from __future__ import annotations

import _thread
import signal
from collections.abc import Callable


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
