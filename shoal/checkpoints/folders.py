"""Checkpoints by number: which there are, opening one, completing one, removing one.

Owns the layout below the root, `checkpoint-00000001/manifest.json` and so on, and what
the manifest of the whole says. Reads no rows (arrow.py).
"""

from __future__ import annotations

import base64
import logging
import re
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from google.protobuf.message import Message

from shoal.checkpoints.formats import manifests
from shoal.checkpoints.formats.manifests import FORMAT, MANIFEST, CheckpointError
from shoal.files.storage import Storage
from shoal.proto import shoal_pb2 as pb
from shoal.proto.values.routing import Routing

if TYPE_CHECKING:
    from shoal.checkpoints.formats.schema import Manifest, Shard, ShardEntry

logger = logging.getLogger(__name__)


NAME = re.compile(r"checkpoint-(\d{8,18})")
"""Of a checkpoint's folder; the group is its number."""

BEGUN = "begun.json"
"""In the folder of a checkpoint that is under way: whose it is. So nobody removes another
job's, and on an object store, which has no folders, its number is taken."""

OURS = re.compile(r"(server-\d{4,}\.[0-9a-f]{16}\..+|begun\.json|manifest\.json)(\.tmp)?")
"""Names of files in the folder of a checkpoint that is not complete."""


def folder_name(number: int) -> str:
    """The folder of checkpoint `number`, counted from 1."""
    return f"checkpoint-{number:08d}"


def names_one(location: str) -> bool:
    """True if a path or URL is that of one checkpoint, by its last name."""
    return NAME.fullmatch(location.rstrip("/").rpartition("/")[2]) is not None


def numbers(root: Storage) -> list[int]:
    """Numbers of the checkpoints below `root`, whole or not, in order.

    Raises OSError if the folder cannot be read.
    """
    found = ((each, int(match[1])) for each in root.names() if (match := NAME.fullmatch(each)))
    # A folder with another number of zeros before its number is not ours.
    return sorted(number for name, number in found if number and name == folder_name(number))


def text(message: Message) -> str:
    """A message as it stands in a manifest."""
    return base64.b64encode(message.SerializeToString(deterministic=True)).decode()


@dataclass(frozen=True)
class Attempt:
    """A checkpoint that is being taken.

    nonce: of this attempt alone. Its number may come twice, where a master was killed before
    anything of it was seen; the nonce tells one from the other. job: the id of the job that
    takes it, for who completes it.
    """

    folder: Storage
    number: int
    nonce: str
    job: str = ""


def begin(root: Storage, number: int, job: str) -> Attempt:
    """Create the folder of a new checkpoint of `job`. Raises OSError."""
    attempt = Attempt(root.child(folder_name(number)), number, secrets.token_hex(8), job)
    attempt.folder.make()
    content = {"format": FORMAT, "number": number, "nonce": attempt.nonce, "job": job}
    manifests.write(attempt.folder, BEGUN, content)
    return attempt


def complete(attempt: Attempt, shards: Sequence[ShardEntry], ledger: dict[str, Any]) -> Manifest:
    """Make the shards in an attempt's folder a checkpoint: the last step of taking one.

    shards: what each server said of its own, by server. ledger: the master's position.
    Returns the manifest. Raises OSError.
    """
    content: Manifest = {
        "format": FORMAT,
        "number": attempt.number,
        "nonce": attempt.nonce,
        "job": attempt.job,
        "created": time.time(),
        "bytes": sum(shard["bytes"] for shard in shards),
        "version": max(shard["version"] for shard in shards),
        "shards": list(shards),
        "ledger": ledger,
    }
    manifests.write(attempt.folder, MANIFEST, content)
    try:
        attempt.folder.discard(BEGUN)
    except OSError as error:
        # It is a checkpoint all the same.
        logger.warning("%s stays: %s", attempt.folder.path(BEGUN), error)
    return content


def remove(folder: Storage) -> None:
    """Remove the folder of a checkpoint; what cannot be removed stays, with a warning."""
    try:
        # First: half removed, it must not pass for a whole one.
        folder.discard(MANIFEST)
        folder.remove()
    except OSError as error:
        logger.warning("%s could not be removed: %s", folder.location, error)


def remove_abandoned(root: Storage, job: str, under_way: int = 0) -> None:
    """Remove what killed processes of `job` left of checkpoints that they did not complete.

    under_way: number of one that is not to be touched. Nothing that is not ours is removed:
    a folder in which anything else is stays. Raises OSError.
    """
    from shoal.checkpoints.formats import schema  # late: it takes the start of a process a while

    for number in numbers(root):
        folder = root.child(folder_name(number))
        names = folder.names()
        if number == under_way or MANIFEST in names or BEGUN not in names:
            continue
        try:
            left = manifests.read(folder, BEGUN, FORMAT, schema.checked_begun)
        except CheckpointError:
            continue
        if left["job"] == job and all(OURS.fullmatch(name) for name in names):
            logger.info("removing %s, which was not completed", folder.location)
            folder.remove()


class Checkpoint:
    """A complete checkpoint, opened.

    root: the folder of the checkpoints. job: the id of the job that took it. created: seconds
    since 1970. version: the highest of the servers'. ledger: the master's position. shards: what
    each server wrote, by server.
    """

    def __init__(self, root: Storage, number: int, nonce: str = "") -> None:
        """Read the manifests.

        nonce: that it is to have; "" for any. Raises CheckpointError naming a file that is
        not right.
        """
        from shoal.checkpoints.formats import (
            schema,  # late: it takes the start of a process a while
        )

        self.root, self.folder = root, root.child(folder_name(number))
        path = self.folder.path(MANIFEST)
        manifest = manifests.read(self.folder, MANIFEST, FORMAT, schema.checked_manifest)
        if manifest["number"] != number:
            raise CheckpointError(f"{path}: of checkpoint {manifest['number']}, not {number}")
        if nonce not in ("", manifest["nonce"]):
            raise CheckpointError(f"{path}: of another attempt than the job knows")
        self.number = number
        self.nonce = manifest["nonce"]
        self.job: str = manifest["job"]
        self.created: float = manifest["created"]
        self.bytes: int = manifest["bytes"]
        self.version: int = manifest["version"]
        self.ledger: dict[str, Any] = manifest["ledger"]
        self.shards: list[Shard] = []
        for server, entry in enumerate(manifest["shards"]):
            shard, model, routing = self._read_shard(manifest, server, entry)
            if not server:
                self.model, self.routing = model, routing
            self.shards.append(shard)

    def _read_shard(
        self, manifest: Manifest, server: int, entry: ShardEntry
    ) -> tuple[Shard, pb.ModelSpec, Routing]:
        from shoal.checkpoints.formats import schema

        name = manifests.check(self.folder, entry["manifest"])
        shard, model, routing = manifests.read(self.folder, name, FORMAT, schema.checked_shard)
        first = self.shards[0] if server else shard
        size = entry["manifest"]["bytes"] + sum(file["bytes"] for file in shard["files"])
        wanted = {
            "number": manifest["number"],
            "nonce": manifest["nonce"],
            "server": server,
            "servers": len(manifest["shards"]),
            "version": entry["version"],
            "model": first["model"],
            "routing": first["routing"],
        }
        for field, value in wanted.items():
            if shard[field] != value:  # type: ignore[literal-required]
                raise CheckpointError(f"{self.folder.path(name)}: {field}: of another checkpoint")
        if size != entry["bytes"]:
            raise CheckpointError(
                f"{self.folder.path(MANIFEST)}: shards[{server}].bytes: not {size}"
            )
        return shard, model, routing

    def check_files(self) -> None:
        """Look whether every file is there, and as long as it was written; nothing of them is read.

        Raises CheckpointError naming one that is not.
        """
        for shard in self.shards:
            for file in shard["files"]:
                manifests.check_size(self.folder, file)

    def same_cut(self, routing: Routing) -> bool:
        """True if the servers of `routing` hold the same as those that wrote the checkpoint."""
        return routing.servers == len(self.shards) and bool(
            np.array_equal(routing.owners, self.routing.owners)
        )
