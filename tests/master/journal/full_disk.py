"""`python -m tests.master.journal.full_disk WHAT FOLDER`: a disk without room, for real.

WHAT: journal or checkpoint.

No file may grow beyond a limit that the kernel holds (RLIMIT_FSIZE), until the limit is taken
away. Prints what happened; run by test_full_disk.py in a process of its own, since the limit
is the process's.
"""

from __future__ import annotations

import resource
import sys
import threading
from pathlib import Path

from shoal.checkpoints.folders import begin
from shoal.checkpoints.newest import newest_good
from shoal.config.job import JobConfig
from shoal.files.storage import LocalStorage
from shoal.master.job.events import JobBegun, JobStopped
from shoal.master.journal import journal as journals
from shoal.master.journal.events import Entry
from shoal.master.journal.reading import read
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError
from shoal.ps.ownership import Ownership
from shoal.ps.shards import Shards
from tests.ps.groups import Group


def limit(size: int) -> None:
    """No file grows beyond so many bytes; -1: no limit."""
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (size if size >= 0 else hard, hard))


def journal(folder: Path) -> None:
    """Nobody is answered while an event cannot be written; then all are, and all are there."""
    refused = threading.Event()

    def pause(seconds: float) -> None:
        refused.set()
        threading.Event().wait(seconds / 20)

    real = journals.time
    clocks = {"sleep": pause, "time": real.time, "monotonic": real.monotonic}
    journals.time = type("Time", (), {name: staticmethod(each) for name, each in clocks.items()})
    config = JobConfig(model_def="m.m", training_data="t", job_name="full")
    made = journals.Journal(folder / "journal", config)
    made.add(Entry(JobBegun(), 0.0))
    made.commit()
    limit((made.path / "000001.journal").stat().st_size + 100)
    answered = threading.Event()

    def commit() -> None:
        made.add(Entry(JobStopped("x" * 20_000), 1.0))
        made.commit()
        answered.set()

    thread = threading.Thread(target=commit, daemon=True)
    thread.start()
    assert refused.wait(60)
    assert not answered.is_set()
    limit(-1)
    assert answered.wait(60)
    thread.join()
    made.close()
    _, entries = read(made.path)
    print([type(entry.event).__name__ for entry in entries])


def checkpoint(folder: Path) -> None:
    """A shard without room is refused by name, pushes go on, the one before stays good."""
    group = Group(1)
    (model,), (pushes,) = group.models, group.pushes
    shards = Shards(0, lambda: model, Ownership(0, group.routing), pushes, str(folder))
    group.push(1)
    group.save(folder, 1)

    def write(number: int) -> str:
        nonce = begin(LocalStorage(folder), number, "job").nonce
        shards.begin(pb.BeginCheckpointRequest(number=number, nonce=nonce))
        try:
            shards.write(pb.WriteShardRequest(number=number, nonce=nonce))
        except WireError as error:
            return f"{pb.ErrorKind.Name(error.kind)} {error.message}"
        return "written"

    limit(20_000)
    print(write(2))
    group.push(2)
    limit(-1)
    found, _ = newest_good(LocalStorage(folder))
    assert found is not None
    print("the newest good one is", found.number)
    print(write(3))


if __name__ == "__main__":
    {"journal": journal, "checkpoint": checkpoint}[sys.argv[1]](Path(sys.argv[2]))
