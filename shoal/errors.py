"""Errors that every part of shoal may raise, and the exit codes they become.

No error's text holds a credential: what a URL has of them is taken out. Imports nothing
of ours.
"""

from __future__ import annotations

import errno
import re

EXIT_SUCCESS = 0
EXIT_JOB_FAILED = 1
EXIT_USER_ERROR = 2
EXIT_INTERRUPTED = 130

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Numbers of the errors of a full disk, quota or limit: they end when somebody makes room."""

DISK_FAILS = FULL | {errno.EIO}
"""The same, and of a disk that is broken."""

_USER_OF_URL = re.compile(r"""://(?:[^\s'"<>/@]*@|[^\s'"<>/@:]*:[^\s'"<>]*@)""")
_PASSWORD_OF_URL = re.compile(r"""https?://[^\s/@]+@|://[^\s/@:]*:[^\s/@]+@""")
_SECRET_OF_QUERY = re.compile(
    r"""([?&][\w-]*(?:sig|signature|token|secret|password|passwd|pwd|credential|access[-_]?key|"""
    r"""account[-_]?key|api[-_]?key|x-amz|x-goog)[\w-]*=)[^&#\s'"<>]+""",
    re.IGNORECASE,
)


def without_secrets(text: str) -> str:
    """`text` with what is user, password, key or signature in URLs replaced by stars."""
    if "://" not in text:
        return text
    return _SECRET_OF_QUERY.sub(r"\1***", _USER_OF_URL.sub("://***@", text))


def holds_secret(text: str) -> bool:
    """Whether a URL holds a password, a key or a signature; a mere name of a user is none."""
    return bool(_PASSWORD_OF_URL.search(text) or _SECRET_OF_QUERY.search(text))


class Error(Exception):
    """The base of all exceptions of shoal."""


class UserError(Error):
    """Something the user can mend; the text says what is wrong and what to do.

    Shown as it is, without a traceback. Name the flag, file, row or field.
    """

    def __init__(self, message: str) -> None:
        super().__init__(without_secrets(message))


class StorageError(Error):
    """A disk or store that fails: neither the user's mistake nor ours.

    Shown as it is, without a traceback; the job or command exits with EXIT_JOB_FAILED.
    """

    def __init__(self, message: str) -> None:
        super().__init__(without_secrets(message))


class UnreadableError(UserError):
    """Files or a table could not be reached or read: the storage's trouble, no record's.

    may_be_mistake: what is named may not be there at all, or not be the user's to read: told at
    once before a job has read its data, and waited for later.
    """

    def __init__(self, message: str, *, may_be_mistake: bool = False) -> None:
        super().__init__(message)
        self.may_be_mistake = may_be_mistake


NOT_THERE = (FileNotFoundError, PermissionError, NotADirectoryError, IsADirectoryError)
"""Errors of a path or its rights, which are more often a mistake than the storage's trouble."""


class UserCodeError(Error):
    """An exception inside the user's model module.

    message: one line that says which function failed on what.
    traceback: the whole traceback as text; it is shown to the user.
    reads: whether it was the user's reader of data, whose storage may have failed.
    """

    def __init__(self, message: str, traceback: str, *, reads: bool = False) -> None:
        message, traceback = without_secrets(message), without_secrets(traceback)
        super().__init__(message, traceback)
        self.message = message
        self.traceback = traceback
        self.reads = reads

    def __str__(self) -> str:
        return self.message
