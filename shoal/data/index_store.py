"""Indexes of data, built once and read by every process of a job.

An index says where records begin, so that a range is read without what stands before
it. It lies in the job's folder: data folders are often read-only, and not ours.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from shoal.base.wholefile import replacing


class IndexStore:
    """Tables by name in a folder; without one, none is kept."""

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self._folder = None if folder is None else Path(folder)

    def get(self, kind: str, source: str, stamp: str, build: Callable[[], pa.Table]) -> pa.Table:
        """The index of a source, built if it is not there.

        kind: of index. stamp: of the source's content; another one is another index.
        Processes that ask at the same time wait for the one that builds. What `build`
        raises passes through. Whoever asks keeps the answer.
        """
        name = hashlib.sha256("\0".join((kind, source, stamp)).encode()).hexdigest()[:32]
        if self._folder is None:
            return build()
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{name}.arrow"
        with (self._folder / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                table = build()
                with (
                    replacing(path) as temporary,
                    pa.OSFile(str(temporary), "wb") as file,
                    pa.ipc.new_file(file, table.schema) as writer,
                ):
                    writer.write_table(table)
                return table
        with pa.memory_map(str(path)) as file:
            return pa.ipc.open_file(file).read_all()
