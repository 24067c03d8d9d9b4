"""The folder into which a job publishes: its deltas by number, each chained to the one before.

    model-JOB/             of the model: model.json, written last, and a SavedModel without tables
    delta-000000001/       server-0000.NONCE.arrows, a share; manifest.json, written last
    live.json              a hint for who begins: the newest base, the oldest delta that is kept

Whoever has delta n asks for n + 1 by its name, so nothing depends on what a listing shows.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from shoal.checkpoints.formats import manifests
from shoal.checkpoints.formats.manifests import MANIFEST, CheckpointError
from shoal.deltas.schema import (
    DELTA_FORMAT,
    HINT_FORMAT,
    MODEL_FORMAT,
    DeltaManifest,
    Hint,
    LiveModel,
    LiveModelManifest,
    checked_delta,
    checked_hint,
    checked_model,
)
from shoal.files.storage import Storage
from shoal.proto import shoal_pb2 as pb

NAME = re.compile(r"delta-(\d{9,18})")
"""Of a delta's folder; the group is its number."""

MODEL_MANIFEST = "model.json"
HINT = "live.json"


class Delta(NamedTuple):
    """A delta that is whole. checksum: of its manifest's file, for the next one's `previous`."""

    manifest: DeltaManifest
    checksum: str

    @property
    def number(self) -> int:
        """Its number, from 1."""
        return self.manifest["number"]


def delta_name(number: int) -> str:
    """The folder of a delta."""
    return f"delta-{number:09d}"


def share_name(server: int, nonce: str) -> str:
    """The file of a server's share, of one attempt: an attempt given up replaces no later one."""
    return f"server-{server:04d}.{nonce}.arrows"


def model_name(job: str) -> str:
    """The folder of a job's model. job: its id."""
    return f"model-{job}"


def numbers(root: Storage) -> list[int]:
    """Numbers of the deltas of which a listing shows anything, rising. Raises OSError."""
    found = ((each, int(match[1])) for each in root.names() if (match := NAME.fullmatch(each)))
    return sorted(number for name, number in found if number and name == delta_name(number))


def exists(root: Storage, number: int) -> bool:
    """True if a delta is whole. Raises OSError if that cannot be told."""
    try:
        root.child(delta_name(number)).size(MANIFEST)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def read_delta(root: Storage, number: int) -> Delta:
    """The manifest of a delta that is there. Raises CheckpointError naming its file."""
    folder = root.child(delta_name(number))
    manifest = manifests.read(folder, MANIFEST, DELTA_FORMAT, checked_delta)
    path = folder.path(MANIFEST)
    if manifest["number"] != number:
        raise CheckpointError(f"{path}: of delta {manifest['number']}, not {number}")
    for position, share in enumerate(manifest["shares"]):
        if share["file"]["name"] != share_name(share["server"], manifest["nonce"]):
            raise CheckpointError(f"{path}: shares[{position}].file.name: of another delta")
    return Delta(manifest, manifests.checksum_of(manifest))


def newest(root: Storage) -> Delta | None:
    """The newest delta; None if there is none.

    By a listing, and then by name, as a listing may be late. Raises OSError, CheckpointError.
    """
    listed = reversed(numbers(root))
    number = next((each for each in listed if exists(root, each)), 0)
    while exists(root, number + 1):
        number += 1
    return read_delta(root, number) if number else None


def read_model(root: Storage, model: LiveModel) -> tuple[LiveModelManifest, pb.ModelSpec]:
    """The manifest of a delta's model. Raises CheckpointError if it is another, or damaged."""
    folder = root.child(model["folder"])
    manifests.check(folder, model["manifest"])
    return manifests.read(folder, MODEL_MANIFEST, MODEL_FORMAT, checked_model)


def read_hint(root: Storage) -> Hint:
    """The hint of where to begin. Raises CheckpointError if there is no hint, or a damaged one."""
    return manifests.read(root, HINT, HINT_FORMAT, checked_hint)
