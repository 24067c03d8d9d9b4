"""The command line: flags from JobConfig's fields, exit codes, nothing else.

A wrong input is one line on standard error and exit code 2; a traceback is shown only
of the user's own code, or of a bug of ours. What runs is client.py's.
"""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import click.core

from shoal.base.job_folder import JobFolder
from shoal.cli import jobs
from shoal.cli.analyze import analyze
from shoal.cli.chaos import chaos_options, counting
from shoal.cli.chaos import run as run_chaos
from shoal.cli.checkpoints import checkpoint
from shoal.cli.data_flags import DataCommand
from shoal.config.flags import flag
from shoal.config.job import (
    CHECK_FLAGS,
    EXPORT_FLAGS,
    RESUMABLE,
    RESUMABLE_IMAGES,
    JobConfig,
    option_fields,
)
from shoal.errors import (
    DISK_FAILS,
    EXIT_INTERRUPTED,
    EXIT_JOB_FAILED,
    EXIT_USER_ERROR,
    UserError,
    without_secrets,
)

SETTINGS = {
    "token_normalize_func": lambda name: name.replace("_", "-"),  # --num_ps is --num-ps
    "help_option_names": ["-h", "--help"],
    "max_content_width": 100,
}


_CLIENT_OPTIONS = (
    click.option(
        "--yaml",
        "yaml_file",
        default="",
        help="With --image: write the job's Kubernetes objects to this file, for kubectl apply, "
        "and do nothing else.",
    ),
    click.option(
        "--detach",
        is_flag=True,
        help="With --image: return when the job is submitted; see shoal status.",
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
        for field in reversed(option_fields()):
            of_command = command in field.metadata["commands"]
            if field.name in CHECK_FLAGS if command == "check" else of_command:
                function = _option(field)(function)
        return function

    return decorate


def _option(
    field: dataclasses.Field[Any], *, required: bool = True
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    help_text = field.metadata["help"]
    if field.default is dataclasses.MISSING:
        return click.option(flag(field.name), field.name, required=required, help=help_text)
    return click.option(
        flag(field.name),
        field.name,
        type=type(field.default),
        default=field.default,
        is_flag=isinstance(field.default, bool),
        show_default=field.default != "" and not isinstance(field.default, bool),
        help=help_text,
    )


def _run(command: str, values: dict[str, Any]) -> None:
    """Run a job and exit with its code."""
    detach, yaml_file = values.pop("detach"), values.pop("yaml_file")
    try:
        config = JobConfig(command=command, **values)
        if detach or yaml_file:
            _submit(config, yaml_file)
            return
        # Late: --help and a wrong flag need neither gRPC nor rich.
        from shoal.client.local import run_job

        _follow(lambda display: run_job(config, display))
    except UserError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(EXIT_USER_ERROR)


def _resume(job_dir: str, changes: dict[str, Any]) -> None:
    """Go on with a job and exit with its code."""
    try:
        namespace = changes.pop("namespace", None)
        if more := sorted(changes.keys() - {*RESUMABLE, *RESUMABLE_IMAGES}):
            raise UserError(f"{flag(more[0])} cannot be given with --resume: it is as it was")
        if namespace is not None:
            from shoal.client.remote_resume import resume_by_name

            _follow(lambda display: resume_by_name(job_dir, namespace, changes, display))
        else:
            from shoal.client.local import resume_job

            _follow(lambda display: resume_job(job_dir, changes, display))
    except UserError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(EXIT_USER_ERROR)


def _follow(run: Callable[[Any], Any]) -> None:
    """Run a job with a display, print its report, and exit with its code."""
    from shoal.client.display import default_display
    from shoal.client.report import print_report
    from shoal.result import JobFailedError

    try:
        try:
            result = run(default_display())
        except JobFailedError as error:
            click.echo(f"Error: {error}", err=True)
            sys.exit(EXIT_JOB_FAILED)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    print_report(result)
    sys.exit(result.exit_code)


def _submit(config: JobConfig, yaml_file: str) -> None:
    """Give a job to the cluster without following it, or write its objects to a file."""
    if not config.image:
        raise UserError("--detach and --yaml are for jobs on Kubernetes: they need --image")
    from shoal.client.remote import submit, write_yaml

    if yaml_file:
        for text in write_yaml(config, yaml_file):
            click.echo(text, err=True)
        return
    handle, warnings = submit(config)
    for text in warnings:
        click.echo(text, err=True)
    where = f"{handle.name} --namespace {handle.namespace}"
    click.echo(f"job {handle.name} is in namespace {handle.namespace}; see shoal status {where}")


@click.group(context_settings=SETTINGS)
@click.version_option(package_name="shoal", prog_name="shoal")
def main() -> None:
    """Train recommendation models with huge embedding tables, elastically."""


def _for_resume(context: click.Context, _: click.Parameter, job_dir: str) -> str:
    """Nothing else is required with --resume: the job has its configuration."""
    if job_dir:
        for parameter in context.command.params:
            parameter.required = False
    return job_dir


@main.command(cls=DataCommand)
@_options("train")
@click.option(
    "--resume",
    metavar="JOB_DIR",
    default="",
    is_eager=True,
    callback=_for_resume,
    help="Go on with the job in this folder, which was stopped, failed or killed, from its "
    "journal and newest good checkpoint. With it, only "
    + ", ".join(flag(name) for name in RESUMABLE)
    + " may be given. Of a job on Kubernetes also --image and --server-image; with --namespace, "
    "JOB_DIR is the name of a job that is still there.",
)
@click.pass_context
def train(context: click.Context, /, resume: str, **values: Any) -> None:
    """Train a model, evaluate it and export it."""
    if resume:
        command_line = click.core.ParameterSource.COMMANDLINE
        given = {n for n in values if context.get_parameter_source(n) == command_line}
        _resume(resume, {name: values[name] for name in given})
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
@click.option("--namespace", default="", help="JOB_DIR is the name of a job on Kubernetes, there.")
def audit(job_dir: str, as_json: bool, namespace: str) -> None:
    """Say what became of every record of the job in JOB_DIR; exit 1 if one is unaccounted for.

    Reads the job's journal; the job may be running, have ended or have been killed. That of a
    job on Kubernetes is read by its master.
    """
    if namespace or JobFolder(Path(job_dir)).audit.is_file():
        jobs.print_audit(job_dir, namespace, as_json=as_json)
        return
    command = [sys.executable, "-m", "shoal.master.journal.audit", job_dir]
    sys.exit(subprocess.call([*command, "--json"] if as_json else command))


@main.command()
@chaos_options
@_options("train", client=False)
@click.pass_context
def chaos(context: click.Context, /, **values: Any) -> None:
    """Train a model while processes of the job are killed, paused or cut off on purpose.

    Takes the flags of shoal train too, and runs the job on this machine. Prints what was
    done, the audit, and how the metrics differ from those of the same job undisturbed, or with
    --count, which rows differ from the audit. Exits with 1 if the job failed, a record is
    unaccounted for, or not all could be done.
    Where --relaunch-limit is not given, it is raised to what is needed.
    """
    of_job = {field.name for field in option_fields()}
    command_line = click.core.ParameterSource.COMMANDLINE
    given = {n for n in values if context.get_parameter_source(n) == command_line}
    try:
        fields = {name: values.pop(name) for name in list(values) if name in of_job}
        if values["count"]:
            fields = counting(fields, given)
        config = JobConfig(command="train", **fields)
        run_chaos(config, limit_given="relaunch_limit" in given, **values)
    except UserError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(EXIT_USER_ERROR)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)


def _export_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the flags of `shoal export`."""
    fields = {field.name: field for field in option_fields()}
    for name in reversed(EXPORT_FLAGS):
        # --model-def is that of the job, where there is one.
        function = _option(fields[name], required=False)(function)
    return function


@main.command()
@click.argument("source")
@click.option("--number", type=int, help="Which checkpoint; default: the newest that is whole.")
@_export_options
@click.pass_context
def export(context: click.Context, /, source: str, number: int | None, **values: Any) -> None:
    """Export the model in a checkpoint, as its job would have, without servers.

    SOURCE is the folder of a job, which may have failed or been killed, of its checkpoints (also
    a URL), or of one checkpoint. What is not given is as in the job. Of checkpoints that are not
    in a job's folder, --model-def is needed, and --model-zoo and --embedding-threshold as in the
    job; and --training-data, unless the model is a functional one.
    """
    command_line = click.core.ParameterSource.COMMANDLINE
    given = {n: v for n, v in values.items() if context.get_parameter_source(n) == command_line}
    try:
        if "output" not in given:
            raise UserError("--output is required by shoal export")
        from shoal.cli.export import run_export

        sys.exit(run_export(source, number, given))
    except (UserError, OSError) as error:
        click.echo(f"Error: {without_secrets(str(error))}", err=True)
        fails = isinstance(error, OSError) and error.errno in DISK_FAILS
        sys.exit(EXIT_JOB_FAILED if fails else EXIT_USER_ERROR)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)


@main.command(cls=DataCommand)
@_options("check", client=False)
def check(**values: Any) -> None:
    """Say what of a model would live where and what is unsupported; try one batch.

    Starts no job. Give --training-data to have one batch of your own data read, trained
    and evaluated.
    """
    try:
        config = JobConfig(command="check", **values)
        # Late: --help needs no reader.
        from shoal.client.inspection import run_check

        sys.exit(run_check(config))
    except UserError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(EXIT_USER_ERROR)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)


jobs.register(main)
main.add_command(analyze)
main.add_command(checkpoint)
