"""The list of the sources that a finished job has trained, beside its checkpoints.

It names the checkpoint that holds all of it: the job that continues takes that one and no other.
With `--only-new` it leaves out the sources of the list. Owns the file, and the comparison by which
sources are new. The master writes it before the job's result.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from shoal.checkpoints.folders import Checkpoint
from shoal.checkpoints.formats import manifests
from shoal.checkpoints.formats.manifests import CheckpointError
from shoal.errors import UserError
from shoal.files.storage import Storage

NAME = "trained.json.gz"

FORMAT = 2

_DAMAGE = (ValueError, LookupError, TypeError, AttributeError, EOFError, OSError, zlib.error)


@dataclass(frozen=True)
class Trained:
    """A source that was trained. stamp: tells its version; "" where nothing does. job: by name."""

    stamp: str
    job: str


@dataclass(frozen=True)
class TrainedList:
    """The contents of the file.

    job: the id of the job. number, nonce: of the checkpoint that holds all that it trained; 0 and
    "" if there is none. sources: by name, those of the job and its forerunners; None where those
    of a forerunner are not known.
    """

    job: str
    number: int
    nonce: str
    sources: Mapping[str, Trained] | None

    def is_of(self, checkpoint: Checkpoint) -> bool:
        """True if it tells what the checkpoint holds."""
        named = self.job, self.number, self.nonce
        return named == (checkpoint.job, checkpoint.number, checkpoint.nonce)


def write_trained(root: Storage, trained: TrainedList) -> None:
    """Write it into the folder of the job's checkpoints. Raises OSError."""
    sources = trained.sources
    content = {
        "format": FORMAT,
        "job": trained.job,
        "checkpoint": [trained.number, trained.nonce],
        "sources": None
        if sources is None
        else {name: [each.stamp, each.job] for name, each in sorted(sources.items())},
    }
    root.make()
    with root.write(NAME) as file:
        file.write(gzip.compress(json.dumps(content).encode(), mtime=0))


def trained_list(root: Storage) -> TrainedList | None:
    """The list beside the checkpoints in a folder; None if there is none.

    Raises CheckpointError if it is damaged, or of another version, OSError.
    """
    if NAME not in root.names():
        return None
    path = root.path(NAME)
    with root.read(NAME) as file:
        packed = file.read()
    try:
        content = json.loads(gzip.decompress(packed))
        if content["format"] != FORMAT:
            raise CheckpointError(f"{path} is of another version of shoal")
        sources = content["sources"]
        if sources is not None:
            sources = {name: Trained(*each) for name, each in sources.items()}
        number, nonce = content["checkpoint"]
        return TrainedList(content["job"], number, nonce, sources)
    except _DAMAGE as error:
        raise CheckpointError(f"{path} is damaged: {error}") from error


def sources_of(checkpoint: Checkpoint) -> dict[str, Trained]:
    """The sources that the model of a checkpoint was trained on.

    Raises CheckpointError if the list is damaged.
    """
    root = checkpoint.root
    path, where = root.path(NAME), checkpoint.folder.location
    try:
        found = trained_list(root)
    except OSError as error:
        raise UserError(f"--only-new: {path}: {manifests.reason(error)}") from error
    instead = "Leave out --only-new, and name the files to train on"
    if found is None:
        raise UserError(
            f"--only-new: there is no {path}, which would tell what was trained before: it is "
            f"written when a job has succeeded, or by its --resume. {instead}"
        )
    if not found.is_of(checkpoint):
        raise UserError(f"--only-new: {path} does not tell what is in {where}. {instead}")
    if found.sources is None:
        raise UserError(
            f"--only-new: {path} does not tell what was trained before the job of {where}: it "
            f"continued from a job of which that was not known. {instead}"
        )
    return dict(found.sources)


def copy_trained(source: Checkpoint, target: Storage, job: str, number: int, nonce: str) -> None:
    """Copy the list of `source`, if any, for checkpoint `number` of `job`, which was made of it.

    Raises OSError.
    """
    with contextlib.suppress(UserError, CheckpointError):
        write_trained(target, TrainedList(job, number, nonce, sources_of(source)))


def only_new(
    names: Iterable[str], stamps: Mapping[str, str], before: Mapping[str, Trained]
) -> set[str]:
    """The sources that were not trained before.

    stamps: of sources, as they are now; "" where nothing tells. Raises UserError for one that was
    changed since.
    """
    new, changed = set(), []
    for name in names:
        known = before.get(name)
        if known is None:
            new.add(name)
        elif known.stamp and stamps.get(name) and stamps[name] != known.stamp:
            changed.append((name, known.job))
    if changed:
        name, job = min(changed)
        more = f", and {len(changed) - 1} more files," if len(changed) > 1 else ""
        raise UserError(
            f"--only-new: {name}{more} changed after job {job} had trained on it: part of it would "
            "be trained twice, or never. Write new records to a file of another name, or leave out "
            "--only-new and name the files to train on"
        )
    return new
