"""The commands for jobs in a cluster: jobs, status, logs, stop, delete."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import click

from shoal.errors import EXIT_USER_ERROR, UserError

ROLES = ("master", "ps", "worker")


def register(group: click.Group) -> None:
    """Add the commands to `group`."""
    for command in (jobs, status, logs, stop, delete):
        group.add_command(command)


def _command(function: Callable[..., None]) -> click.Command:
    """A command with --namespace whose wrong input is one line and exit code 2."""

    @functools.wraps(function)
    def guarded(**values: Any) -> None:
        try:
            function(**values)
        except UserError as error:
            click.echo(f"Error: {error}", err=True)
            sys.exit(EXIT_USER_ERROR)

    option = click.option(
        "--namespace", default="", help="Default: that of the present kubectl context."
    )
    return click.command()(option(guarded))


def _console() -> Any:
    from rich.console import Console

    console = Console()
    # Names stay whole for grep, however narrow rich thinks that a pipe is.
    return console if console.is_terminal else Console(width=200)


@_command
def jobs(namespace: str) -> None:
    """List the jobs on Kubernetes."""
    from shoal.jobs import jobs_table, list_jobs

    _console().print(jobs_table(*list_jobs(namespace)))


@_command
@click.argument("job")
def status(job: str, namespace: str) -> None:
    """Show how a job on Kubernetes goes, or what came of it."""
    from shoal import jobs as of
    from shoal.display import print_report

    handle = of.handle_of(job, namespace)
    if (result := of.result_of(handle)) is not None:
        print_report(result)
        return
    for part in of.status(handle):
        _console().print(part)


@_command
@click.argument("job")
@click.argument("role", default="master", type=click.Choice(ROLES))
@click.argument("index", default=0, type=click.IntRange(0))
@click.option("--follow", "-f", is_flag=True, help="Go on until the pod ends.")
def logs(job: str, role: str, index: int, follow: bool, namespace: str) -> None:
    """Show what a pod writes: of the master, or of the ROLE and INDEX given."""
    from shoal import jobs as of

    for line in of.log_lines(of.handle_of(job, namespace), role, index, follow=follow):
        click.echo(line)


@_command
@click.argument("job")
def stop(job: str, namespace: str) -> None:
    """Stop a job on Kubernetes; its result and logs stay until it is deleted."""
    from shoal import jobs as of

    of.stop(of.handle_of(job, namespace))
    click.echo(f"job {job} is stopping")


@_command
@click.argument("job")
def delete(job: str, namespace: str) -> None:
    """Delete a job on Kubernetes, running or not, with all that belongs to it."""
    from shoal import jobs as of

    of.handle_of(job, namespace).delete()
    click.echo(f"job {job} is deleted")
