"""The manifests of a checkpoint: which files belong to it, with sizes and checksums.

Owns what makes a file count as damaged. What is in the files is others'.

    manifest.json                     of the whole; written last: without it there is none
    server-0000.NONCE.json            of one server's shard

What they hold is said in schema.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

import xxhash

from shoal.errors import Error
from shoal.files.storage import Storage

if TYPE_CHECKING:
    from shoal.checkpoints.formats.schema import File, Page, PagedFile

Content = TypeVar("Content")

FORMAT = 8
"""Of a checkpoint's manifests."""

MANIFEST = "manifest.json"
READ_BYTES = 1 << 20
MANIFEST_BYTES = 1 << 28
"""A manifest of more was not written by us; it is not read into memory."""

DAMAGED = "damaged, or another file than was written"


class CheckpointError(Error):
    """A checkpoint that must not be used; the message names the file at fault."""


class DescribedFile:
    """A file that is being written, and what a manifest says of it."""

    closed = False  # pyarrow asks

    def __init__(self, name: str, file: BinaryIO) -> None:
        self._name = name
        self._file = file
        self._digest = xxhash.xxh3_128()
        self._page = xxhash.xxh3_64()
        self._bytes = 0
        self._paged = 0
        self._pages: list[Page] = []

    def write(self, data: bytes | memoryview) -> int:
        """Append `data`."""
        view = memoryview(data)
        self._digest.update(view)
        self._page.update(view)
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

    def end_page(self, rows: int = 0, slots: tuple[int, int] | None = None) -> None:
        """End a page: the bytes that were written since the last call.

        rows, slots: as schema.Page has them; slots None if it has none.
        """
        size = self._bytes - self._paged
        page: Page = {"bytes": size, "xxh3_64": self._page.hexdigest()}
        if slots is not None:
            page |= {"rows": rows, "slots": [*slots]}
        self._pages.append(page)
        self._page.reset()
        self._paged = self._bytes

    @property
    def described(self) -> File:
        """Name, size and checksum."""
        return {"name": self._name, "bytes": self._bytes, "xxh3_128": self._digest.hexdigest()}

    @property
    def paged(self) -> PagedFile:
        """The file as `described` has it, with its pages, which are all of it."""
        assert self._paged == self._bytes
        return {**self.described, "pages": self._pages}


def pages(storage: Storage, described: PagedFile) -> Iterator[bytes]:
    """The pages of a file, each read once, and compared with its checksum before it is given.

    Raises CheckpointError naming the file if it is not as it was written; its end is known to
    be right only after the last page.
    """
    path = storage.path(described["name"])
    check_size(storage, described)
    try:
        digest = xxhash.xxh3_128()
        with storage.read(described["name"]) as file:
            for page in described["pages"]:
                # Not mapped: an error of the disk must be one here, not the process's end.
                data = file.read(page["bytes"])
                if len(data) != page["bytes"] or xxhash.xxh3_64_hexdigest(data) != page["xxh3_64"]:
                    raise CheckpointError(f"{path}: {DAMAGED}")
                digest.update(data)
                yield data
        if digest.hexdigest() != described["xxh3_128"]:
            raise CheckpointError(f"{path}: {DAMAGED}")
    except OSError as error:
        raise CheckpointError(f"{path}: {reason(error)}") from error


def check_size(storage: Storage, described: File) -> None:
    """Raises CheckpointError if a file is not as long as it was written: before it is read."""
    path = storage.path(described["name"])
    try:
        if storage.size(described["name"]) != described["bytes"]:
            raise CheckpointError(f"{path}: {DAMAGED}")
    except OSError as error:
        raise CheckpointError(f"{path}: {reason(error)}") from error


def page(storage: Storage, described: PagedFile, number: int, start: int) -> bytes:
    """A page of a file, which begins at byte `start`, compared with its checksum.

    All pages so read are all of the file, if its size is right. Raises CheckpointError.
    """
    path, written = storage.path(described["name"]), described["pages"][number]
    try:
        data = storage.read_part(described["name"], start, written["bytes"])
    except OSError as error:
        raise CheckpointError(f"{path}: {reason(error)}") from error
    if len(data) != written["bytes"] or xxhash.xxh3_64_hexdigest(data) != written["xxh3_64"]:
        raise CheckpointError(f"{path}: {DAMAGED}")
    return data


@contextmanager
def writing(storage: Storage, name: str) -> Iterator[DescribedFile]:
    """Write a file whole or not at all; describe it after leaving."""
    with storage.write(name) as file:
        yield DescribedFile(name, file)


def describe(storage: Storage, name: str, told: Callable[[int], object] = lambda _: None) -> File:
    """Read a file and describe it as it is. told: is called with bytes read. Raises OSError."""
    digest, size = xxhash.xxh3_128(), 0
    with storage.read(name) as file:
        while piece := file.read(READ_BYTES):
            digest.update(piece)
            size += len(piece)
            told(len(piece))
    return {"name": name, "bytes": size, "xxh3_128": digest.hexdigest()}


def check(storage: Storage, described: File, told: Callable[[int], object] = lambda _: None) -> str:
    """The name of a described file. Raises CheckpointError if it is not that file.

    told: is called with bytes read.
    """
    name = described["name"]
    try:
        # Before reading it: a cut file is told from its size alone.
        if storage.size(name) == described["bytes"]:
            found = describe(storage, name, told)
            if found["bytes"] == described["bytes"] and found["xxh3_128"] == described["xxh3_128"]:
                return name
        problem = DAMAGED
    except OSError as error:
        problem = reason(error)
    raise CheckpointError(f"{storage.path(name)}: {problem}")


def write(storage: Storage, name: str, content: Mapping[str, Any]) -> File:
    """Write a manifest; returns its description."""
    with writing(storage, name) as file:
        file.write(_sealed(content))
    return file.described


def read(
    storage: Storage, name: str, form: int | str, checked: Callable[[object], Content]
) -> Content:
    """The content of a manifest.

    form: its `format`. checked: gives the content as its kind; one of schema.py's. Raises
    CheckpointError if the file is missing, not as written, or not what `checked` takes.
    """
    path = storage.path(name)
    try:
        with storage.read(name) as file:
            # In pieces: to read up to a bound at once takes the memory of the bound.
            found = b""
            while len(found) <= MANIFEST_BYTES and (piece := file.read(READ_BYTES)):
                found += piece
    except OSError as error:
        raise CheckpointError(f"{path}: {reason(error)}") from error
    if len(found) > MANIFEST_BYTES:
        raise CheckpointError(f"{path}: too large for a manifest")
    try:
        content = json.loads(found)
        if content["format"] != form:
            problem = f"of format {content['format']!s:.50}, this version reads {form}"
            raise CheckpointError(f"{path}: {problem}")
        del content["checksum"]
        # Byte by byte: what differs only in spelling was not written by us either.
        same = found == _sealed(content)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{path}: damaged, not a manifest") from error
    if not same:
        raise CheckpointError(f"{path}: damaged, its checksum is another")
    try:
        return checked(content)
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from error


def checksum_of(content: Mapping[str, Any]) -> str:
    """The checksum of the file of a manifest with this content, as `File` has it."""
    return xxhash.xxh3_128_hexdigest(_sealed(content))


def reason(error: OSError) -> str:
    """The reason, in words; the path is left to the caller."""
    return error.strerror or str(error)


def _sealed(content: Mapping[str, Any]) -> bytes:
    body = json.dumps(content, indent=1, sort_keys=True)
    checksum = xxhash.xxh3_128_hexdigest(body.encode())
    return (json.dumps({**content, "checksum": checksum}, indent=1, sort_keys=True) + "\n").encode()
