"""Which sources a job and its forerunners have trained, beside the job's checkpoints.

For `--only-new`: the job that continues from one of them leaves these sources out. Owns the file
and what is new by it. The master writes it before the job's result, so a job that has ended well
has one.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from shoal.checkpoints import manifests
from shoal.checkpoints.folders import Checkpoint
from shoal.checkpoints.manifests import CheckpointError
from shoal.checkpoints.storage import Storage
from shoal.errors import UserError

NAME = "trained.json.gz"

FORMAT = 1

_DAMAGE = (ValueError, LookupError, TypeError, AttributeError, EOFError, OSError, zlib.error)


@dataclass(frozen=True)
class Trained:
    """A source that was trained. stamp: tells its version; "" where nothing does. job: by name."""

    stamp: str
    job: str


def write_trained(root: Storage, job_id: str, sources: Mapping[str, Trained]) -> None:
    """Write what a job and its forerunners have trained into the folder of its checkpoints.

    Raises OSError.
    """
    content = {
        "format": FORMAT,
        "job": job_id,
        "sources": {name: [each.stamp, each.job] for name, each in sorted(sources.items())},
    }
    root.make()
    with root.write(NAME) as file:
        file.write(gzip.compress(json.dumps(content).encode(), mtime=0))


def read_trained(location: str) -> dict[str, Trained]:
    """What was trained by the job that took the checkpoint at a path or URL, and before it.

    Raises UserError if nothing tells, or what does cannot be read.
    """
    from shoal.checkpoints.continued import forerunner_checkpoint  # late: few jobs continue one

    try:
        checkpoint = forerunner_checkpoint(location)
    except CheckpointError as error:
        raise UserError(f"--continue-from: {error}") from error
    return _read(checkpoint)


def _read(checkpoint: Checkpoint) -> dict[str, Trained]:
    root = checkpoint.root
    path = root.path(NAME)
    try:
        if NAME not in root.names():
            raise UserError(
                f"--only-new: there is no {path}, which would tell what was trained before: it is "
                "written when a job has succeeded. Train once without --only-new"
            )
        with root.read(NAME) as file:
            packed = file.read()
    except OSError as error:
        raise UserError(f"--only-new: {path}: {manifests.reason(error)}") from error
    try:
        content = json.loads(gzip.decompress(packed))
        version, job = content["format"], content["job"]
        found = {name: Trained(*each) for name, each in content["sources"].items()}
    except _DAMAGE as error:
        raise UserError(f"--only-new: {path} is damaged: {error}") from error
    if version != FORMAT:
        raise UserError(f"--only-new: {path} is of another version of shoal")
    if job != checkpoint.job:
        raise UserError(
            f"--only-new: {path} is of another job than {checkpoint.folder.location}: that job has "
            "not succeeded, or was replaced. Train once without --only-new"
        )
    return found


def copy_trained(source: Checkpoint, target: Storage, job_id: str) -> None:
    """Have a checkpoint made of another one tell the same, if that tells. Raises OSError."""
    try:
        found = _read(source)
    except UserError:
        return
    write_trained(target, job_id, found)


def only_new(
    names: Iterable[str], stamps: Mapping[str, str], before: Mapping[str, Trained]
) -> set[str]:
    """Those of the sources that were not trained before.

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
