"""Work on the parts of a checkpoint by several threads.

Owns how many, and what becomes of errors. What the parts are is the caller's to say.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from typing import TypeVar

Item = TypeVar("Item")

MOST, LEAST = 8, 2
"""Threads: each holds a page and its rows in memory. Two also on one core, as one waits for the
storage while the other computes."""


def cores() -> int:
    """Processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def for_each(work: Callable[[Item], object], items: Iterable[Item], threads: int = 0) -> None:
    """Call `work` for each item, in order, on threads of which the caller's is one.

    threads: 0 for as many as there are cores, within bounds. After an error no other item is
    begun. Raises the error of the first item that has one, whichever thread was faster.
    """
    threads = threads or min(max(cores(), LEAST), MOST)
    lock = threading.Lock()
    waiting = enumerate(items)
    errors: dict[int, BaseException] = {}

    def run() -> None:
        while not errors:
            with lock:
                number, item = next(waiting, (-1, None))
            if number < 0:
                return
            try:
                work(item)  # type: ignore[arg-type]
            except BaseException as error:
                errors[number] = error

    others = [threading.Thread(target=run, name="restore") for _ in range(threads - 1)]
    for thread in others:
        thread.start()
    run()
    for thread in others:
        thread.join()
    if errors:
        # All before it were begun, and are through.
        raise errors[min(errors)]
