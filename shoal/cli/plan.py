"""`shoal plan`: rows, memory and servers of a job, before it has cost anything."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import click

from shoal.cli.data_flags import NOTHING_REQUIRED, DataCommand, field_options, given_flags
from shoal.cli.finding import console_here, guarded
from shoal.client.show.plain import echo
from shoal.config.flags import flag
from shoal.config.job import JobConfig, fields_of
from shoal.errors import UserError


def _for_job(context: click.Context, _: click.Parameter, job: str) -> str:
    if job:
        context.meta[NOTHING_REQUIRED] = True
    return job


@click.command(cls=DataCommand)
@click.option(
    "--job",
    default="",
    metavar="JOB",
    is_eager=True,
    callback=_for_job,
    help="Plan this job of this machine again and compare with its newest checkpoint. JOB is a "
    "folder or a name. Flags of the job cannot be given with it.",
)
@click.option(
    "--sample-records",
    default=500_000,
    show_default=True,
    type=click.IntRange(1),
    metavar="N",
    help="Records to read, in whole pushes from all of the data.",
)
@click.option(
    "--server-memory-gib",
    default=8.0,
    show_default=True,
    type=click.FloatRange(0, min_open=True),
    metavar="GIB",
    help="Memory that one server's pod may have.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@field_options(fields_of("plan"))
@click.pass_context
@guarded
def plan(
    context: click.Context,
    /,
    job: str,
    sample_records: int,
    server_memory_gib: float,
    as_json: bool,
    **values: Any,
) -> None:
    """Predict rows and memory of each table from a sample.

    Starts no job. Prints the servers to ask for, too. Numbers that the sample does not tell exactly
    are intervals.
    """
    # Late: --help needs none of it.
    from shoal.client.run import planning

    if job:
        if given := given_flags(context, values):
            raise UserError(f"{flag(given[0])} cannot be given with --job, which has its own")
        trained = planning.job_of(job)
        number, rows = planning.rows_of(trained)
        config = replace(trained, restore_from="")
    else:
        if not values["training_data"]:
            raise UserError("--training-data is required by shoal plan")
        config = JobConfig(command="train", **values)
    found = planning.predicted(config, sample_records)
    asked = planning.to_ask_for(found, config, server_memory_gib)
    compared = planning.compared(found, rows) if job else []
    if as_json:
        echo(json.dumps(found | {"ask": asked} | ({"compared": compared} if job else {}), indent=2))
        return
    epochs = f", {found['epochs']} epochs" if found["epochs"] > 1 else ""
    echo(
        f"read {found['records_read']:,} of {found['records']:,} records: {found['pushes_read']:,} "
        f"of the {found['pushes']:,} pushes of an epoch{epochs}"
    )
    console = console_here()
    for table in planning.tables_of(found):
        console.print(table)
    if job:
        console.print(planning.comparison_of(compared, number))
    echo(f"To ask for, by the upper ends of the intervals: {asked['flags']}")
