"""Flags that name data, on a command line: each once, and a pattern in quotes.

A shell makes many words of a pattern that stands without quotes, and of a flag that is given
twice the last value counts: both would leave out data.
"""

from __future__ import annotations

import os

import click

from shoal.client.checks import DATA_FIELDS
from shoal.config.flags import flag


class DataCommand(click.Command):
    """A command with flags that name data."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As every command; raises UsageError that says how to name several files."""
        names = [argument.partition("=")[0].replace("_", "-") for argument in args]
        for name in map(flag, DATA_FIELDS):
            if names.count(name) > 1:
                raise click.UsageError(
                    f"{name} is given twice: for several files give their folder, or a pattern in "
                    "quotes",
                    ctx,
                )
        files = [argument for argument in args if os.path.exists(argument)]
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            extra = "unexpected extra argument" in error.message
            if not extra or not any(name in error.message for name in files):
                raise
            raise click.UsageError(
                f"{error.message}; a flag takes one value: put a pattern of files into quotes, or "
                "give their folder",
                ctx,
            ) from error
