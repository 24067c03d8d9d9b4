"""The manifests of a checkpoint: which files belong to it, with sizes and checksums.

Owns what makes a file count as damaged. What is in the files is checkpoint.py's.

    manifest.json       of the whole; written last, so without it there is no checkpoint
    server-0000.json    of one server's share
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import xxhash

MANIFEST = "manifest.json"
READ_BYTES = 1 << 20


class CheckpointError(Exception):
    """A checkpoint that must not be used; the message names the file at fault."""


def describe(path: Path) -> dict[str, Any]:
    """Name, size and checksum of a file that was written whole."""
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while piece := file.read(READ_BYTES):
            digest.update(piece)
        size = file.tell()
    return {"name": path.name, "bytes": size, "xxh3_128": digest.hexdigest()}


def check(folder: Path, described: dict[str, Any]) -> Path:
    """The path of a described file. Raises CheckpointError if it is not that file."""
    path = folder / str(described["name"])
    try:
        # Before reading it: a cut file is told from its size alone.
        if path.stat().st_size == described["bytes"] and describe(path) == described:
            return path
        found = "damaged, or of another checkpoint"
    except OSError as error:
        found = str(error.strerror)
    raise CheckpointError(f"{path}: {found}")


def write(path: Path, content: dict[str, Any]) -> None:
    """Write a manifest whole or not at all, on disk when this returns."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(_sealed(content))
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync_folder(path.parent)


def read(path: Path) -> dict[str, Any]:
    """The content of a manifest. Raises CheckpointError if it is missing or not as written."""
    try:
        found = path.read_bytes()
        content: dict[str, Any] = json.loads(found)
        del content["checksum"]
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path}: damaged, not a manifest") from error
    # Byte by byte: what differs only in spelling was not written by us either.
    if found != _sealed(content):
        raise CheckpointError(f"{path}: damaged, its checksum is another")
    return content


def sync_folder(folder: Path) -> None:
    """Have the folder's entries on disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sealed(content: dict[str, Any]) -> bytes:
    body = json.dumps(content, indent=1, sort_keys=True)
    checksum = xxhash.xxh3_128_hexdigest(body.encode())
    return (json.dumps({**content, "checksum": checksum}, indent=1, sort_keys=True) + "\n").encode()
