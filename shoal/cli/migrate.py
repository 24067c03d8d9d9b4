"""`shoal checkpoint migrate`: the checkpoint of one model as that of another.

Owns the command: which checkpoint, which two models, the plan printed, the comparison at the end.
What becomes of what is shoal/tools/migration/migration_plan.py's.
"""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from shoal.base.modules.engines import AUTO
from shoal.base.words import size
from shoal.cli.checkpoints import find_checkpoints, newest_checkpoint
from shoal.cli.data_flags import GroupedCommand, field_options, given_flags
from shoal.cli.export import job_of
from shoal.client.run.checks import check_model
from shoal.client.show.plain import echo
from shoal.config.groups import data_format
from shoal.config.job import JobConfig, option_fields
from shoal.errors import UserError

if TYPE_CHECKING:
    from shoal.checkpoints.folders import Checkpoint
    from shoal.checkpoints.migration_terms import Described
    from shoal.cli.describing import Description

FLAGS = (
    *("model_def", "model_zoo", "model_params", "engine", "training_data"),
    *("embedding_threshold", "table"),
    *data_format.FIELDS,
)
"""Fields of the new model's configuration that have flags; the others are those of the job."""


def _job_flags(function: Callable[..., Any]) -> Callable[..., Any]:
    fields = {field.name: field for field in option_fields()}
    return field_options([fields[name] for name in FLAGS])(function)


def _several(
    name: str, help_: str, metavar: str = "NAME"
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.option(name, multiple=True, metavar=metavar, help=f"{help_} May be repeated.")


@click.command(cls=GroupedCommand)
@click.argument("source", metavar="SRC")
@click.argument("target", metavar="DST")
@_job_flags
@click.option(
    "--source-model-def",
    default="",
    metavar="FILE.FUNCTION",
    help="The model of the checkpoint. Default: that of its job.",
)
@click.option(
    "--number",
    type=int,
    metavar="N",
    help="Number of the checkpoint. Default: the newest whole one.",
)
@_several("--rename", "A table, layer, variable or feature has another name now.", "OLD=NEW")
@_several("--drop", "Accept the loss of this table, layer, variable or feature.")
@click.option(
    "--truncate",
    is_flag=True,
    help="Accept the loss of columns, ids and digits that tables no longer have.",
)
@_several("--reinitialise", "Give this dense variable its initial values.", "VARIABLE")
@_several(
    "--kernel-rows", "Where the old rows of a kernel are in the new one.", "VARIABLE=FROM:TO,..."
)
@click.option("--dry-run", is_flag=True, help="Print the plan and write nothing.")
@click.option(
    "--verify",
    type=click.IntRange(min=1),
    metavar="N",
    help="Compare the predictions of both models for N records of --training-data.",
)
@click.pass_context
def migrate(context: click.Context, /, source: str, target: str, **values: Any) -> None:
    """Write the checkpoint SRC for another model, into the new folder DST.

    SRC is the folder of a job, of its checkpoints (also a URL), or of one checkpoint. Prints
    what becomes of each table and dense variable first. What would be lost is refused unless a flag
    accepts it.
    """
    given = {name: values[name] for name in given_flags(context, FLAGS)}
    _migrate(source, target, given, values)


def _migrate(source: str, target: str, given: dict[str, Any], values: dict[str, Any]) -> None:
    # Late: they need pyarrow.
    from shoal.checkpoints.formats.manifests import CheckpointError
    from shoal.checkpoints.migration_terms import Wishes
    from shoal.cli.describing import describe, predictions
    from shoal.files.storage import open_storage
    from shoal.tools.migration import migration
    from shoal.tools.migration.migration_plan import plan

    wishes = Wishes(
        dict(_pair("--rename", each, "OLD=NEW") for each in values["rename"]),
        frozenset(values["drop"]),
        values["truncate"],
        frozenset(values["reinitialise"]),
        dict(_kernel_rows(each) for each in values["kernel_rows"]),
    )
    root, numbers = find_checkpoints(source, values["number"])
    found = newest_checkpoint(root, numbers)
    old_config, new_config = _configs(source, given, values["source_model_def"])
    verify = values["verify"]
    if verify and not new_config.training_data:
        raise UserError("--verify: --training-data is required, to predict its records")
    if verify and old_config is None:
        raise UserError("--verify: --source-model-def is required, to predict with the old model")
    folder = open_storage(target)
    if names := folder.names():
        raise UserError(f"{target} is not empty ({names[0]}): name a new folder")
    new = describe(new_config, "the new model")
    old = _old(found, old_config, explicit=bool(values["source_model_def"]) or bool(verify))
    try:
        made = plan(old, new.model, wishes)
    except ValueError as error:
        raise UserError(str(error)) from error
    echo(f"checkpoint {found.number} of {root.location}, version {found.version}:")
    for line in made.lines():
        echo(f"  {line}")
    if made.refused:
        raise UserError(
            "nothing is written, as this would be lost or is not known:\n  "
            + "\n  ".join(made.refused)
        )
    if values["dry_run"]:
        echo("nothing is written (--dry-run)")
        return
    try:
        manifest = migration.migrate(found, folder, made, new.initial)
    except CheckpointError as error:
        raise UserError(str(error)) from error
    echo(f"{size(manifest['bytes'])} written to {target}")
    if verify:
        assert old_config is not None
        before = predictions(old_config, "the old model", found, root.location, verify)
        written = newest_checkpoint(folder, [migration.NUMBER])
        after = predictions(new_config, "the new model", written, folder.location, verify)
        echo(_compared(before, after))


def _compared(before: Any, after: Any) -> str:
    """The largest difference of predictions, in words."""
    if before.shape != after.shape:
        raise UserError(
            f"--verify: the old model gives {before.shape[1]} outputs for {len(before)} records, "
            f"the new one {after.shape[1]} for {len(after)}: they cannot be compared"
        )
    largest = abs(after - before).max(initial=0.0)
    return (
        f"predictions for {len(before):,} records: the largest difference is {largest:.3g} "
        f"(between {before.min():.3g} and {before.max():.3g} before)"
    )


def _old(found: Checkpoint, config: JobConfig | None, *, explicit: bool) -> Described:
    """The checkpoint's model, with layouts if its module is known and still the same.

    explicit: the user named the module, so that another model is an error.
    """
    from shoal.checkpoints.migration_terms import Described
    from shoal.cli.describing import describe

    reason = "its module is not known: name it with --source-model-def"
    if config is not None:
        try:
            described = describe(config, "the checkpoint's model")
        except UserError as error:
            if explicit:
                raise
            reason = f"{error}: name its module with --source-model-def"
        else:
            if (other := _difference(found, described)) is None:
                # What the servers had: the configuration may have been changed since.
                return dataclasses.replace(described.model, spec=found.model)
            reason = f"its module {config.model_def} has changed since: {other}"
            if explicit:
                raise UserError(f"--source-model-def: {reason}")
            reason += "; name it as it was with --source-model-def"
    return Described(found.model, otherwise=reason)


def _difference(found: Checkpoint, described: Description) -> str | None:
    """In which table or variable a model is not that of the checkpoint; None if in none."""

    def shapes(spec: Any) -> dict[str, Any]:
        tables = {table.name: int(table.dim) for table in spec.tables}
        return tables | {
            each.name: tuple(each.shape) for each in (*spec.trainable, *spec.non_trainable)
        }

    saved, now = shapes(found.model), shapes(described.model.spec)
    for name in sorted(saved.keys() | now.keys()):
        if saved.get(name) != now.get(name):
            return f"{name} is {saved.get(name)} in the checkpoint and {now.get(name)} in it"
    return None


def _configs(
    source: str, given: dict[str, Any], source_model_def: str
) -> tuple[JobConfig | None, JobConfig]:
    """The configurations of the checkpoint's model, if it is known, and of the new one."""
    job = job_of(source)
    kept: dict[str, Any] = {"command": "check", "image": "", "restore_from": "", "output": ""}
    token = secrets.token_hex(8)
    if job is None:
        new = JobConfig(command="check", **given)
        old = None
        if source_model_def:
            old = dataclasses.replace(new, model_def=source_model_def)
    else:
        base = dataclasses.replace(JobConfig.load(job.config), **kept)
        anew = {"engine": AUTO} if given.get("model_def") else {}
        new = dataclasses.replace(base, **(anew | given))
        # The data are read where they are now.
        taken = {"training_data", "engine"} | ({"model_zoo"} if source_model_def else set())
        here: dict[str, Any] = {name: given[name] for name in taken & given.keys()}
        if source_model_def:
            here = {"engine": AUTO} | here | {"model_def": source_model_def}
        old = dataclasses.replace(base, **here)
    configs = [
        None if each is None else dataclasses.replace(each, token=token) for each in (old, new)
    ]
    resolved = [None if each is None else each.resolved() for each in configs]
    assert resolved[1] is not None
    check_model(resolved[1])
    return resolved[0], resolved[1]


def _pair(flag: str, text: str, form: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not (name and sign and value):
        raise UserError(f"{flag}: {text!r} is not {form}")
    return name, value


def _kernel_rows(text: str) -> tuple[str, list[int]]:
    """The variable, and the new row of each of its old rows."""
    form = "VARIABLE=FROM:TO,..., as in dense/kernel=0:24,32:40"
    name, ranges = _pair("--kernel-rows", text, form)
    rows: list[int] = []
    for each in ranges.split(","):
        first, _, last = each.partition(":")
        if not (first.isdecimal() and last.isdecimal() and int(first) < int(last) <= 2**31):
            raise UserError(f"--kernel-rows: {text!r} is not {form}")
        rows += range(int(first), int(last))
    return name, rows
