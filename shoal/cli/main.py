"""The command line: flags from JobConfig's fields, exit codes, nothing else.

A wrong input is one line on standard error and exit code 2. A traceback is shown only
of the user's own code, or of a bug of ours. client/run/local.py runs the jobs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import click.core

from shoal.base.disk.job_folder import JobFolder, meant_folder
from shoal.cli import jobs
from shoal.cli.analyze import analyze
from shoal.cli.chaos import chaos_options, counting
from shoal.cli.chaos import run as run_chaos
from shoal.cli.checkpoints import checkpoint
from shoal.cli.data_flags import (
    NOTHING_REQUIRED,
    DataCommand,
    GroupedCommand,
    GroupedOption,
    field_options,
    given_flags,
)
from shoal.cli.following import DASHBOARD, EVENTS, Watching, follow
from shoal.cli.live.follow import follow as follow_published
from shoal.cli.live.serve import serve
from shoal.cli.live.sql import sql
from shoal.cli.migrate import migrate
from shoal.cli.plan import plan
from shoal.client.show.plain import echo
from shoal.config.flags import flag
from shoal.config.job import (
    EXPORT_FLAGS,
    RESUMABLE,
    RESUMABLE_IMAGES,
    JobConfig,
    fields_of,
    option_fields,
)
from shoal.config.options import GROUPS
from shoal.errors import (
    DISK_FAILS,
    EXIT_INTERRUPTED,
    EXIT_JOB_FAILED,
    EXIT_USER_ERROR,
    UserError,
    without_secrets,
)

SETTINGS = {
    "token_normalize_func": lambda name: name.replace("_", "-"),  # --batch_size is --batch-size
    "help_option_names": ["-h", "--help"],
    "max_content_width": 100,
}


_CLIENT_OPTIONS = (
    EVENTS,
    DASHBOARD,
    click.option(
        "--yaml",
        "yaml_file",
        cls=GroupedOption,
        group="Kubernetes",
        metavar="FILE",
        default="",
        help="Write the job's Kubernetes objects to this file, for kubectl apply, and start "
        "nothing. There is no secret in it. Needs --image.",
    ),
    click.option(
        "--detach",
        cls=GroupedOption,
        group="Kubernetes",
        is_flag=True,
        help="Submit the job and return; shoal status follows it. Needs --image.",
    ),
)
"""Of the command that is given, not of the job."""


def _options(
    command: str, *, client: bool = True
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Adds the flags of a command. client: those of the command that is given too."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for option in _CLIENT_OPTIONS if client else ():
            function = option(function)
        return field_options(fields_of(command))(function)

    return decorate


def _run(command: str, values: dict[str, Any]) -> None:
    """Run a job and exit with its code."""
    detach, yaml_file = values.pop("detach"), values.pop("yaml_file")
    watching = Watching(values.pop("events"), values.pop("dashboard"))
    try:
        config = JobConfig(command=command, **values)
        if watching.flags and (detach or yaml_file):
            raise UserError(
                f"{watching.flags[0]} cannot be combined with --detach or --yaml: "
                "remove one of them"
            )
        if detach or yaml_file:
            _submit(config, yaml_file)
            return
        # Late: --help and a wrong flag need neither gRPC nor rich.
        from shoal.client.run.local import run_job

        follow(lambda display: run_job(config, display), watching)
    except UserError as error:
        echo(f"Error: {error}", err=True)
        sys.exit(EXIT_USER_ERROR)


def _resume(job_dir: str, changes: dict[str, Any], watching: Watching) -> None:
    """Go on with a job and exit with its code."""
    try:
        namespace = changes.pop("namespace", None)
        if more := sorted(changes.keys() - {*RESUMABLE, *RESUMABLE_IMAGES}):
            raise UserError(f"{flag(more[0])} cannot be given with --resume: the job keeps it")
        if namespace is not None:
            from shoal.client.run.remote_resume import resume_by_name

            follow(lambda display: resume_by_name(job_dir, namespace, changes, display), watching)
        else:
            from shoal.client.run.local import resume_job

            follow(lambda display: resume_job(job_dir, changes, display), watching)
    except UserError as error:
        echo(f"Error: {error}", err=True)
        sys.exit(EXIT_USER_ERROR)


def _submit(config: JobConfig, yaml_file: str) -> None:
    """Give a job to the cluster without following it, or write its objects to a file."""
    if not config.image:
        raise UserError("--detach and --yaml are for jobs on Kubernetes: they need --image")
    from shoal.client.run.job_yaml import write_yaml
    from shoal.client.run.remote import submit

    if yaml_file:
        for text in write_yaml(config, yaml_file):
            echo(text, err=True)
        return
    handle, warnings = submit(config)
    for text in warnings:
        echo(text, err=True)
    where = f"{handle.name} --namespace {handle.namespace}"
    echo(f"job {handle.name} is in namespace {handle.namespace}; see shoal status {where}")


@click.group(context_settings=SETTINGS)
@click.version_option(package_name="shoal", prog_name="shoal")
def main() -> None:
    """Train recommendation models with huge embedding tables, elastically."""


def _for_resume(context: click.Context, _: click.Parameter, job_dir: str) -> str:
    """Nothing else is required with --resume: the job has its configuration."""
    if job_dir:
        context.meta[NOTHING_REQUIRED] = True
    return job_dir


@main.command(cls=DataCommand)
@_options("train")
@click.option(
    "--resume",
    cls=GroupedOption,
    group=GROUPS[0].title,
    metavar="JOB_DIR",
    default="",
    is_eager=True,
    callback=_for_resume,
    help="Continue the job in this folder, which was stopped, failed or killed, from its journal "
    "and newest good checkpoint. Only these flags may be given with it: "
    + ", ".join(flag(name) for name in RESUMABLE)
    + "; on Kubernetes also --image and --server-image. With --namespace, JOB_DIR is the name of "
    "a job that still exists.",
)
@click.pass_context
def train(context: click.Context, /, resume: str, **values: Any) -> None:
    """Train a model, evaluate it and export it."""
    if resume:
        watching = Watching(values.pop("events"), values.pop("dashboard"))
        given = {name: values[name] for name in given_flags(context, values)}
        _resume(resume, given, watching)
    else:
        _run("train", values)


@main.command(cls=DataCommand)
@_options("evaluate")
def evaluate(**values: Any) -> None:
    """Evaluate the output of a training job on --validation-data."""
    _run("evaluate", values)


@main.command(cls=DataCommand)
@_options("predict")
def predict(**values: Any) -> None:
    """Predict --prediction-data with the output of a training job."""
    _run("predict", values)


@main.command()
@click.argument("job_dir", type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--namespace",
    default="",
    metavar="NAME",
    help="Namespace of a job on Kubernetes; JOB_DIR is its name.",
)
def audit(job_dir: str, as_json: bool, namespace: str) -> None:
    """Account for every record of the job in JOB_DIR.

    Exits with 1 if one is unaccounted for. Reads the job's journal. The job may be running, have
    ended or have been killed. The master of a job on Kubernetes reads it.
    """
    folder = JobFolder(Path(job_dir))
    if namespace or folder.audit.is_file():
        jobs.print_audit(job_dir, namespace, as_json=as_json)
        return
    if not folder.journal.is_dir():
        missing = folder.journal.absolute()
        echo(f"Error: there is no journal {missing}{meant_folder(job_dir)}", err=True)
        sys.exit(EXIT_USER_ERROR)
    from shoal.client.run.model_process import run  # late: no other command needs it

    command = ["-m", "shoal.master.journal.audit", job_dir]
    sys.exit(run([*command, "--json"] if as_json else command).returncode)


@main.command(cls=DataCommand)
@chaos_options
@_options("train", client=False)
@click.pass_context
def chaos(context: click.Context, /, **values: Any) -> None:
    """Train a model while processes are killed on purpose.

    Processes may also be paused or cut off, disks filled, and storage made to fail. Takes the flags
    of shoal train too, and runs the job on this machine. Prints the faults, the audit, and how the
    metrics differ from those of the same job undisturbed, or with --count, which rows differ from
    the audit. Exits with 1 if the job failed, a record is unaccounted for, or a fault did not
    happen. Without --relaunch-limit, the limit is as high as the faults need.
    """
    of_job = {field.name for field in option_fields()}
    given = set(given_flags(context, values))
    try:
        fields = {name: values.pop(name) for name in list(values) if name in of_job}
        if values["count"]:
            fields = counting(fields, given)
        config = JobConfig(command="train", **fields)
        run_chaos(config, limit_given="relaunch_limit" in given, **values)
    except UserError as error:
        echo(f"Error: {error}", err=True)
        sys.exit(EXIT_USER_ERROR)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)


def _export_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the flags of `shoal export`."""
    fields = {field.name: field for field in option_fields()}
    # --model-def is that of the job, where there is one.
    return field_options([fields[name] for name in EXPORT_FLAGS], required=False)(function)


@main.command(cls=GroupedCommand)
@click.argument("source")
@click.option(
    "--number",
    metavar="N",
    type=int,
    help="Number of the checkpoint. Default: the newest whole one.",
)
@_export_options
@click.pass_context
def export(context: click.Context, /, source: str, number: int | None, **values: Any) -> None:
    """Export the model in a checkpoint.

    The export is the one that the job would have made; no servers are started.

    SOURCE is the folder of a job, which may have failed or been killed, of its checkpoints (also
    a URL), or of one checkpoint. Flags that are not given have the values of the job. Checkpoints
    outside of a job's folder need --model-def, and --model-zoo and --embedding-threshold as in
    the job; also --training-data, unless the model is a functional one.
    """
    given = {name: values[name] for name in given_flags(context, values)}
    try:
        if "output" not in given:
            raise UserError("--output is required by shoal export")
        from shoal.cli.export import run_export

        sys.exit(run_export(source, number, given))
    except (UserError, OSError) as error:
        echo(f"Error: {without_secrets(str(error))}", err=True)
        fails = isinstance(error, OSError) and error.errno in DISK_FAILS
        sys.exit(EXIT_JOB_FAILED if fails else EXIT_USER_ERROR)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)


@main.command(cls=DataCommand)
@_options("check", client=False)
def check(**values: Any) -> None:
    """Check a model, and try one batch of its data, without a job.

    Shows which layers the servers would hold, and what is unsupported. With --training-data, one
    batch of your data is read, trained and evaluated.
    """
    try:
        config = JobConfig(command="check", **values)
        # Late: --help needs no reader.
        from shoal.client.run.inspection import run_check

        sys.exit(run_check(config))
    except UserError as error:
        echo(f"Error: {error}", err=True)
        sys.exit(EXIT_USER_ERROR)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)


jobs.register(main)
main.add_command(analyze)
checkpoint.add_command(migrate)
main.add_command(checkpoint)
main.add_command(plan)
main.add_command(sql)
main.add_command(follow_published)
main.add_command(serve)
