"""`shoal stacks` and `shoal profile`: where the threads of a job's processes are."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from shoal.base.disk.job_folder import shown_path
from shoal.cli.finding import ROLES, command, console_here
from shoal.client.finding import found
from shoal.client.show.plain import echo
from shoal.errors import EXIT_INTERRUPTED, EXIT_JOB_FAILED, UserError


@command
@click.argument("job")
@click.argument("role", default="", type=click.Choice(["", *ROLES]), metavar="[ROLE]")
@click.argument("index", default=0, type=click.IntRange(0))
def stacks(job: str, role: str, index: int, namespace: str) -> None:
    """Show where the threads of a running job stand.

    Without ROLE, the threads of all its processes are shown. ROLE is master, ps or worker. Lines of
    your own code begin with >. Exits with 1 if a process does not answer.
    """
    from shoal.client.ask import asking
    from shoal.client.stacks import problems, stacks_lines

    told = asking.stacks(found(job, namespace), role, index)
    console = console_here()
    for line in stacks_lines(told):
        console.print(line, soft_wrap=True)
    if silent := problems(told):
        echo(f"Error: without an answer: {'; '.join(silent)}", err=True)
        sys.exit(EXIT_JOB_FAILED)


@command
@click.argument("job")
@click.argument("role", type=click.Choice(ROLES))
@click.argument("index", default=0, type=click.IntRange(0))
@click.option(
    "--seconds",
    default=10.0,
    show_default=True,
    type=click.FloatRange(0.1, 600.0),
    help="How long.",
)
@click.option(
    "--output",
    default="",
    metavar="FILE",
    help="The SVG. Default: JOB-ROLE-INDEX.svg in this folder.",
)
def profile(job: str, role: str, index: int, seconds: float, output: str, namespace: str) -> None:
    """Draw a flame graph of a process of a running job.

    ROLE is master, ps or worker. py-spy looks at the process, which must be of this machine.
    """
    from shoal.client.profile import record

    if not Path(output).absolute().parent.is_dir():  # said before it takes its time
        raise UserError(f"--output: there is no folder {Path(output).parent}: create it first")
    of = found(job, namespace)
    process = role if role == "master" else f"{role}-{index}"
    path = Path(output or f"{of.name}-{process}.svg")
    try:
        record(of.process(role, index), seconds, path)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    echo(f"wrote {shown_path(path)}")
