"""From a flag's value to a list of local files: a file, a folder or a glob pattern.

Owns paths, and which of a folder's files are data; opens nothing. URLs are remote.py's.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable

from shoal.base.words import near
from shoal.errors import NoFilesError, UserError

ENDINGS = {
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "arrow",
    ".arrows": "arrow",
    ".feather": "arrow",
    ".tfrecord": "tfrecord",
    ".tfrecords": "tfrecord",
    ".recordio": "recordio",
    ".txt": "lines",
    ".jsonl": "jsonlines",
    ".ndjson": "jsonlines",
}
"""File name ending -> format."""

PACKED = (".gz", ".zst")
"""Endings of files that are compressed as a whole, behind the ending of their format."""

PACKED_INSIDE = ("parquet", "recordio", "arrow")
"""Formats that compress their parts themselves."""

KNOWN = f"{', '.join(ENDINGS)} (text and TFRecord also with {' or '.join(PACKED)} behind it)"


def unpacked_name(path: str) -> str:
    """The name of what is in a compressed file, in small letters; of others their own."""
    name = path.lower()
    return next((name.removesuffix(each) for each in PACKED if name.endswith(each)), name)


def format_of(path: str) -> str | None:
    """The format that a file's name promises, None if shoal has no reader for it."""
    name = unpacked_name(path)
    kind = next((kind for ending, kind in ENDINGS.items() if name.endswith(ending)), None)
    return None if kind in PACKED_INSIDE and name != path.lower() else kind


def find_files(pattern: str, flag: str, kind: str = "") -> list[str]:
    """The files that `pattern` stands for, sorted.

    kind: their format where it was said; by their endings where empty.

    A folder stands for all files in and below it that have a known ending and whose
    names begin with neither "." nor "_" (where other systems keep their marks). Text
    files count only if there are no others: beside data they are notes.

    Raises UserError if there is nothing, or a file named has no known ending.
    """
    if os.path.isfile(pattern):
        return [_known(pattern, flag, kind)]
    if os.path.isdir(pattern):
        return _below(pattern, flag, kind)
    if glob.has_magic(pattern):
        matches = sorted(path for path in glob.glob(pattern, recursive=True))
        files = [_known(path, flag, kind) for path in matches if os.path.isfile(path)]
        for folder in (path for path in matches if os.path.isdir(path)):
            files += _below(folder, flag, kind)
        if files:
            return sorted(set(files))
        raise NoFilesError(f"{flag}: no file matches {pattern}")
    scheme = re.search(r"(?:^|/)(\w{2,}:)/(?=[^/])", pattern)
    hint = f" (a URL has two slashes: {scheme[1]}//...)" if scheme else _near(pattern)
    message = f"{flag}: there is no file or folder {pattern}{hint}"
    raise NoFilesError(message)


def check_known(path: str, flag: str, kind: str) -> None:
    """Raises UserError for a file whose format nobody says."""
    if not kind and format_of(path) is None:
        raise UserError(
            f"{flag}: {path} has no known ending; shoal reads {KNOWN}; say what other files "
            "hold with --data-format, such as --data-format csv"
        )


def _known(path: str, flag: str, kind: str) -> str:
    check_known(path, flag, kind)
    return path


def _below(folder: str, flag: str, kind: str) -> list[str]:
    files = data_files(names_below(folder), kind)
    if not files:
        message = f"{flag}: the folder {folder} holds no file ending in {KNOWN}"
        raise NoFilesError(message)
    return [os.path.join(folder, path) for path in files]


def names_below(folder: str) -> list[str]:
    """Paths, relative to a local folder, of the files in it and below it.

    Links to folders are followed, to each folder once: what a link leads to may be below the
    folder anyway, or be what holds the link.
    """
    found: list[str] = []
    seen: set[str] = set()
    begins = [folder]  # links come behind the folders themselves
    for begin in begins:
        for parent, folders, names in os.walk(begin):
            if (real := os.path.realpath(parent)) in seen:
                folders.clear()
                continue
            seen.add(real)
            folders[:] = sorted(name for name in folders if name[0] not in "._")
            paths = [os.path.join(parent, name) for name in folders]
            begins += filter(os.path.islink, paths)
            found += [os.path.relpath(os.path.join(parent, name), folder) for name in names]
    return found


def data_files(names: Iterable[str], kind: str = "") -> list[str]:
    """The files of a folder that are its data, sorted.

    names: paths below the folder, with slashes. kind: as in `find_files`; files whose ending
        tells it are the data, or all files if none does.
    """
    found = [
        name
        for name in names
        if (kind or format_of(name)) and not any(part[0] in "._" for part in name.split("/"))
    ]
    if kind:
        return sorted([name for name in found if format_of(name) == kind] or found)
    return sorted([name for name in found if format_of(name) != "lines"] or found)


def _near(path: str) -> str:
    """A hint at a file of a similar name beside the missing one."""
    folder, name = os.path.split(path.rstrip("/"))
    try:
        return near(name, os.listdir(folder or "."), most=1)
    except OSError:
        return ""
