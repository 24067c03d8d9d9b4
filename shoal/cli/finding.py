"""The parts that commands for jobs share: --namespace, and the exit for a wrong input."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import click

from shoal.client.show.plain import echo
from shoal.errors import EXIT_USER_ERROR, UserError

ROLES = ("master", "ps", "worker")


def guarded(function: Callable[..., None]) -> Callable[..., None]:
    """The function, whose wrong input is one line and exit code 2."""

    @functools.wraps(function)
    def run(*arguments: Any, **values: Any) -> None:
        try:
            function(*arguments, **values)
        except UserError as error:
            echo(f"Error: {error}", err=True)
            sys.exit(EXIT_USER_ERROR)

    return run


def command(function: Callable[..., None]) -> click.Command:
    """A command with --namespace."""
    option = click.option(
        "--namespace",
        default="",
        help="Of a job on Kubernetes. Default: that of the present kubectl context.",
    )
    return click.command()(option(guarded(function)))


def console_here() -> Any:
    """Standard output, as wide as report.py says."""
    from shoal.client.show.report import wide_console

    return wide_console()
