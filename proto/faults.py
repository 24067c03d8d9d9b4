"""The faults of tests and `shoal chaos`: a process dies or loses its connections; off by default.

The environment variable SHOAL_FAULTS names a folder; without it a point costs one
comparison. With it:

- A process that comes to the point NAME removes the file NAME from the folder, or
  NAME@PROCESS, which is for it alone (NAME@ps-1), and kills itself with SIGKILL: so each
  file is one death.
- One that comes to a point whose file holds the word "hang" goes on when the file is gone;
  if a number of seconds follows, it removes the file and hangs for so long, with inf for ever.
- A process that serves, and whose id is in the file calls@PROCESS, handles no call until the
  file is gone: it answers the pings of its connections and nothing else.
- A process with a file no-room@PROCESS is not started until that is gone.
- A URL faulty://PATH stands for a local path, which fails or hangs as shoal.tools.chaos.faulty
says.
- A process that connects to another one goes through the relay whose address is in the
  file PROCESS.OTHER (worker-0.ps-1), and says beside it where the other one is.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "SHOAL_FAULTS"
PROCESS_VARIABLE = "SHOAL_PROCESS"
"""Set by whoever starts a process to its name: master-0, ps-1, worker-0."""

HANG = "hang"
"""What the file of a point holds where a process is to hang, and not to die."""

FAULTY = "faulty"
"""The protocol of URLs whose storage may fail."""

_FOLDER = _PROCESS = ""


def read_environment() -> None:
    """Take the folder of faults and this process's name from the environment."""
    global _FOLDER, _PROCESS
    _FOLDER = os.environ.get(VARIABLE, "")
    _PROCESS = os.environ.get(PROCESS_VARIABLE, "")
    if _FOLDER:
        import fsspec

        # By name: processes that open no such URL load nothing of it.
        fsspec.register_implementation(FAULTY, "shoal.tools.chaos.faulty.FaultyFileSystem")


@dataclass(frozen=True)
class Point:
    """A place in the code. role: of the processes that come there. where: in words."""

    role: str
    where: str


POINTS = {
    "before-start": Point("master", "a process is about to be started, and that is on disk"),
    "after-start": Point("master", "a process was started, and which one is not on disk yet"),
    "before-journal": Point("master", "events are about to be written to the journal"),
    "after-journal": Point("master", "events are in the journal, and nobody was answered yet"),
    "checkpoint-begun": Point("master", "all servers have fixed what they hold"),
    "checkpoint-written": Point("master", "all shards are written, the manifest is not"),
    "before-manifest": Point("master", "all shares of a delta are written, the manifest is not"),
    "delta-published": Point("master", "a delta is whole, and the job does not know it yet"),
    "move-begun": Point("master", "servers know of a move of slots, and no row was sent"),
    "before-move-committed": Point("master", "all rows have moved, and nothing is decided"),
    "move-committed": Point("master", "a move is decided, and no server knows it"),
    "before-restore-plan": Point(
        "ps", "a server has started, and does not know yet what it restores"
    ),
    "push-received": Point("ps", "a push has come and is not applied yet"),
    "push-logged": Point("ps", "a push is in the log, if there is one, and not applied yet"),
    "push-half-applied": Point("ps", "a table has its part of a push, others may not yet"),
    "push-applied": Point("ps", "a push is applied and not answered yet"),
    "update-logged": Point(
        "ps", "an update of --sync is in the log, if there is one, and not applied"
    ),
    "update-applied": Point("ps", "an update of --sync is applied and not answered yet"),
    "sweep-half-done": Point("ps", "a part of a sweep is done, and is not in the log yet"),
    "sweep-logged": Point("ps", "a part of a sweep is in the log, if there is one"),
    "rows-sent": Point("ps", "some of the rows that move were sent, more are to come"),
    "rows-taken": Point("ps", "some of the rows that move have come"),
    "pushes-frozen": Point("ps", "no push is taken, as the last rows are about to move"),
    "before-rows-removed": Point("ps", "a move is over, and rows of other servers are still here"),
    "shard-restoring": Point("ps", "a part of a shard is restored, and more is to come"),
    "log-replaying": Point("ps", "a push of the log was done again, and more are to come"),
    "log-appending": Point("ps", "another server's push has come to its log, and is not in it yet"),
    "before-checkpoint-read": Point("ps", "a checkpoint is about to be restored"),
    "rows-assigned": Point("ps", "rows of --restore-from are in their table, more may be to come"),
    "table-half-read": Point("ps", "an export has got rows of a table, more may be to come"),
    "shard-begun": Point("ps", "a shard of a checkpoint is about to be written"),
    "shard-half-written": Point("ps", "a part of a shard is written"),
    "shard-written": Point("ps", "a shard is written, and the master was not told yet"),
    "publish-cut": Point("ps", "a share of a delta is cut, and nothing of it is written"),
    "share-half-written": Point("ps", "a part of a share of a delta is written"),
    "share-written": Point("ps", "a share of a delta is written, and the master was not told yet"),
    "feeding": Point("worker", "the feed of --count is about to give a minibatch"),
    "computing": Point("worker", "the loss of --count is about to be computed, in a step"),
    "sources-described": Point(
        "worker", "a task that describes data is done, and the master was not told yet"
    ),
    "before-push": Point("worker", "gradients are computed and not sent yet"),
    "between-acknowledgements": Point("worker", "one server has acknowledged, not yet all"),
    "batch-evaluated": Point("worker", "a batch of an evaluation is done, its task is not"),
    "metrics-computed": Point("worker", "an evaluation's metrics are known, not to the master yet"),
    "batch-predicted": Point("worker", "a batch is predicted and not written yet"),
    "task-done": Point("worker", "a task is done, and the master was not told yet"),
}
"""All points by name."""


def point(name: str, first: Callable[[], object] = lambda: None) -> None:
    """Die or hang here, if that was asked for; before a death `first` is called."""
    if not _FOLDER:
        return
    for armed in (name, f"{name}@{_PROCESS}"):
        path = Path(_FOLDER) / armed
        try:
            asked, _, seconds = path.read_text().partition(" ")
            if asked == HANG and not seconds:
                _wait_until_gone(path)
                continue
            # Of several processes that come here one finds the file.
            path.unlink()
        except FileNotFoundError:
            continue
        if asked == HANG:
            _hang(float(seconds))
            continue
        first()
        os.kill(os.getpid(), signal.SIGKILL)


def arm(folder: Path, name: str, process: str = "", hang: float = 0.0) -> Path:
    """Make the next process that comes to a point die there; return the file that it will remove.

    process: the only one that is meant. hang: seconds for which it is to hang there instead; inf:
    for ever.
    """
    path = folder / (f"{name}@{process}" if process else name)
    # At once with what it holds: a process may come there at any moment.
    written = path.with_name(f"{path.name}.new")
    written.write_text(f"{HANG} {hang:g}" if hang else "")
    written.replace(path)
    return path


def calls_file(folder: Path, process: str) -> Path:
    """Holds the id of a process that is to handle no call."""
    return folder / f"calls@{process}"


def own_calls_file() -> Path | None:
    """`calls_file` of this process; None without faults."""
    return calls_file(Path(_FOLDER), _PROCESS) if _FOLDER else None


def armed(name: str) -> bool:
    """True if this process is to die or hang at a point."""
    return any(path.exists() for path in files_of(name))


def files_of(*names: str) -> list[Path]:
    """Files of points, one of which is there while this process is to die or hang at one."""
    folder = Path(_FOLDER)
    return [folder / each for name in names for each in (name, f"{name}@{_PROCESS}") if _FOLDER]


def before_call() -> None:
    """Wait here, before a call is handled, while this process is to answer pings only."""
    if (path := own_calls_file()) is None:
        return
    with contextlib.suppress(FileNotFoundError):
        if path.read_text() == str(os.getpid()):
            _wait_until_gone(path)


def no_room_file(folder: Path, process: str) -> Path:
    """Is there while a process finds no room."""
    return folder / f"no-room@{process}"


def has_room(process: str) -> bool:
    """True if a process can be started now."""
    return not _FOLDER or not no_room_file(Path(_FOLDER), process).exists()


def _hang(seconds: float) -> None:
    while math.isinf(seconds):
        time.sleep(3600.0)
    time.sleep(seconds)


def _wait_until_gone(path: Path) -> None:
    while path.exists():
        time.sleep(0.05)


def hold(folder: Path, name: str, process: str = "") -> Path:
    """Hang each process that reaches a point, or only `process`, while the returned file exists."""
    path = folder / (f"{name}@{process}" if process else name)
    # Whole at once: an empty file is a death.
    written = path.with_name(f"{path.name}.{os.getpid()}")
    written.write_text(HANG)
    written.replace(path)
    return path


def route(address: str, peer: str) -> str:
    """The address to connect to for the process `peer` (TOKEN/ps-1) at an address (host:port)."""
    if not _FOLDER or not peer:
        return address
    relay = relay_file(Path(_FOLDER), _PROCESS, peer.rpartition("/")[2])
    try:
        through = relay.read_text()
    except FileNotFoundError:
        return address
    told = target_file(relay)
    written = told.with_name(f"{told.name}.{os.getpid()}")
    written.write_text(address)
    written.replace(told)
    return through


def relay_file(folder: Path, process: str, other: str) -> Path:
    """Holds the address of the relay through which `process` connects to `other`."""
    return folder / f"{process}.{other}"


def target_file(relay: Path) -> Path:
    """Holds the address at which the other process of a relay's file was last."""
    return relay.with_name(f"{relay.name}.at")


read_environment()
