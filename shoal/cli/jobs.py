"""The commands for jobs that run elsewhere, or in another terminal; and for a cluster's images.

jobs, status, logs, scale and stop take a job of this machine by its folder or name, and any other
for one on Kubernetes. Each imports what it needs when it runs: gRPC and the library of Kubernetes
are large, and a command is to answer at once.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from shoal.base.job_folder import JobFolder, shown_path
from shoal.errors import EXIT_JOB_FAILED, EXIT_SUCCESS, EXIT_USER_ERROR, UserError

ROLES = ("master", "ps", "worker")


def register(group: click.Group) -> None:
    """Add the commands to `group`."""
    group.add_command(zoo)
    for command in (jobs, status, logs, scale, stop, delete):
        group.add_command(command)


def _guarded(function: Callable[..., None]) -> Callable[..., None]:
    """The function, whose wrong input is one line and exit code 2."""

    @functools.wraps(function)
    def guarded(*arguments: Any, **values: Any) -> None:
        try:
            function(*arguments, **values)
        except UserError as error:
            click.echo(f"Error: {error}", err=True)
            sys.exit(EXIT_USER_ERROR)

    return guarded


def _command(function: Callable[..., None]) -> click.Command:
    """A command with --namespace."""
    option = click.option(
        "--namespace",
        default="",
        help="Of a job on Kubernetes. Default: that of the present kubectl context.",
    )
    return click.command()(option(_guarded(function)))


def _here(job: str, namespace: str) -> JobFolder | None:
    """The folder of a job of this machine; None if it is one on Kubernetes."""
    if namespace:
        return None
    from shoal.client import local_jobs

    return local_jobs.find(job)


def _on_kubernetes(job: str, namespace: str) -> tuple[Any, Any]:
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


_FOLDER = click.argument("folder", default=".", type=click.Path(path_type=Path))
_IMAGE = click.option("--image", required=True, help="Name of the image, with its registry.")
_TOOL = click.option(
    "--tool", default="", help="docker, podman or buildah. Default: the first that is there."
)


@click.group()
def zoo() -> None:
    """The models that come with shoal, and images of a folder of models for Kubernetes."""


@zoo.command("list")
def list_models() -> None:
    """Print the models that come with shoal, and how their data are made."""
    from shoal.client.examples import examples

    data = ""
    for example in examples():
        if example.data != data:
            data = example.data
            click.echo(f"\n{data}: python -m shoal.model_zoo.{data}.prepare FOLDER")
            click.echo(f"  --model-zoo {example.folder}")
        click.echo(f"  --model-def {example.model_def:<28} {example.about}")


@zoo.command()
@_FOLDER
@click.option("--base", required=True, help="Image of shoal, made from deploy/Dockerfile.")
@_guarded
def init(folder: Path, base: str) -> None:
    """Write a Dockerfile into FOLDER."""
    from shoal.client.zoo import write_dockerfile

    for path in write_dockerfile(folder, base):
        click.echo(f"wrote {path}")


@zoo.command()
@_FOLDER
@_IMAGE
@_TOOL
@_guarded
def build(folder: Path, image: str, tool: str) -> None:
    """Build the image of FOLDER."""
    from shoal.client.zoo import build_image, find_tool

    build_image(folder, image, find_tool(tool))
    click.echo(f"built {image}; shoal zoo push --image {image} pushes it, and tells its digest")


@zoo.command()
@_IMAGE
@_TOOL
@_guarded
def push(image: str, tool: str) -> None:
    """Push an image to its registry, and print the name by which jobs get this very image."""
    from shoal.client.zoo import find_tool, push_image

    if pinned := push_image(image, find_tool(tool)):
        click.echo(f"run jobs with: --image {pinned}")
    else:
        click.echo(f"pushed {image}; {tool or 'the tool'} does not tell its digest", err=True)


@_guarded
def print_audit(job: str, namespace: str, *, as_json: bool) -> None:
    """Print the audit of a job on Kubernetes, and exit with its code.

    namespace: where `job` is the name of one; if empty, it is a folder with what was kept.
    """
    if namespace:
        of, handle = _on_kubernetes(job, namespace)
        text = of.audit(handle)
    else:
        text = JobFolder(Path(job)).audit.read_text()
    kept = json.loads(text)
    click.echo(json.dumps(kept["report"], indent=2) if as_json else kept["text"])
    sys.exit(EXIT_SUCCESS if kept["clean"] else EXIT_JOB_FAILED)


def _console() -> Any:
    from shoal.client.report import wide_console

    return wide_console()


@_command
def jobs(namespace: str) -> None:
    """List the jobs of this machine that are in ./shoal-jobs, and those on Kubernetes."""
    from shoal.client import local_jobs

    here = None if namespace else local_jobs.jobs_table()
    if here is not None:
        _console().print(here)
    from shoal.cluster.configured import NoClusterError, check_configured

    try:
        check_configured()
        from shoal.client.cluster_jobs import jobs_table, list_jobs

        _console().print(jobs_table(*list_jobs(namespace)))
    except NoClusterError as error:
        if namespace:
            raise
        if here is None:
            raise UserError(f"there are no jobs in ./shoal-jobs; and {error}") from error


@_command
@click.argument("job")
def status(job: str, namespace: str) -> None:
    """Show how a job goes, or what came of it. JOB is a folder or a name."""
    from shoal.client.report import print_report

    if (folder := _here(job, namespace)) is not None:
        from shoal.client import local_jobs

        if not local_jobs.running(folder) and (ended := local_jobs.result_of(folder)) is not None:
            print_report(ended)
            return
        from shoal.client import local_master

        parts = local_master.status(folder)
    else:
        of, handle = _on_kubernetes(job, namespace)
        if (result := of.result_of(handle)) is not None:
            print_report(result)
            return
        parts = of.status(handle)
    for part in parts:
        _console().print(part)


@_command
@click.argument("job")
@click.argument("role", default="master", type=click.Choice(ROLES))
@click.argument("index", default=0, type=click.IntRange(0))
@click.option("--follow", "-f", is_flag=True, help="Go on until the job or its pod ends.")
def logs(job: str, role: str, index: int, follow: bool, namespace: str) -> None:
    """Show what a process writes: of the master, or of the ROLE and INDEX given."""
    lines: Iterator[str]
    if (folder := _here(job, namespace)) is not None:
        from shoal.client import local_jobs

        lines = local_jobs.log_lines(folder, role, index, follow=follow)
    else:
        of, handle = _on_kubernetes(job, namespace)
        lines = of.log_lines(handle, role, index, follow=follow)
    for line in lines:
        click.echo(line)


@_command
@click.argument("job")
@click.option("--num-workers", required=True, type=click.IntRange(1), help="From now on.")
def scale(job: str, num_workers: int, namespace: str) -> None:
    """Change how many workers a running job wants. JOB is a folder or a name."""
    if (folder := _here(job, namespace)) is not None:
        from shoal.client import local_master

        local_master.scale(folder, num_workers)
    else:
        of, handle = _on_kubernetes(job, namespace)
        of.scale(handle, num_workers)
    click.echo(f"job {job} now wants {num_workers} workers")


@_command
@click.argument("job")
def stop(job: str, namespace: str) -> None:
    """Stop a running job. On Kubernetes its result and logs stay until it is deleted."""
    if (folder := _here(job, namespace)) is not None:
        from shoal.client import local_master

        local_master.stop(folder)
    else:
        of, handle = _on_kubernetes(job, namespace)
        of.stop(handle)
    click.echo(f"job {job} is stopping")


@_command
@click.argument("job")
def delete(job: str, namespace: str) -> None:
    """Delete a job on Kubernetes, running or not, with all that belongs to it."""
    if (folder := _here(job, namespace)) is not None:
        raise UserError(
            f"job {job} is on this machine, where only its folder remains: if the job runs, end it "
            f"with shoal stop {job}; then remove {shown_path(folder.path)}"
        )
    _, handle = _on_kubernetes(job, namespace)
    handle.delete()
    click.echo(f"job {job} is deleted")
