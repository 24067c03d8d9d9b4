"""The commands that say which jobs there are, and how one goes: for people, or as JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from shoal.base.disk.job_folder import JOBS
from shoal.cli.finding import command, console_here
from shoal.client.finding import found
from shoal.client.show.plain import echo
from shoal.errors import UserError

if TYPE_CHECKING:
    from shoal.client.ask.running_job import RunningJob, Seen
    from shoal.result import JobResult

_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_EVERYWHERE = click.option(
    "--all-namespaces", "-A", "everywhere", is_flag=True, help="Of Kubernetes, all that it has."
)


@command
@_EVERYWHERE
@_JSON
def jobs(everywhere: bool, as_json: bool, namespace: str) -> None:
    """List the jobs in ./shoal-jobs and those on Kubernetes."""
    from shoal.client.ask import local_jobs
    from shoal.client.job_lines import jobs_table

    _check_one(namespace, everywhere=everywhere)
    elsewhere = bool(namespace or everywhere)
    lines = [] if elsewhere else local_jobs.job_lines()
    tables = [jobs_table(f"jobs on this machine, in {JOBS}", lines)] if lines else []
    from shoal.cluster.configured import NoClusterError, check_configured

    try:
        check_configured()
        from shoal.client.cluster_listing import list_jobs

        of, there = list_jobs(namespace, everywhere=everywhere)
        title = f"jobs in {f'namespace {of}' if of else 'all namespaces'}"
        tables.append(jobs_table(title, there, namespaces=everywhere))
        lines += there
    except NoClusterError as error:
        if elsewhere:
            raise
        if not (lines or as_json):
            raise UserError(f"there are no jobs in ./shoal-jobs; and {error}") from error
    if as_json:
        echo(json.dumps([line.to_json() for line in lines], indent=2))
        return
    for table in tables:
        console_here().print(table)


@command
@click.argument("job")
@_EVERYWHERE
@_JSON
def status(job: str, everywhere: bool, as_json: bool, namespace: str) -> None:
    """Show the progress or the result of a job. JOB is a folder or a name."""
    _check_one(namespace, everywhere=everywhere)
    if everywhere:
        from shoal.cluster.configured import check_configured

        check_configured()
        from shoal.client.cluster_listing import namespace_of

        namespace = namespace_of(job)
    asked = found(job, namespace)
    result = asked.result()
    seen = asked.seen() if result is None else None
    if as_json:
        echo(json.dumps(_told(asked, result, seen), indent=2, allow_nan=False))
    elif result is not None:
        from shoal.client.show.report import print_report

        print_report(result)
    elif seen is not None:
        from rich.text import Text

        from shoal.client.show.drawn import block

        trouble = Text(f"{asked.name}: {seen.problem}")
        console_here().print(trouble if seen.status is None else block(seen.status))
        console_here().print(seen.processes)


def _told(job: RunningJob, result: JobResult | None, seen: Seen | None) -> dict[str, Any]:
    """The result of a job, or the view of one that has none, for programs."""
    from shoal.tools.dashboard import facts

    told: dict[str, Any] = {"name": job.name, "namespace": job.namespace}
    if result is not None:
        return told | facts.of_ended(result)
    assert seen is not None
    if seen.status is None:
        told |= {"state": seen.state, "ended": False, "trouble": seen.problem}
    else:
        told |= facts.of_running(seen.status)
    return told if seen.pods is None else told | {"pods": seen.pods}


def _check_one(namespace: str, *, everywhere: bool) -> None:
    if namespace and everywhere:
        raise UserError("give --namespace or --all-namespaces, not both")
