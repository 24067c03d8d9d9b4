"""The number of files that a process may have open, connections included.

Imports nothing of ours.
"""

from __future__ import annotations

import resource

MOST_FILES = 1 << 16
"""Some programs look at each file that might be open: so there is a bound."""


def allow_open_files() -> int:
    """Raise this process's limit of open files as far as it may, to MOST_FILES; returns it.

    The usual limit is 1,024. A worker has several connections to each server, and so has a server
    from each worker.
    """
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if most == resource.RLIM_INFINITY else min(most, MOST_FILES)
    if now == resource.RLIM_INFINITY or now >= wanted:
        return now
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
    return wanted
