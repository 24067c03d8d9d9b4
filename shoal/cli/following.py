"""Following a job that a command runs: its display and what else tells of it, to its exit code.

Owns --events and --dashboard, which belong to the command and not to the job.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

from shoal.cli.data_flags import GroupedOption
from shoal.client.show.plain import echo, may_fail
from shoal.errors import EXIT_INTERRUPTED, EXIT_JOB_FAILED

EVENTS = click.option(
    "--events",
    cls=GroupedOption,
    group="Monitoring",
    metavar="FILE",
    default="",
    help="Add a line of JSON to this file for each event of the job: changes of its state, deaths, "
    "restarts, checkpoints, evaluations, messages and its end. -: to standard output; the display "
    "then goes to standard error.",
)

DASHBOARD = click.option(
    "--dashboard",
    cls=GroupedOption,
    group="Monitoring",
    metavar="PORT",
    type=click.IntRange(0, 65535),
    help="Serve the page of shoal dashboard at this port of the loopback address until the job "
    "ends, and print its address. 0: any port that is free.",
)


@dataclass(frozen=True)
class Watching:
    """The ways to follow a job beside the display.

    events: of --events. dashboard: a port, or None.
    """

    events: str
    dashboard: int | None

    @property
    def flags(self) -> list[str]:
        """The flags that are given."""
        given = {"--events": bool(self.events), "--dashboard": self.dashboard is not None}
        return [name for name, there in given.items() if there]


def follow(run: Callable[[Any], Any], watching: Watching) -> None:
    """Run a job with a display, print its report, and exit with its code."""
    from shoal.client.show.events import STDOUT, EventLines, opened
    from shoal.client.show.notebook import default_display
    from shoal.client.show.report import print_report
    from shoal.result import JobFailedError

    with contextlib.ExitStack() as stack:
        stream = stack.enter_context(opened(watching.events)) if watching.events else None
        if watching.events == STDOUT:
            # Nothing but events is there for the program that reads them.
            stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        display = default_display()
        if watching.dashboard is not None:
            from shoal.tools.dashboard.beside import page_beside

            display = stack.enter_context(page_beside(display, watching.dashboard))
        lines = None if stream is None else EventLines(display, stream)
        try:
            result = run(lines or display)
        except JobFailedError as error:
            if lines is not None:
                lines.failed(str(error), EXIT_JOB_FAILED)
            with may_fail():
                echo(f"Error: {error}", err=True)
            sys.exit(EXIT_JOB_FAILED)
        except KeyboardInterrupt:
            sys.exit(EXIT_INTERRUPTED)
        if lines is not None:
            lines.ended(result)
        with may_fail():
            print_report(result)
        sys.exit(result.exit_code)
