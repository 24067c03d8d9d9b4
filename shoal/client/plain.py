"""Text of others, such as a job's code and data, without its control characters.

With an escape character in it, it could change the terminal's title, colors or content.
"""

from __future__ import annotations

import click

_CONTROLS = dict.fromkeys(
    code for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"
)


def plain(text: str) -> str:
    """The text without control characters but the ends of lines and tabs."""
    return text.translate(_CONTROLS)


def echo(text: str, *, err: bool = False) -> None:
    """Print a line, as click does, without control characters. err: to stderr."""
    click.echo(plain(text), err=err)
