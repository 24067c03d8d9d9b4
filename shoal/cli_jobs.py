"""The commands for a cluster: images, and jobs, status, logs, scale, stop, delete."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from shoal.errors import EXIT_JOB_FAILED, EXIT_SUCCESS, EXIT_USER_ERROR, UserError
from shoal.job_folder import JobFolder

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
        "--namespace", default="", help="Default: that of the present kubectl context."
    )
    return click.command()(option(_guarded(function)))


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
    from shoal.examples import examples

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
    from shoal.zoo import write_dockerfile

    for path in write_dockerfile(folder, base):
        click.echo(f"wrote {path}")


@zoo.command()
@_FOLDER
@_IMAGE
@_TOOL
@_guarded
def build(folder: Path, image: str, tool: str) -> None:
    """Build the image of FOLDER."""
    from shoal.zoo import build_image, find_tool

    build_image(folder, image, find_tool(tool))


@zoo.command()
@_IMAGE
@_TOOL
@_guarded
def push(image: str, tool: str) -> None:
    """Push an image to its registry."""
    from shoal.zoo import find_tool, push_image

    push_image(image, find_tool(tool))


@_guarded
def print_audit(job: str, namespace: str, *, as_json: bool) -> None:
    """Print the audit of a job on Kubernetes, and exit with its code.

    namespace: where `job` is the name of one; if empty, it is a folder with what was kept.
    """
    if namespace:
        from shoal import jobs as of

        text = of.audit(of.handle_of(job, namespace))
    else:
        text = JobFolder(Path(job)).audit.read_text()
    kept = json.loads(text)
    click.echo(json.dumps(kept["report"], indent=2) if as_json else kept["text"])
    sys.exit(EXIT_SUCCESS if kept["clean"] else EXIT_JOB_FAILED)


def _console() -> Any:
    from shoal.report import wide_console

    return wide_console()


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
    from shoal.report import print_report

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
@click.option("--num-workers", required=True, type=click.IntRange(1), help="From now on.")
def scale(job: str, num_workers: int, namespace: str) -> None:
    """Change how many workers a running job on Kubernetes wants."""
    from shoal import jobs as of

    of.scale(of.handle_of(job, namespace), num_workers)
    click.echo(f"job {job} now wants {num_workers} workers")


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
