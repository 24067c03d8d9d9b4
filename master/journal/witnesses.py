"""The events that others have seen, compared with the journal: one that went back is refused.

Servers, workers, checkpoints, logs and result.json name the last event that they know of. If the
journal ends before that event, or has another one there, the records trained since would be
trained again, unseen. Owns that comparison, and after a new master's start the wait for all
processes that may know more than the journal does.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from shoal.base.disk.job_folder import JobFolder
from shoal.checkpoints import folders
from shoal.checkpoints.formats.manifests import CheckpointError
from shoal.config.job import JobConfig
from shoal.errors import UserError
from shoal.files.storage import open_storage
from shoal.master.job.job import Job
from shoal.master.job.members.members import ProcessState
from shoal.master.journal.journal import Journal
from shoal.master.work.ids import Start, WorkerId
from shoal.proto import shoal_pb2 as pb
from shoal.proto.values.positions import position_of

REMEMBERED = 4096
"""Positions that were told or compared: others are looked up in the files."""


class Witnesses:
    """The witnesses that have seen something of `journal`; shared by threads.

    waits_for: processes that an earlier master has told of its journal.
    """

    def __init__(self, journal: Journal, waits_for: Iterable[Start] = ()) -> None:
        self._journal = journal
        self._lock = threading.Lock()
        self._waits_for = set(waits_for)
        self._known: OrderedDict[int, int] = OrderedDict()

    def position(self) -> pb.JournalPosition:
        """The last event on disk, to be told."""
        position = self._journal.position
        self._remember(position.number, position.checksum)
        return position.message()

    def _remember(self, number: int, checksum: int) -> None:
        with self._lock:
            self._known[number] = checksum
            if len(self._known) > REMEMBERED:
                self._known.popitem(last=False)

    def hear(self, start: Start, seen: pb.JournalPosition) -> None:
        """A process says what it has seen. Raises UserError if the journal has not got that."""
        self.compare(str(start.process), seen)
        with self._lock:
            self._waits_for.discard(start)

    def compare(self, who: str, seen: pb.JournalPosition) -> None:
        """Raise UserError unless the journal has what `who` has seen."""
        if not seen.number:
            return
        last = self._journal.position
        path, number = self._journal.path, seen.number
        if seen.journal != last.journal:
            raise _refused(f"the journal {path} is another one than {who} has seen")
        if number > last.number:
            raise _refused(
                f"the journal {path} ends with event {last.number:,}, and {who} has seen event "
                f"{number:,}: its end is missing"
            )
        with self._lock:
            checksum = self._known.get(number)
        if checksum is None:
            checksum = self._journal.checksum_at(number)
            if checksum is not None:
                self._remember(number, checksum)
        if checksum != seen.checksum:
            raise _refused(
                f"the journal {path} has another event {number:,} than {who} has seen: its end was "
                "lost, and others were written since"
            )

    def all_heard(self, job: Job) -> bool:
        """True if no process is left that may know more of the journal than it has.

        A process that has died meanwhile cannot tell any more.
        """
        with self._lock:
            self._waits_for = {each for each in self._waits_for if _there(job, each)}
            return not self._waits_for


def told_before(job: Job) -> list[Start]:
    """The processes that the master of a job, as its journal has it, was in touch with."""
    workers = [Start(member.id, member.incarnation) for member in job.members.workers.values()]
    servers = [Start(member.id, member.incarnation) for member in job.members.servers.values()]
    return [start for start in (*workers, *servers) if _there(job, start)]


def _there(job: Job, start: Start) -> bool:
    process = start.process
    if isinstance(process, WorkerId):
        worker = job.members.workers.get(process)
        there = worker is not None and worker.state == ProcessState.ALIVE
        return there and worker is not None and worker.incarnation == start.incarnation
    server = job.members.servers.get(process)
    there = server is not None and server.state == ProcessState.ALIVE
    return there and server is not None and server.incarnation == start.incarnation


def _refused(what: str) -> UserError:
    return UserError(
        f"{what}. What was trained since would be trained again, so the job ends. Put back the "
        "undamaged files of the journal and go on with --resume, or begin anew with --overwrite"
    )


def compare_files(witnesses: Witnesses, folder: JobFolder, config: JobConfig) -> None:
    """Compare the journal with the files that the job has left. Raises UserError."""
    if (seen := _of_result(folder.result)) is not None:
        witnesses.compare(str(folder.result), seen)
    for where, position in _of_checkpoints(config):
        # Others may have left checkpoints in the same folder: they are another journal's.
        if position.journal == witnesses.position().journal:
            witnesses.compare(where, position)


def _of_result(path: Path) -> pb.JournalPosition | None:
    try:
        return position_of(json.loads(path.read_text())["journal"])
    except (OSError, ValueError, LookupError, TypeError):
        return None  # none yet, or of a job that came to nothing


def _of_checkpoints(config: JobConfig) -> Iterator[tuple[str, pb.JournalPosition]]:
    try:
        root = open_storage(config.checkpoint_dir)
        for number in folders.numbers(root):
            try:
                checkpoint = folders.Checkpoint(root, number)
            except CheckpointError:
                continue  # whoever wants to restore it says so
            told: list[Any] = [checkpoint.ledger.get("journal")]
            told += [shard.get("journal") for shard in checkpoint.shards]
            for each in told:
                if (position := position_of(each)) is not None:
                    yield checkpoint.folder.location, position
    except OSError:
        return  # there are none yet, or whoever wants to restore one says so
