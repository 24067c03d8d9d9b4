"""What the commands for jobs share: where a job is, and how a wrong input ends.

A job of this machine is meant by its folder or name, any other is one on Kubernetes. What a command
needs it imports when it runs: gRPC and the library of Kubernetes are large.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import click

from shoal.base.job_folder import JobFolder
from shoal.client.plain import echo
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


def here(job: str, namespace: str) -> JobFolder | None:
    """The folder of a job of this machine; None if it is one on Kubernetes."""
    if namespace:
        return None
    from shoal.client import local_jobs

    return local_jobs.find(job)


def on_kubernetes(job: str, namespace: str) -> tuple[Any, Any]:
    """The commands of a cluster, and the job. Raises UserError if there is no cluster."""
    from shoal.cluster.configured import check_configured

    try:
        check_configured()
        from shoal.client import cluster_jobs

        return cluster_jobs, cluster_jobs.handle_of(job, namespace)
    except UserError as error:
        if namespace:
            raise
        raise UserError(
            f"there is no job {job} on this machine, in ./shoal-jobs or at this path; and {error}"
        ) from error


def console_here() -> Any:
    """Standard output, as wide as report.py says."""
    from shoal.client.report import wide_console

    return wide_console()
