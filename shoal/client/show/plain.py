"""Text of others, such as a job's code and data, without its control characters.

With an escape character in it, it could change the terminal's title, colors or content.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import sys
from collections.abc import Callable, Iterator

import click

_CONTROLS = dict.fromkeys(
    code for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"
)


def plain(text: str) -> str:
    """The text without control characters but the ends of lines and tabs."""
    return text.translate(_CONTROLS)


@contextlib.contextmanager
def may_fail(gone: Callable[[], object] = lambda: None) -> Iterator[None]:
    """A context for printing, in which the terminal or the pipe's reader may be gone.

    If so, gone() is called. Everything printed from then on goes nowhere, and does not fail.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.EIO):
            raise
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):  # one that is no file
                poll = select.poll()
                poll.register(stream.fileno(), 0)
                if poll.poll(0):  # hung up, or without a reader
                    os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
        gone()


def echo(text: str, *, err: bool = False) -> None:
    """Print a line, as click does, without control characters. err: to stderr."""
    click.echo(plain(text), err=err)
