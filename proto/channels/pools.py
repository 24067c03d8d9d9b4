"""Threads that are there from the beginning: whether they can be had shows at the start.

A pool that starts its threads when they are first needed fails in the middle of a call, and
gRPC's own thread with it. Then nobody is answered any more, and nothing ends.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

NO_THREAD = (
    "cannot start a thread: the machine's limit of processes, of the container's pids or of memory "
    "(ulimit -u, ulimit -v) is too low"
)


def started_pool(count: int, name: str) -> ThreadPoolExecutor:
    """A pool of `count` threads, all of which run. Raises OSError if they cannot be had."""
    pool = ThreadPoolExecutor(count, thread_name_prefix=name)
    go_on = threading.Event()
    try:
        for _ in range(count):
            pool.submit(go_on.wait)  # none is free for the next one
    except RuntimeError as error:
        go_on.set()
        pool.shutdown(wait=False, cancel_futures=True)
        raise OSError(f"{NO_THREAD} ({error})") from error
    go_on.set()
    return pool
