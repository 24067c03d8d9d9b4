"""Checkpoints by number: which there are, opening one, completing one, removing one.

Owns the layout below the root, `checkpoint-00000001/manifest.json` and so on, and what
the manifest of the whole says. Reads no rows (arrow.py).
"""

from __future__ import annotations

import base64
import re
import time
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from shoal.checkpoints import manifests
from shoal.checkpoints.manifests import MANIFEST, CheckpointError
from shoal.checkpoints.storage import Storage, open_storage
from shoal.proto import shoal_pb2 as pb
from shoal.proto.routing import Routing

FORMAT = 2
NAME = re.compile(r"checkpoint-(\d{8,})")
"""Of a checkpoint's folder; the group is its number."""


def folder_name(number: int) -> str:
    """The folder of checkpoint `number`, counted from 1 and never used again."""
    return f"checkpoint-{number:08d}"


def numbers(root: Storage) -> list[int]:
    """Numbers of the checkpoints below `root`, whole or not, in order.

    Raises OSError if the folder cannot be read.
    """
    return sorted(int(match[1]) for each in root.names() if (match := NAME.fullmatch(each)))


def text(message: pb.ModelSpec | pb.RoutingTable) -> str:
    """A message as it stands in a manifest."""
    return base64.b64encode(message.SerializeToString(deterministic=True)).decode()


def complete(
    folder: Storage, number: int, job: str, shares: Sequence[dict[str, Any]], ledger: dict[str, Any]
) -> dict[str, Any]:
    """Make the shares in `folder` a checkpoint: the last step of taking one.

    job: whose it is. shares: what each server said of its own, by server: `manifest` (name,
    size and checksum of its manifest), `bytes`, `version`. ledger: the master's position.
    Returns the manifest.
    """
    content = {
        "format": FORMAT,
        "number": number,
        "job": job,
        "created": time.time(),
        "bytes": sum(share["bytes"] for share in shares),
        "version": max(share["version"] for share in shares),
        "shares": list(shares),
        "ledger": ledger,
    }
    manifests.write(folder, MANIFEST, content)
    return content


def _dict(content: Any) -> dict[str, Any]:
    return dict(content)


class Checkpoint:
    """A complete checkpoint, opened.

    job: the name of the job that took it. created: seconds since 1970. version: the
    highest of the servers'. ledger: the master's position. shares: what each server wrote,
    by server: `version`, `pushes` (the last one applied of each worker), `files`, `rows`.
    """

    def __init__(self, root: Storage, number: int) -> None:
        """Read the manifests. Raises CheckpointError naming a file that is not right."""
        self.folder = root.child(folder_name(number))
        path = self.folder.path(MANIFEST)
        manifest = manifests.read(self.folder, MANIFEST, FORMAT, _dict)
        if manifest["number"] != number:
            raise CheckpointError(f"{path}: of checkpoint {manifest['number']}, not {number}")
        self.number = number
        self.job: str = manifest["job"]
        self.created: float = manifest["created"]
        self.bytes: int = manifest["bytes"]
        self.version: int = manifest["version"]
        self.ledger: dict[str, Any] = manifest["ledger"]
        self.shares = [
            manifests.read(
                self.folder, manifests.check(self.folder, each["manifest"]), FORMAT, _dict
            )
            for each in manifest["shares"]
        ]
        self.model = pb.ModelSpec.FromString(base64.b64decode(self.shares[0]["model"]))
        self.routing = Routing.from_message(
            pb.RoutingTable.FromString(base64.b64decode(self.shares[0]["routing"]))
        )

    def verify(self) -> None:
        """Read every file. Raises CheckpointError naming one that is not as written."""
        for share in self.shares:
            for described in share["files"]:
                manifests.check(self.folder, described)

    def same_cut(self, routing: Routing) -> bool:
        """Whether the servers of `routing` hold just what those that wrote it held."""
        return routing.servers == len(self.shares) and bool(
            np.array_equal(routing.owners, self.routing.owners)
        )


def newest_good(
    root: Storage, candidates: Iterable[int] | None = None
) -> tuple[Checkpoint | None, list[CheckpointError]]:
    """The newest checkpoint below `root` whose every file is right; why newer ones are not.

    candidates: numbers to choose from; all by default. Raises OSError as `numbers`.
    """
    refused: list[CheckpointError] = []
    for number in sorted(numbers(root) if candidates is None else candidates, reverse=True):
        try:
            checkpoint = Checkpoint(root, number)
            checkpoint.verify()
        except CheckpointError as error:
            refused.append(error)
        else:
            return checkpoint, refused
    return None, refused


def checkpoint_at(location: str) -> Checkpoint | None:
    """The checkpoint at a path or URL, or the newest good one in it; None if it holds none.

    Raises CheckpointError if it is not as written, or all that are there are not.
    """
    parent, _, name = location.rstrip("/").rpartition("/")
    try:
        if match := NAME.fullmatch(name):
            return Checkpoint(open_storage(parent or "/"), int(match[1]))
        root = open_storage(location)
        if not numbers(root):
            return None
        checkpoint, refused = newest_good(root)
    except OSError as error:
        raise CheckpointError(f"{location}: {manifests.reason(error)}") from error
    if checkpoint is None:
        raise CheckpointError(f"{location} holds no whole checkpoint: {refused[0]}")
    return checkpoint
