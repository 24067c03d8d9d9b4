"""The commands for jobs that run elsewhere, or in another terminal; and for a cluster's images.

Which job is meant is finding.py's. Each command imports what it needs when it runs: gRPC and the
library of Kubernetes are large, and a command is to answer at once.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from shoal.base.disk.job_folder import JobFolder
from shoal.base.words import counted
from shoal.cli import listing, threads
from shoal.cli.explain import explain
from shoal.cli.finding import ROLES, command, console_here, guarded
from shoal.client.finding import found, on_kubernetes
from shoal.client.show.plain import echo
from shoal.errors import (
    EXIT_INTERRUPTED,
    EXIT_JOB_FAILED,
    EXIT_SUCCESS,
    UserError,
)

SNAPSHOT_ROWS = 200
"""Lines of `shoal top --once`: a file has room for all processes of most jobs."""


def register(group: click.Group) -> None:
    """Add the commands to `group`."""
    group.add_command(zoo)
    group.add_command(compare)
    for each in (
        listing.jobs,
        listing.status,
        top,
        logs,
        dashboard,
        scale,
        publish,
        rebalance,
        stop,
        delete,
    ):
        group.add_command(each)
    for each in (threads.stacks, threads.profile, explain):
        group.add_command(each)


_FOLDER = click.argument("folder", default=".", type=click.Path(path_type=Path))
_IMAGE = click.option("--image", required=True, help="Name of the image, with its registry.")
_TOOL = click.option(
    "--tool", default="", help="docker, podman or buildah. Default: the first that is there."
)


@click.group()
def zoo() -> None:
    """List models that come with shoal; build images of yours."""


@zoo.command("list")
def list_models() -> None:
    """Print the models that come with shoal, and how their data are made."""
    from shoal.client.run.examples import examples

    data = ""
    for example in examples():
        if example.data != data:
            data = example.data
            echo(f"\n{data}: python -m shoal.model_zoo.{data}.prepare FOLDER")
            echo(f"  --model-zoo {example.folder}")
        echo(f"  --model-def {example.model_def:<28} {example.about}")


@zoo.command()
@_FOLDER
@click.option("--base", required=True, help="Image of shoal, made from deploy/Dockerfile.")
@guarded
def init(folder: Path, base: str) -> None:
    """Write a Dockerfile into FOLDER."""
    from shoal.client.run.zoo import write_dockerfile

    for path in write_dockerfile(folder, base):
        echo(f"wrote {path}")


@zoo.command()
@_FOLDER
@_IMAGE
@_TOOL
@guarded
def build(folder: Path, image: str, tool: str) -> None:
    """Build the image of FOLDER."""
    from shoal.client.run.zoo import build_image, find_tool

    build_image(folder, image, find_tool(tool))
    echo(f"built {image}; shoal zoo push --image {image} pushes it, and tells its digest")


@zoo.command()
@_IMAGE
@_TOOL
@guarded
def push(image: str, tool: str) -> None:
    """Push an image to its registry, and print the name by which jobs get this very image."""
    from shoal.client.run.zoo import find_tool, push_image

    if pinned := push_image(image, find_tool(tool)):
        echo(f"run jobs with: --image {pinned}")
    else:
        echo(f"pushed {image}; {tool or 'the tool'} does not tell its digest", err=True)


@guarded
def print_audit(job: str, namespace: str, *, as_json: bool) -> None:
    """Print the audit of a job on Kubernetes, and exit with its code.

    namespace: where `job` is the name of one; if empty, it is a folder with what was kept.
    """
    if namespace:
        text = on_kubernetes(job, namespace).audit()
    else:
        text = JobFolder(Path(job)).audit.read_text()
    kept = json.loads(text)
    echo(json.dumps(kept["report"], indent=2) if as_json else kept["text"])
    sys.exit(EXIT_SUCCESS if kept["clean"] else EXIT_JOB_FAILED)


@command
@click.argument("job")
@click.option("--once", is_flag=True, help="Print it once, as also where there is no terminal.")
def top(job: str, once: bool, namespace: str) -> None:
    """Watch a running job in the terminal; q quits.

    Shows where its time goes, its servers and its workers. Shares and rates are those of the last
    ten seconds. JOB is a folder or a name.
    """
    from shoal.client.ask import watching

    watched, console = found(job, namespace), console_here()
    if once or not console.is_terminal:
        console.print(watching.snapshot(watched, SNAPSHOT_ROWS))
        return
    try:
        ended = watching.watch(watched, console)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    if ended:
        echo(f"job {job} has ended: {ended}; see shoal status {job}")


@command
@click.argument("job")
@click.argument("role", default="master", type=click.Choice(ROLES))
@click.argument("index", default=0, type=click.IntRange(0))
@click.option("--follow", "-f", is_flag=True, help="Go on until the job or its pod ends.")
@click.option(
    "--restart",
    type=click.IntRange(0),
    help="Of an earlier start of a worker or server: 0 is the first. Default: the newest.",
)
def logs(
    job: str, role: str, index: int, follow: bool, restart: int | None, namespace: str
) -> None:
    """Show the log of a process of a job.

    It is the master's, or that of the ROLE and INDEX given.
    """
    if role == "master" and restart is not None:
        raise UserError("--restart is for workers and servers")
    # In a file or another program it is as it was written.
    show = echo if sys.stdout.isatty() else click.echo
    for line in found(job, namespace).log_lines(role, index, restart, follow=follow):
        show(line)


@click.command()
@click.argument("jobs", nargs=-1, metavar="JOB JOB...")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@guarded
def compare(jobs: tuple[str, ...], as_json: bool) -> None:
    """Show jobs of this machine side by side.

    Shows the flags that differ, metrics and figures. JOB is a folder or a name. A job may be
    running; of one that has no result yet, the figures are those of its metrics.csv.
    """
    from shoal.client.ask.compare import jobs_of, table_of, to_json

    compared = jobs_of(jobs)
    if as_json:
        echo(to_json(compared))
    else:
        console_here().print(table_of(compared))


@command
@click.argument("job", default="")
@click.option("--port", default=0, type=click.IntRange(0, 65535), help="Default: any free one.")
@click.option("--open/--no-open", "browser", default=None, help="In a browser, or not.")
def dashboard(job: str, port: int, browser: bool | None, namespace: str) -> None:
    """Show a job in the browser, while it runs or after its end. Without JOB, a list of jobs."""
    from shoal.tools.dashboard.jobs import Here, InCluster, Listing
    from shoal.tools.dashboard.run import run

    shown = found(job, namespace) if job else None
    if shown is not None:
        shown.result()  # says so if there is no such job
    elsewhere = shown.namespace if shown is not None else namespace
    listing: Listing = InCluster(namespace) if elsewhere else Here()
    run(listing, shown, port, browser=browser)


@command
@click.argument("what", type=click.Choice(["hold", "release"]))
@click.argument("job")
def publish(what: str, job: str, namespace: str) -> None:
    """Hold what a running job publishes, or release it. JOB is a folder or a name."""
    asked = found(job, namespace)
    from shoal.client.ask import asking

    asking.hold_publishing(asked, held=what == "hold")
    echo(f"job {job} publishes {'nothing until it is released' if what == 'hold' else 'again'}")


@command
@click.argument("job")
@click.option("--workers", type=click.IntRange(1), help="From now on.")
@click.option(
    "--servers",
    type=click.IntRange(1),
    help="Parameter servers from now on. Rows move to them, or away, while the job trains.",
)
def scale(job: str, workers: int | None, servers: int | None, namespace: str) -> None:
    """Change how many workers or servers a running job wants. JOB is a folder or a name."""
    if workers is None and servers is None:
        raise click.UsageError("give --workers, --servers or both")
    asked = found(job, namespace)
    from shoal.client.ask import asking

    asking.scale(asked, workers, servers)
    if workers is not None:
        echo(f"job {job} now wants {counted(workers, 'worker')}")
    if servers is not None:
        echo(f"job {job} now wants {counted(servers, 'server')}")


@command
@click.argument("job")
def rebalance(job: str, namespace: str) -> None:
    """Even out the load of a running job's servers. JOB is a folder or a name.

    Rows move from the busiest servers to the others while the job trains.
    """
    asked = found(job, namespace)
    from shoal.client.ask import asking

    moves = asking.rebalance(asked)
    echo(f"the servers of job {job} {'are about to' if moves else 'already'} do equal shares")


@command
@click.argument("job")
def stop(job: str, namespace: str) -> None:
    """Stop a running job. On Kubernetes its result and logs stay until it is deleted."""
    asked = found(job, namespace)
    from shoal.client.ask import asking

    asking.stop(asked)
    echo(f"job {job} is stopping")


@command
@click.argument("job")
def delete(job: str, namespace: str) -> None:
    """Delete a job on Kubernetes, running or not."""
    found(job, namespace).delete()
    echo(f"job {job} is deleted")
