"""The newest checkpoint of a folder: the newest that is good, or the newest that is whole.

Owns which one of several is taken. A checkpoint itself is folders.py's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from shoal.checkpoints.folders import BEGUN, NAME, Checkpoint, folder_name, numbers
from shoal.checkpoints.formats import manifests
from shoal.checkpoints.formats.manifests import MANIFEST, CheckpointError
from shoal.files.storage import Storage, open_storage


def _verify(checkpoint: Checkpoint) -> None:
    # Late: it needs pyarrow, and most who open a checkpoint do not read its rows.
    from shoal.checkpoints import contents

    contents.verify(checkpoint)


def newest_good(
    root: Storage,
    candidates: Mapping[int, str] | None = None,
    check: Callable[[Checkpoint], object] | None = None,
) -> tuple[Checkpoint | None, list[CheckpointError]]:
    """The newest checkpoint below `root` that is good; why newer ones are not.

    candidates: numbers to choose from, with their nonces; all by default. check: raises
    CheckpointError for one that is not good; None: every file is read. Raises OSError as
    `numbers`.
    """
    refused: list[CheckpointError] = []
    known = dict.fromkeys(numbers(root), "") if candidates is None else candidates
    for number in sorted(known, reverse=True):
        try:
            checkpoint = Checkpoint(root, number, known[number])
            (check or _verify)(checkpoint)
        except CheckpointError as error:
            refused.append(error)
        else:
            return checkpoint, refused
    return None, refused


def checkpoint_at(
    location: str,
    opened: Callable[[str], Storage] = open_storage,
    check: Callable[[Checkpoint], object] | None = None,
) -> Checkpoint | None:
    """The checkpoint at a path or URL, or the newest one in it; None if it holds none.

    opened: opens the folder at a path or URL. check: as `newest_good` takes it; None: that of a
    folder is read whole, and of one that is named the manifests. Raises CheckpointError if it is
    not as written: an older one lacks records, so it is taken only by its name.
    """
    parent, _, name = location.rstrip("/").rpartition("/")
    try:
        if match := NAME.fullmatch(name):
            named = Checkpoint(opened(parent or "/"), int(match[1]))
            if check is not None:
                check(named)
            return named
        root = opened(location)
        if not (there := numbers(root)):
            return None
        for number in reversed(there):
            if not _under_way(root.child(folder_name(number))):
                newest = Checkpoint(root, number)
                (check or _verify)(newest)
                return newest
    except OSError as error:
        raise CheckpointError(f"{location}: {manifests.reason(error)}") from error
    raise CheckpointError(f"{location} holds no whole checkpoint, but one that was not completed")


def _under_way(folder: Storage) -> bool:
    """True if the folder is of a checkpoint that was never complete, by its names."""
    try:
        names = folder.names()
    except NotADirectoryError:
        return False
    return MANIFEST not in names and (BEGUN in names or not names)
