"""Taking a checkpoint: the calls to the servers, the manifest, and the files' removal.

Owns the order that makes a checkpoint whole or none: all servers fix what they hold, all
write it, and only then is the manifest written. When, and what follows, is checkpoints.py's.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from shoal.checkpoints import folders
from shoal.checkpoints.folders import Attempt, folder_name
from shoal.checkpoints.formats import manifests
from shoal.checkpoints.formats.manifests import CheckpointError
from shoal.config.job import JobConfig
from shoal.errors import Error
from shoal.files.storage import Storage, open_storage
from shoal.master.calls.servers import Place, ServerConnections
from shoal.master.job.events import Taken
from shoal.master.work.ids import ServerId
from shoal.proto import faults
from shoal.proto.errors import CallError, WireError

if TYPE_CHECKING:
    from shoal.checkpoints.formats.schema import Manifest

logger = logging.getLogger(__name__)


class TakingError(Error):
    """A checkpoint could not be taken; the message says why."""


class CheckpointTaker:
    """Takes the checkpoints of one job, one at a time, on a thread of the caller's."""

    def __init__(self, config: JobConfig, servers: ServerConnections) -> None:
        self._root = config.checkpoint_dir
        self._job = config.job_id
        self._servers = servers
        self._last = 0

    def found(self) -> list[Taken]:
        """The checkpoints of this job that are there already, oldest first."""
        found = []
        try:
            root = open_storage(self._root)
            there = folders.numbers(root)
        except OSError as error:
            logger.warning("looking for checkpoints: %s", error)
            return []
        for number in there:
            try:
                each = folders.Checkpoint(root, number)
            except CheckpointError as error:
                logger.warning("checkpoint %d is not counted: %s", number, error)
                continue
            if each.job == self._job:
                found.append(Taken(number, each.version, each.bytes, 0.0, each.nonce))
        return found

    def take(
        self,
        places: Mapping[ServerId, Place],
        ledger: Callable[[], dict[str, Any]],
        undisturbed: Callable[[Callable[[], dict[str, Any]]], dict[str, Any]] = lambda fix: fix(),
    ) -> Taken:
        """Take a checkpoint.

        places: of all servers. ledger: gives the master's position, asked for when all
            servers have fixed theirs. undisturbed: calls what does both, and gives its result.
        Raises TakingError; then nothing of it is left, as far as that can be removed.
        """
        from shoal.checkpoints.formats import (
            schema,  # late: it takes the start of a process a while
        )

        began = time.monotonic()
        attempt = None
        try:
            root = open_storage(self._root)
            root.make()
            number = self._last = max([self._last, *folders.numbers(root)]) + 1
            attempt = folders.begin(root, number, self._job)
            content = self._write(attempt, places, ledger, undisturbed)
        except (OSError, schema.SchemaError, CallError) as error:
            if attempt is not None:
                for server, place in places.items():
                    self._servers.drop_checkpoint(server, place, attempt.number, attempt.nonce)
                folders.remove(attempt.folder)
            raise TakingError(reason_of(error, self._root)) from error
        seconds = time.monotonic() - began
        self._remove_abandoned(root)
        return Taken(number, content["version"], content["bytes"], seconds, attempt.nonce)

    def _write(
        self,
        attempt: Attempt,
        places: Mapping[ServerId, Place],
        ledger: Callable[[], dict[str, Any]],
        undisturbed: Callable[[Callable[[], dict[str, Any]]], dict[str, Any]],
    ) -> Manifest:
        from shoal.checkpoints.formats.schema import shard_entry  # late: as above

        number, nonce = attempt.number, attempt.nonce

        def of_all(call: Callable[[ServerId, Place], Any]) -> list[Any]:
            return list(threads.map(call, places.keys(), places.values()))

        with ThreadPoolExecutor(len(places), thread_name_prefix="checkpoint") as threads:

            def fix() -> dict[str, Any]:
                of_all(lambda server, at: self._servers.begin_checkpoint(server, at, number, nonce))
                return ledger()

            position = undisturbed(fix)
            faults.point("checkpoint-begun")
            written = of_all(
                lambda server, at: self._servers.write_shard(server, at, number, nonce)
            )
        faults.point("checkpoint-written")
        # By server: their files' names begin with it.
        shards = sorted(
            (shard_entry(shard) for each in written for shard in each),
            key=lambda shard: shard["manifest"]["name"],
        )
        return folders.complete(attempt, shards, position)

    def _remove_abandoned(self, root: Storage) -> None:
        """Now that every server has let go of what an earlier master began."""
        try:
            folders.remove_abandoned(root, self._job)
        except OSError as error:
            logger.warning("looking for what was left of checkpoints: %s", error)

    def remove(self, numbers: Sequence[int]) -> None:
        """Remove checkpoints that are not wanted any more; what cannot be removed stays."""
        for number in numbers:
            folders.remove(open_storage(self._root).child(folder_name(number)))


def reason_of(error: Exception, root: str) -> str:
    """The reason why files in the folder `root`, or a server's, could not be written, in words."""
    if isinstance(error, WireError):
        return error.message
    if isinstance(error, OSError):
        return f"{error.filename or root}: {manifests.reason(error)}"
    return str(error)
