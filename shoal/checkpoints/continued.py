"""The checkpoint that `--continue-from` names: another job's, that a new job goes on from.

Owns finding it, and whether a model can go on with it as it is.
"""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Callable, Iterable

from shoal.base.disk.job_folder import CHECKPOINTS
from shoal.checkpoints.folders import Checkpoint, folder_name, names_one
from shoal.checkpoints.formats import manifests
from shoal.checkpoints.formats.manifests import CheckpointError
from shoal.checkpoints.migration_terms import loses_ids, value_dtype
from shoal.checkpoints.newest import checkpoint_at
from shoal.checkpoints.trained import NAME, Trained, sources_of, trained_list
from shoal.errors import UserError
from shoal.files.storage import Storage, open_storage
from shoal.native.optimizers import OptimizerSpec
from shoal.proto import shoal_pb2 as pb

MOST_TOLD = 3
"""Differences that an error lists."""


def forerunner_checkpoint(
    location: str, opened: Callable[[str], Storage] = open_storage
) -> Checkpoint:
    """The checkpoint at a path or URL: one, or the newest of a folder of them or of a job's folder.

    opened: opens the folder at a path or URL. Its files are there; whether each is as written is
    seen by the server that reads it. Of a job that has come to its end it is the one that holds all
    that the job has trained. Raises CheckpointError if there is none, or its files lack.
    """
    location = location.rstrip("/")
    for folder in (location, f"{location}/{CHECKPOINTS}"):
        if (found := last_checkpoint_at(folder, opened, Checkpoint.check_files)) is not None:
            return found
    raise CheckpointError(f"{location} holds no checkpoint")


def last_checkpoint_at(
    location: str,
    opened: Callable[[str], Storage] = open_storage,
    check: Callable[[Checkpoint], object] | None = None,
) -> Checkpoint | None:
    """The checkpoint of `checkpoint_at`; of a folder, the one that has all that its job trained.

    Raises CheckpointError, too, if that one is missing although the job has come to its end.
    """
    newest = checkpoint_at(location, opened, check)
    if newest is None or names_one(location):
        return newest
    try:
        told = trained_list(newest.root)
    except OSError as error:
        raise CheckpointError(f"{newest.root.path(NAME)}: {manifests.reason(error)}") from error
    if told is None or told.job != newest.job or told.is_of(newest):
        return newest
    last = newest.root.child(folder_name(told.number)).location
    raise CheckpointError(
        f"{last} is missing, which has all that its job has trained"
        if told.number
        else f"no checkpoint in {newest.root.location} has all that its job has trained"
    )


def read_trained(location: str) -> dict[str, Trained]:
    """The sources that the model in the checkpoint at a path or URL was trained on.

    Raises UserError if nothing tells, or the list cannot be read.
    """
    try:
        checkpoint = forerunner_checkpoint(location)
        return sources_of(checkpoint)
    except CheckpointError as error:
        raise UserError(f"--continue-from: {error}") from error


def differences(old: pb.ModelSpec, new: pb.ModelSpec) -> list[str]:
    """The differences that keep a model from going on with a checkpoint as it is, in words.

    Empty if nothing does. old: the checkpoint's model. new: the one to go on. Hyperparameters,
    schedules, seeds, and the options of admission, expiry and caps may differ.
    """
    found = []
    for left, right in itertools.zip_longest(old.tables, new.tables):
        if left is None or right is None or left.name != right.name:
            found.append(f"table {_name(right)} where the checkpoint has {_name(left)}")
            break
        if left.dim != right.dim:
            found.append(f"table {left.name!r} has dim {right.dim}, and {left.dim} there")
        was, kind = value_dtype(left), value_dtype(right)
        if was != kind:
            found.append(f"table {left.name!r} has {kind} rows, and {was} there")
        if loses_ids(left, right):
            there = f"below {left.vocabulary}" if left.vocabulary else "of any value"
            found.append(
                f"table {left.name!r} takes ids below {right.vocabulary}, and has ids {there} there"
            )
        found += _rules(f"table {left.name!r}", left.optimizer, right.optimizer)
    for kind in ("trainable", "non_trainable"):
        found += _variables(getattr(old, kind), getattr(new, kind))
    if new.trainable:
        found += _rules("the dense variables", old.dense_optimizer, new.dense_optimizer)
    return found


def refusal(checkpoint: Checkpoint, found: list[str]) -> UserError:
    """The error about a checkpoint of another model. found: by `differences`, at least one."""
    told = "; ".join(found[:MOST_TOLD])
    more = f"; and {len(found) - MOST_TOLD} more" if len(found) > MOST_TOLD else ""
    where = checkpoint.folder.location
    return UserError(
        f"--continue-from: the model is another one than that of {where}: {told}{more}. Migrate "
        f"the checkpoint first, and continue from the new one: shoal checkpoint migrate "
        f"{shlex.quote(where)} migrated --model-def ..."
    )


def _variables(old: Iterable[pb.VariableSpec], new: Iterable[pb.VariableSpec]) -> list[str]:
    for left, right in itertools.zip_longest(old, new):
        if left is None or right is None or left.name != right.name:
            return [f"variable {_name(right)} where the checkpoint has {_name(left)}"]
        if left.shape != right.shape:
            return [f"variable {left.name} has shape {[*right.shape]}, and {[*left.shape]} there"]
    return []


def _rules(which: str, old: str, new: str) -> list[str]:
    left, right = (OptimizerSpec.from_json(each).rule for each in (old, new))
    return [] if left == right else [f"the optimizer of {which} is {right}, and {left} there"]


def _name(spec: pb.TableSpec | pb.VariableSpec | None) -> str:
    return "none" if spec is None else repr(spec.name)
