"""A folder whose reads are tried again while its storage fails.

Owns which errors pass, and that what was read of a file until then is not read again.
"""

from __future__ import annotations

import contextlib
import errno
import io
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, BinaryIO, TypeVar, cast

from shoal.errors import UnreadableError
from shoal.files.patience import Patience, Progress
from shoal.files.storage import Storage

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

Result = TypeVar("Result")

MISSING = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
NO_FILE = (errno.EINVAL, errno.ELOOP, errno.ENAMETOOLONG)
"""Of what is there in a file's place, or of a part that a file does not have."""


def _stays(trouble: UnreadableError) -> bool:
    """True if an error of a read is the file's, not the storage's: another try is of no use."""
    error = trouble.__cause__
    return isinstance(error, MISSING) or getattr(error, "errno", None) in NO_FILE


class PatientStorage(Storage):
    """`storage`, whose names, sizes and bytes are read with patience. Written as it is.

    seconds, progress: of the patience with each read.
    """

    def __init__(self, storage: Storage, seconds: float, progress: Progress) -> None:
        self._storage, self._seconds, self._progress = storage, seconds, progress
        self.location = storage.location

    def _patiently(self, work: Callable[[], Result]) -> Result:
        # Of its own for each read, as several threads read.
        return Patience(self._seconds, self._progress, _stays).call(work)

    def child(self, name: str) -> PatientStorage:
        """See Storage."""
        return PatientStorage(self._storage.child(name), self._seconds, self._progress)

    def make(self) -> None:
        """See Storage."""
        self._storage.make()

    def names(self) -> list[str]:
        """See Storage."""
        return self._patiently(self._storage.names)

    def size(self, name: str) -> int:
        """See Storage."""
        return self._patiently(lambda: self._storage.size(name))

    @contextmanager
    def read(self, name: str) -> Iterator[BinaryIO]:
        """See Storage."""
        with _File(self, name) as file:
            yield cast(BinaryIO, file)

    def read_part(self, name: str, start: int, size: int) -> bytes:
        """See Storage."""
        return self._patiently(lambda: self._storage.read_part(name, start, size))

    def write(self, name: str) -> AbstractContextManager[BinaryIO]:
        """See Storage."""
        return self._storage.write(name)

    def discard(self, name: str) -> None:
        """See Storage."""
        self._storage.discard(name)

    def remove(self) -> None:
        """See Storage."""
        self._storage.remove()


class _File(io.RawIOBase):
    """A file that is read on where it was after a read that failed; opened anew after two."""

    def __init__(self, storage: PatientStorage, name: str) -> None:
        self._storage, self._name = storage, name
        self._opened = contextlib.ExitStack()
        self._file: BinaryIO | None = None
        self._at = self._failures = 0

    def _again(self, work: Callable[[BinaryIO], Result]) -> Result:
        def call() -> Result:
            try:
                if self._file is None:
                    inner = self._storage._storage
                    self._file = self._opened.enter_context(inner.read(self._name))
                self._file.seek(self._at)
                result = work(self._file)
            except OSError:
                self._failures += 1
                if not self._failures % 2:
                    self._file = None
                    with contextlib.suppress(OSError):
                        self._opened.close()
                raise
            self._failures = 0
            return result

        return self._storage._patiently(call)

    def readable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        """See io.RawIOBase; less than the buffer holds only at the end."""
        view = memoryview(buffer).cast("B")
        data = self._again(lambda file: file.read(len(view)))
        view[: len(data)] = data
        self._at += len(data)
        return len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """See io.IOBase."""
        self._at = self._again(lambda file: file.seek(offset, whence))
        return self._at

    def tell(self) -> int:
        """See io.IOBase."""
        return self._at

    def close(self) -> None:
        """See io.IOBase."""
        self._opened.close()
        super().close()
