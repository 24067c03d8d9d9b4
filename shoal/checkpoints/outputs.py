"""Which result of a job may replace what is at --output, and which errors another --output mends.

How a result is written and put in its place is places.py's; its content is written by
worker/outputs/export.py and worker/outputs/prediction_output.py.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

from shoal.checkpoints.places import Place, place_at
from shoal.config.flags import flag
from shoal.config.job import JobConfig
from shoal.errors import StorageAwayError, StorageError, UserError

if TYPE_CHECKING:
    from shoal.files.patience import Patience

Result = TypeVar("Result")

_TO_MEND = frozenset(
    {
        errno.EACCES,
        errno.EEXIST,
        errno.EISDIR,
        errno.ENAMETOOLONG,
        errno.ENOENT,
        errno.ENOTDIR,
        errno.ENOTEMPTY,
        errno.EPERM,
        errno.EROFS,
    }
)
"""Errors that say that --output is not a place to write to."""

READ_FIELDS = ("training_data", "validation_data", "prediction_data", "restore_from")


def check_output(config: JobConfig) -> None:
    """Refuse an --output that holds what this job must not replace. Changes nothing.

    The result of an earlier job is replaced with --overwrite only, anything else never;
    what this job itself has written, it may write again.

    Raises UserError.
    """
    try:
        check_replaced(config)
    except OSError as error:
        raise UserError(f"--output: cannot read {config.output}: {error}") from error


def check_replaced(config: JobConfig) -> None:
    """Check as `check_output` does, but an --output that cannot be read is an OSError."""
    if not config.output:
        return
    if config.command == "predict" and "://" in config.output:
        raise UserError(f"--output: {config.output} is a URL; a local or mounted folder is needed")
    place = place_at(config.output)
    place.check()
    _check_replaceable(place, config)


def _check_replaceable(place: Place, config: JobConfig) -> None:
    if not place.names():
        return
    manifest = place.manifest()
    if manifest is None:
        raise UserError(
            f"--output: the folder {place.location} is not empty; choose another one (shoal "
            "did not write its content, so --overwrite does not replace it)"
        )
    if manifest.get("job_id") == config.job_id:
        return
    if not config.overwrite:
        raise UserError(
            f"--output: the folder {place.location} is not empty; choose another one, or replace "
            "it with --overwrite"
        )
    check_removable(config.output, config, "--output")


def check_removable(folder: str | Path, config: JobConfig, named: str) -> None:
    """Removing `folder` takes nothing that this job needs. Raises UserError otherwise."""
    needed = {flag(name): getattr(config, name) for name in READ_FIELDS}
    needed |= {"--model-zoo": config.model_zoo, "the working directory": os.getcwd()}
    if named == "--output":
        needed["--job-dir"] = config.job_dir
    for name, value in needed.items():
        if value and _is_within(value, str(folder)):
            raise UserError(
                f"{named}: --overwrite would remove {folder}, which holds {name} ({value})"
            )


def _is_within(path: str, folder: str) -> bool:
    if "://" in folder:
        return f"{path}/".startswith(f"{folder.rstrip('/')}/")
    return "://" not in path and Path(path).resolve().is_relative_to(Path(folder).resolve())


def try_output(config: JobConfig) -> None:
    """Find out whether --output can be written, by writing there. Leaves nothing but folders.

    To be called in a process of the kind that will write. Raises UserError.
    """
    if not config.output:
        return
    try:
        place_at(config.output).try_writing()
    except OSError as error:
        # Its own text names the temporary file.
        why = error.strerror or error
        raise UserError(
            f"--output: cannot write {config.output}: {why}; name a place that can be written to"
        ) from error


def needs_another(error: OSError) -> bool:
    """True if an error says that --output is no place to write to, and not that it fails now."""
    return error.errno in _TO_MEND


def not_written(output: str, error: OSError, left: str = "") -> UserError | StorageError:
    """The error for a result that could not be written, after `try_output`, because of `error`.

    UserError if another --output would mend it; else StorageError, as for a full disk. left:
    the things that are there all the same, in words.
    """
    kind = UserError if needs_another(error) else StorageError
    return kind(f"--output: cannot write {output}: {error}" + (f"; {left}" if left else ""))


def written(
    patience: Patience | None,
    output: str,
    work: Callable[[], Result],
    left: Callable[[], str] = lambda: "",
) -> Result:
    """Return the result of `work`, which writes to --output, and call it again while that fails.

    patience: None for none. left: tells in words which files are there after a failure.

    Raises UserError if another --output would help; StorageError when the patience has ended.
    """

    def attempt() -> Result:
        try:
            return work()
        except OSError as error:
            if patience is None or needs_another(error):
                raise not_written(output, error, left()) from error
            raise

    if patience is None:
        return attempt()
    try:
        return patience.call(attempt)
    except StorageAwayError as error:
        raise not_written(output, cast(OSError, error.__cause__), left()) from error


@contextmanager
def replacing_output(config: JobConfig, manifest: str) -> Iterator[Place]:
    """Put the result that the body writes in --output's place, once the body ended without error.

    Yields the place; `begin` was called. manifest: the name of the file that is written last.
    Raises UserError if it must not be replaced, and OSError.
    """
    check_replaced(config)
    place = place_at(config.output)
    try:
        yield place
        check_replaced(config)  # somebody else may have put something there meanwhile
        place.commit(manifest)
    finally:
        place.abandon()
