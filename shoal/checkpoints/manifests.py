"""The manifests of a checkpoint: which files belong to it, with sizes and checksums.

Owns what makes a file count as damaged. What is in the files is others'.

    manifest.json       of the whole; written last, so without it there is no checkpoint
    server-0000.json    of one server's share
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

import xxhash

from shoal.checkpoints.storage import Storage

MANIFEST = "manifest.json"
READ_BYTES = 1 << 20


class CheckpointError(Exception):
    """A checkpoint that must not be used; the message names the file at fault."""


class DescribedFile:
    """A file that is being written, and what a manifest says of it."""

    closed = False  # pyarrow asks

    def __init__(self, name: str, file: BinaryIO) -> None:
        self._name = name
        self._file = file
        self._digest = xxhash.xxh3_128()
        self._bytes = 0

    def write(self, data: bytes | memoryview) -> int:
        """Append `data`."""
        view = memoryview(data)
        self._digest.update(view)
        self._file.write(view)
        self._bytes += view.nbytes
        return view.nbytes

    def writable(self) -> bool:
        """True."""
        return True

    def flush(self) -> None:
        """Nothing: the storage flushes."""

    def tell(self) -> int:
        """Bytes so far."""
        return self._bytes

    @property
    def described(self) -> dict[str, Any]:
        """Name, size and checksum."""
        return {"name": self._name, "bytes": self._bytes, "xxh3_128": self._digest.hexdigest()}


@contextmanager
def writing(storage: Storage, name: str) -> Iterator[DescribedFile]:
    """Write a file whole or not at all; describe it after leaving."""
    with storage.write(name) as file:
        yield DescribedFile(name, file)


def check(storage: Storage, described: dict[str, Any]) -> str:
    """The name of a described file. Raises CheckpointError if it is not that file."""
    name = str(described["name"])
    try:
        # Before reading it: a cut file is told from its size alone.
        if storage.size(name) == described["bytes"]:
            digest = xxhash.xxh3_128()
            with storage.read(name) as file:
                while piece := file.read(READ_BYTES):
                    digest.update(piece)
            if digest.hexdigest() == described["xxh3_128"]:
                return name
        found = "damaged, or of another checkpoint"
    except OSError as error:
        found = reason(error)
    raise CheckpointError(f"{storage.path(name)}: {found}")


def write(storage: Storage, name: str, content: dict[str, Any]) -> dict[str, Any]:
    """Write a manifest; returns its description."""
    with writing(storage, name) as file:
        file.write(_sealed(content))
    return file.described


def read(storage: Storage, name: str) -> dict[str, Any]:
    """The content of a manifest. Raises CheckpointError if it is missing or not as written."""
    path = storage.path(name)
    try:
        with storage.read(name) as file:
            found = file.read()
        content: dict[str, Any] = json.loads(found)
        del content["checksum"]
    except OSError as error:
        raise CheckpointError(f"{path}: {reason(error)}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path}: damaged, not a manifest") from error
    # Byte by byte: what differs only in spelling was not written by us either.
    if found != _sealed(content):
        raise CheckpointError(f"{path}: damaged, its checksum is another")
    return content


def reason(error: OSError) -> str:
    """Why, in words; the path is left to the caller."""
    return error.strerror or str(error)


def _sealed(content: dict[str, Any]) -> bytes:
    body = json.dumps(content, indent=1, sort_keys=True)
    checksum = xxhash.xxh3_128_hexdigest(body.encode())
    return (json.dumps({**content, "checksum": checksum}, indent=1, sort_keys=True) + "\n").encode()
