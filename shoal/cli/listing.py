"""The commands that say which jobs there are, and how one goes: for people, or as JSON."""

from __future__ import annotations

import json
from typing import Any

import click

from shoal.base.job_folder import JOBS, JobFolder
from shoal.cli.finding import command, console_here
from shoal.client.finding import here, on_kubernetes
from shoal.client.show.plain import echo
from shoal.errors import UserError

_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_EVERYWHERE = click.option(
    "--all-namespaces", "-A", "everywhere", is_flag=True, help="Of Kubernetes, all that it has."
)


@command
@_EVERYWHERE
@_JSON
def jobs(everywhere: bool, as_json: bool, namespace: str) -> None:
    """List the jobs in ./shoal-jobs and those on Kubernetes."""
    from shoal.client.found import local_jobs
    from shoal.client.job_lines import jobs_table

    _check_one(namespace, everywhere=everywhere)
    elsewhere = bool(namespace or everywhere)
    lines = [] if elsewhere else local_jobs.job_lines()
    tables = [jobs_table(f"jobs on this machine, in {JOBS}", lines)] if lines else []
    from shoal.cluster.configured import NoClusterError, check_configured

    try:
        check_configured()
        from shoal.client.cluster_listing import list_jobs

        of, found = list_jobs(namespace, everywhere=everywhere)
        title = f"jobs in {f'namespace {of}' if of else 'all namespaces'}"
        tables.append(jobs_table(title, found, namespaces=everywhere))
        lines += found
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
    folder = here(job, namespace)
    if as_json:
        found = _of_cluster(job, namespace) if folder is None else _of_folder(folder)
        echo(json.dumps(found, indent=2, allow_nan=False))
        return
    from shoal.client.show.report import print_report

    if folder is not None:
        from shoal.client.found import local_jobs

        if not local_jobs.running(folder) and (ended := local_jobs.result_of(folder)) is not None:
            print_report(ended)
            return
        from shoal.client.ask import local_master

        parts = local_master.status(folder)
    else:
        of, handle = on_kubernetes(job, namespace)
        if (result := of.result_of(handle)) is not None:
            print_report(result)
            return
        parts = of.status(handle)
    for part in parts:
        console_here().print(part)


def _check_one(namespace: str, *, everywhere: bool) -> None:
    if namespace and everywhere:
        raise UserError("give --namespace or --all-namespaces, not both")


def _of_folder(folder: JobFolder) -> dict[str, Any]:
    """A job of this machine, for programs. Raises UserError."""
    from shoal.client.ask import local_master
    from shoal.client.found import local_jobs
    from shoal.tools.dashboard import facts

    name = {"name": folder.path.name, "namespace": ""}
    if not local_jobs.running(folder) and (ended := local_jobs.result_of(folder)) is not None:
        return name | facts.of_ended(ended)
    return name | facts.of_running(local_master.job_status(folder))


def _of_cluster(job: str, namespace: str) -> dict[str, Any]:
    """A job on Kubernetes, for programs. Raises UserError."""
    of, handle = on_kubernetes(job, namespace)
    from shoal.tools.dashboard import facts

    name = {"name": handle.name, "namespace": handle.namespace}
    if (result := of.result_of(handle)) is not None:
        return name | facts.of_ended(result)
    seen = of.look_at(handle)
    pods = {"pods": [line.to_json() for line in seen.pods]}
    if seen.status is None:
        return name | {"state": seen.state, "ended": False, "trouble": seen.problem} | pods
    return name | facts.of_running(seen.status) | pods
