"""Errors that every part of shoal may raise, and the exit codes they become.

No error's text holds a credential: those of URLs are taken out, and values that `hide` names.
Imports nothing of ours.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable
from types import TracebackType
from typing import Any
from urllib.parse import quote, quote_plus

EXIT_SUCCESS = 0
EXIT_JOB_FAILED = 1
EXIT_USER_ERROR = 2
EXIT_HELD_BACK = 3
EXIT_INTERRUPTED = 130

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Numbers of the errors of a full disk, quota or limit: they end when somebody makes room."""

DISK_FAILS = FULL | {errno.EIO}
"""The same, and of a disk that is broken."""

_WORD = re.compile(r"""[^\s'"<>]+""")
_USER_OF_URL = re.compile(r"""://(?:[^/@]*@|[^/@:]*:.*@)""")
"""Within a _WORD, up to its last @: without one, the time would be that of the square of a text."""

_PARTS_OF_URL = re.compile(r"""(https?)?://([^\s/@:]*)(:?)([^\s/@]*)@""")
_SECRET_OF_QUERY = re.compile(
    r"""([?&][\w.-]*(?:sig|signature|token|secret|password|passwd|pwd|credential|access[-_]?key|"""
    r"""account[-_]?key|api[-_]?key|x-amz|x-goog)[\w.-]*=)(?!\$\{\w+\}(?:[&#\s'"<>]|$))"""
    r"""[^&#\s'"<>]+""",
    re.IGNORECASE,
)

VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
"""What stands in a URL for a value of the environment."""

_SHORT = 8
"""A hidden value of fewer characters is hidden only where no letter or digit is beside it."""

_hidden: dict[str, str] = {}
_hidden_pattern: re.Pattern[str] | None = None


def hide(values: Iterable[str]) -> None:
    """Make `without_secrets` of this process hide these values in every text, from now on."""
    global _hidden_pattern
    for value in values:
        if not _may_be_secret(value):
            continue
        for form in (value, quote(value, safe=""), quote_plus(value)):
            escaped = re.escape(form)
            short = len(form) < _SHORT
            _hidden[form] = rf"(?<![A-Za-z0-9]){escaped}(?![A-Za-z0-9])" if short else escaped
    if _hidden:
        longest_first = sorted(_hidden, key=len, reverse=True)
        _hidden_pattern = re.compile("|".join(_hidden[form] for form in longest_first))


def _may_be_secret(value: str) -> bool:
    """True if a value is hidden: not a day or a year, whose stars would be all over a log."""
    return len(value) > 4 or (len(value) > 2 and not value.isdecimal())


def without_secrets(text: str) -> str:
    """`text` with stars for credentials in URLs, and for the values that `hide` was given."""
    if _hidden_pattern is not None:
        text = _hidden_pattern.sub("***", text)
    return without_credentials(text)


def without_credentials(text: str) -> str:
    """`text` with stars for what is user, password, key or signature in its URLs.

    Depends on nothing but the text, so names that processes exchange can be made with it.
    """
    if "://" not in text:
        return text
    return _SECRET_OF_QUERY.sub(r"\1***", _WORD.sub(_without_users, text))


def _without_users(word: re.Match[str]) -> str:
    """A word with stars for all users and passwords of its URLs."""
    before, at, after = word[0].rpartition("@")
    return _USER_OF_URL.sub(_without_user, before + at) + after


def _without_user(found: re.Match[str]) -> str:
    """Stars for user and password, unless a variable stands for the secret of the two."""
    user, colon, password = found[0][len("://") : -1].partition(":")
    secret = password if colon else user
    return found[0] if secret and not VARIABLE.sub("", secret) else "://***@"


def holds_secret(text: str) -> bool:
    """True if a URL holds a password, a key or a signature; a user's name alone is none.

    Nor is a variable, such as ${PASSWORD}.
    """
    for web, user, colon, password in _PARTS_OF_URL.findall(text):
        # A user alone is a token where web servers are asked.
        if VARIABLE.sub("", password if colon else user if web else ""):
            return True
    return bool(_SECRET_OF_QUERY.search(text))


class Error(Exception):
    """The base of all exceptions of shoal. Its text is without credentials."""

    def __str__(self) -> str:
        return without_secrets(super().__str__())

    def _render_traceback_(self) -> list[str]:
        """The traceback for IPython: the user's own lines up to shoal's call, and the message."""
        from IPython import get_ipython

        frames = []
        frame = self.__traceback__
        while frame and frame.tb_frame.f_globals.get("__name__", "").partition(".")[0] != "shoal":
            frames.append(frame)
            frame = frame.tb_next
        shown = None
        for each in reversed(frames):
            shown = TracebackType(shown, each.tb_frame, each.tb_lasti, each.tb_lineno)
        tracebacks: Any = get_ipython().InteractiveTB
        return list(tracebacks.structured_traceback(type(self), self, shown, tb_offset=1))


class UserError(Error):
    """Something the user can mend; the text says what is wrong and what to do.

    Shown as it is, without a traceback. Name the flag, file, row or field.
    """


class GoneError(UserError):
    """Records are there no more, and will not come again. records: so many follow one another."""

    def __init__(self, message: str, records: int) -> None:
        super().__init__(message)
        self.records = records


class StorageError(Error):
    """A disk or store that fails: neither the user's mistake nor ours.

    Shown as it is, without a traceback; the job or command exits with EXIT_JOB_FAILED.
    """


class StorageAwayError(StorageError):
    """The storage did not answer for as long as it is tried; another try may help.

    Its cause is the last error.
    """


class UnreadableError(UserError):
    """Files or a table could not be reached or read: the storage's trouble, no record's.

    may_be_mistake: what is named may not be there at all, or not be the user's to read: told at
    once before a job has read its data, and waited for later.
    """

    def __init__(self, message: str, *, may_be_mistake: bool = False) -> None:
        super().__init__(message)
        self.may_be_mistake = may_be_mistake


class NoFilesError(UnreadableError):
    """No file is where the data should be."""

    def __init__(self, message: str) -> None:
        super().__init__(message, may_be_mistake=True)


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
