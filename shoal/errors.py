"""Errors that every part of shoal may raise, and the exit codes they become.

Imports nothing of ours.
"""

from __future__ import annotations

EXIT_SUCCESS = 0
EXIT_JOB_FAILED = 1
EXIT_USER_ERROR = 2
EXIT_INTERRUPTED = 130


class UserError(Exception):
    """Something the user can mend; the text says what is wrong and what to do.

    Shown as it is, without a traceback. Name the flag, file, row or field.
    """


class UserCodeError(Exception):
    """An exception inside the user's model module.

    message: one line that says which function failed on what.
    traceback: the whole traceback as text; it is shown to the user.
    """

    def __init__(self, message: str, traceback: str) -> None:
        super().__init__(message, traceback)
        self.message = message
        self.traceback = traceback

    def __str__(self) -> str:
        return self.message
