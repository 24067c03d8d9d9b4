"""The places of the pages of a job's processes on this machine: metrics_targets.json.

The file is what Prometheus reads as `file_sd_configs`. Each process writes its own entry, under a
lock. An entry stays when its process is killed, so that Prometheus sees that it does not answer,
until its next start takes the entry's place. The master empties the file at the job's end.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from shoal.base.disk.job_folder import JobFolder
from shoal.base.disk.wholefile import write_json

JOB, ROLE, INDEX = "shoal_job", "shoal_role", "shoal_index"
"""Labels that Prometheus gives to all that it reads from one process."""

PATIENCE_SECONDS = 10.0
"""For other processes of the job, which hold the lock for a moment; a stopped one holds it on."""

POLL_SECONDS = 0.02
"""Between two tries to take the lock."""

Entry = dict[str, Any]


def put(folder: JobFolder, job_name: str, role: str, index: int, address: str) -> None:
    """Make Prometheus read the page of a process at `address`, host:port, from now on.

    Raises OSError if the file cannot be changed, as `remove` and `clear` do.
    """
    labels = {JOB: job_name, ROLE: role, INDEX: str(index)}
    with _changing(folder) as entries:
        entries[:] = [each for each in entries if not _is_of(each, role, index)]
        entries.append({"targets": [address], "labels": labels})
        entries.sort(key=lambda each: (each["labels"][ROLE], int(each["labels"][INDEX])))


def remove(folder: JobFolder, role: str, index: int, address: str) -> None:
    """A process ends, whose page was at `address`; of its next start, nothing is removed."""
    with _changing(folder) as entries:
        entries[:] = [
            each
            for each in entries
            if not (_is_of(each, role, index) and each["targets"] == [address])
        ]


def clear(folder: JobFolder) -> None:
    """None of the job's processes has a page."""
    with _changing(folder) as entries:
        entries.clear()


def _is_of(entry: Entry, role: str, index: int) -> bool:
    return (entry["labels"][ROLE], entry["labels"][INDEX]) == (role, str(index))


@contextlib.contextmanager
def _changing(folder: JobFolder) -> Iterator[list[Entry]]:
    """The entries, to be changed in place; alone. Raises OSError."""
    path = folder.metrics_targets
    with path.with_name(f".{path.name}.lock").open("a") as lock:
        _take(lock, path)
        entries = _read(path)
        yield entries
        write_json(path, entries)


def _take(lock: TextIO, path: Path) -> None:
    """Take the lock. Raises TimeoutError if another process holds it all the time."""
    give_up = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > give_up:
                why = f"another process has held {lock.name} for {PATIENCE_SECONDS:g} s"
                raise TimeoutError(f"{path} is not changed: {why}") from None
        time.sleep(POLL_SECONDS)


def _read(path: Path) -> list[Entry]:
    """The entries; none where the file is not as `put` writes it."""
    try:
        entries = json.loads(path.read_text())
        whole = all({JOB, ROLE, INDEX} <= set(each["labels"]) for each in entries)
        return list(entries) if whole else []
    except (OSError, ValueError, LookupError, TypeError):
        return []
