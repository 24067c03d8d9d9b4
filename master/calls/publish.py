"""Publishing a delta: the calls to the servers, the manifest, and the removal of old deltas.

The newest manifest in the folder is the record of all that was published: what the next delta has
follows from it and from what each server says of itself. So a new master goes on from there, and an
attempt of which nobody knows whether it was completed is looked at first. Owns the order that makes
a delta whole or none; when one is due is job/publishing/publishing.py's to say.
"""

from __future__ import annotations

import json
import logging
import secrets
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.checkpoints.continued import forerunner_checkpoint
from shoal.checkpoints.formats import manifests
from shoal.checkpoints.formats.manifests import CheckpointError
from shoal.config.job import JobConfig
from shoal.errors import Error
from shoal.files.storage import Storage, open_storage
from shoal.master.calls.servers import Place, ServerConnections
from shoal.master.calls.take_checkpoint import reason_of
from shoal.master.job.events import Published
from shoal.master.work.ids import ServerId
from shoal.proto import faults
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import CallError
from shoal.proto.values.routing import SLOTS, Routing, to_bits

if TYPE_CHECKING:
    from shoal.deltas.chain import Delta
    from shoal.deltas.schema import DeltaManifest, Flags, LiveModel, Share

logger = logging.getLogger(__name__)

KEEP_SECONDS = 600.0
"""For which a delta is kept after a newer base: a follower that is slower reads a base again."""

KEEP_BASES = 2
"""The newest ones, which are kept with all deltas after them."""


class PublishError(Error):
    """A delta could not be published; the message says why. for_good: nor could any other."""

    def __init__(self, message: str, *, for_good: bool = False) -> None:
        super().__init__(message)
        self.for_good = for_good


@dataclass(frozen=True)
class Position:
    """The job's state for a delta: the table that holds, and the records trained by now.

    newest: the number of the newest delta by the journal; 0 for none.
    """

    routing: Routing
    records: int
    newest: int = 0


class DeltaPublisher:
    """Publishes the deltas of one job, one at a time, on a thread of the caller's."""

    def __init__(self, config: JobConfig, servers: ServerConnections) -> None:
        self._config = config
        self._servers = servers
        self._newest: Delta | None = None
        self._looked = self._looked_once = False
        self._known: dict[int, float] = {}
        self._seconds = 0.0  # of a processor, which the slowest share took
        self._begins_after = 0  # the number of another job's delta, from which this one goes on

    def check(self) -> None:
        """Look at the folder. Raises PublishError, for good if it is another series of jobs."""
        try:
            self._look(open_storage(self._config.publish))
        except (OSError, CheckpointError) as error:
            raise PublishError(f"--publish {self._config.publish}: {_reason(error)}") from error

    def publish(self, places: Mapping[ServerId, Place], position: Position) -> Published:
        """Publish what has changed since the newest delta.

        places: of all servers. Raises PublishError; what was written is then no delta, and is
        removed with those of its time.
        """
        from shoal.checkpoints.formats.schema import (
            SchemaError,  # late: it takes the start of a process a while
        )

        config = self._config
        try:
            root = open_storage(config.publish)
            root.make()
            before = self._look(root)
            # Until the end, nobody knows what is in the folder.
            self._looked = False
            manifest = self._manifest(root, before, places, position)
            faults.point("before-manifest")
            folder = root.child(_names().delta_name(manifest["number"]))
            manifests.write(folder, manifests.MANIFEST, manifest)
            faults.point("delta-published")
            self._newest = _names().Delta(manifest, manifests.checksum_of(manifest))
            self._looked = True
        except (OSError, CheckpointError, SchemaError, CallError) as error:
            raise PublishError(reason_of(error, config.publish)) from error
        if manifest["base"]:
            self._tell_base(root, manifest["number"])
        size = sum(share["file"]["bytes"] for share in manifest["shares"])
        logger.info("published delta %d: %d bytes", manifest["number"], size)
        return Published(manifest["number"], manifest["base"], size, self._seconds)

    def _look(self, root: Storage) -> Delta | None:
        """The newest delta in the folder, which is this job's, or that from which it goes on."""
        chain = _names()
        newest = self._newest
        if not self._looked or chain.exists(root, 1 if newest is None else newest.number + 1):
            newest = chain.newest(root)
        if newest is not None and newest.manifest["job"] != self._config.job_id:
            if not self._looked_once:
                self._check_series(newest)
                self._begins_after = newest.number
            elif newest.number != self._begins_after:
                raise PublishError(
                    f"--publish {self._config.publish}: another job publishes there, too: give "
                    "each job a folder of its own",
                    for_good=True,
                )
        self._newest, self._looked, self._looked_once = newest, True, True
        return newest

    def _check_series(self, newest: Delta) -> None:
        """Raises PublishError unless this job may go on after another job's delta."""
        config = self._config
        if config.overwrite:
            return
        if config.continue_from:
            try:
                before = forerunner_checkpoint(config.continue_from).job
            except CheckpointError as error:
                raise PublishError(f"--continue-from {config.continue_from}: {error}") from error
            if before == newest.manifest["job"]:
                return
        name = newest.manifest["job_name"] or newest.manifest["job"]
        raise PublishError(
            f"--publish {config.publish}: it has deltas of job {name}, which this job does not "
            "continue: name that job with --continue-from, name another folder, or give "
            "--overwrite for followers to go on with this model",
            for_good=True,
        )

    def _manifest(
        self,
        root: Storage,
        before: Delta | None,
        places: Mapping[ServerId, Place],
        position: Position,
    ) -> DeltaManifest:
        """The manifest of the shares that the servers are made to write."""
        from shoal.deltas.schema import DELTA_FORMAT, checked_delta

        config, routing, chain = self._config, position.routing, _names()
        there = 0 if before is None else before.number
        number = max(there, position.newest) + 1
        nonce = secrets.token_hex(8)
        model = self._model(root)
        # A delta that was lost may be what followers have: its number is not used again, and they
        # find a base after it.
        lost = position.newest > there
        due = before is None or lost or _base_due(before.manifest, model)
        last = {each["server"]: each for each in before.manifest["shares"]} if before else {}
        near = before is not None and _one_move(before.manifest["epoch"], routing.epoch)

        def share(server: ServerId, place: Place) -> pb.PublishReply:
            told = last.get(server.index)
            whole = np.ones(SLOTS, bool)
            if told is not None and near and not due:
                whole = _came(told)
            request = pb.PublishRequest(
                number=number,
                nonce=nonce,
                routing_epoch=routing.epoch,
                life="" if told is None else told["life"],
                since=0 if told is None else told["to"] + 1,
                whole=to_bits(whole),
            )
            return self._servers.publish(server, place, request)

        with ThreadPoolExecutor(len(places), thread_name_prefix="publish") as threads:
            replies = list(threads.map(share, places.keys(), places.values()))
        self._seconds = max(each.seconds for each in replies)
        shares: list[Share] = [json.loads(each.share) for each in replies]
        size = sum(each["file"]["bytes"] for each in shares)
        base = all(each["whole"] == each["owned"] and each["dense"] for each in shares)
        since = None if base or before is None else before.manifest
        manifest: DeltaManifest = {
            "format": DELTA_FORMAT,
            "number": number,
            "nonce": nonce,
            "job": config.job_id,
            "job_name": config.job_name,
            "created": time.time(),
            "previous": "" if before is None else before.checksum,
            "base": base,
            "newest_base": number if since is None else since["newest_base"],
            "base_bytes": size if since is None else since["base_bytes"],
            "bytes_since": 0 if since is None else since["bytes_since"] + size,
            "epoch": routing.epoch,
            "version": max(each["version"] for each in shares),
            "records": position.records,
            "model": model,
            "shares": shares,
        }
        if chain.exists(root, number):
            raise PublishError(f"{root.path(chain.delta_name(number))} was not there before")
        return checked_delta(manifest)

    def _model(self, root: Storage) -> LiveModel:
        """The model's folder, which a worker has written before training. Raises OSError."""
        chain = _names()
        name = chain.model_name(self._config.job_id)
        described = manifests.describe(root.child(name), chain.MODEL_MANIFEST)
        return {"folder": name, "manifest": described}

    def _is_old(self, base: int) -> bool:
        """True if this master has known a base for so long: of an earlier one's, it counts anew."""
        now = time.monotonic()
        return now - self._known.setdefault(base, now) > KEEP_SECONDS

    def _tell_base(self, root: Storage, number: int) -> None:
        """Write where followers begin, and remove what is not kept: by the next base, too."""
        chain = _names()
        try:
            there = chain.numbers(root)
            oldest = self._oldest_kept(root, number, there)
            content = {"format": chain.HINT_FORMAT, "base": number, "oldest": oldest}
            manifests.write(root, chain.HINT, content)
            for each in there:
                if each < oldest:
                    folder = root.child(chain.delta_name(each))
                    folder.discard(manifests.MANIFEST)  # first: half removed, it is none
                    folder.remove()
        except OSError as error:
            logger.warning("%s: %s", root.path(chain.HINT), _reason(error))

    def _oldest_kept(self, root: Storage, base: int, there: list[int]) -> int:
        """The number of the base from which on all is kept.

        base: the newest. there: numbers of the deltas in the folder, rising.
        """
        kept = 1
        while not self._is_old(base) or kept < KEEP_BASES:
            if (before := _base_before(root, base, there)) is None:
                break
            base = before
            kept += 1
        self._known = {each: since for each, since in self._known.items() if each >= base}
        return base


def _base_before(root: Storage, base: int, there: list[int]) -> int | None:
    """The base before another one; None if no delta before that is whole."""
    for number in reversed([each for each in there if each < base]):
        with suppress(CheckpointError):
            return int(_names().read_delta(root, number).manifest["newest_base"])
    return None


def _came(told: Share) -> Flags:
    """The slots that were not a server's at its last share."""
    from shoal.deltas.schema import slots_of

    return ~slots_of("owned", told["owned"])


def _one_move(before: int, now: int) -> bool:
    """True if slots of a table have moved once, at most, since another one.

    After several moves one may be back, with rows that were changed at another server.
    """
    return now - before in (0, 1)


def _base_due(manifest: DeltaManifest, model: LiveModel) -> bool:
    """True if the next delta is to be a base.

    So what a follower reads that has nothing is at most twice what is there, and what is written
    about twice what has changed.
    """
    return manifest["model"] != model or manifest["bytes_since"] > manifest["base_bytes"]


def _names() -> Any:
    from shoal.deltas import chain  # late: as above

    return chain


def _reason(error: OSError | CheckpointError) -> str:
    return manifests.reason(error) if isinstance(error, OSError) else str(error)
