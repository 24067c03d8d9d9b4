"""`shoal explain`: where an id of a table is, and what becomes of it."""

from __future__ import annotations

import json

import click

from shoal.cli.finding import guarded
from shoal.client import finding
from shoal.client.show.plain import echo
from shoal.errors import UserError

LEAST, MOST = -(2**63), 2**63 - 1


# Negative ids are no flags.
@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("job")
@click.argument("table")
@click.argument("key", metavar="ID")
@click.option("--json", "as_object", is_flag=True, help="Print one JSON object.")
@click.option(
    "--namespace",
    default="",
    help="Of a job on Kubernetes. Default: that of the present kubectl context.",
)
@guarded
def explain(job: str, table: str, key: str, as_object: bool, namespace: str) -> None:
    """Explain one ID of a TABLE: its row, uses, last push and end.

    It says on which server the id is, whether it is counted or has a row, how often and when it was
    pushed, the norms of its row and of the optimizer's slots, when it expires, and when it was
    removed. JOB is a job that runs; one that has ended, of which the newest checkpoint or else the
    export is read; or the folder of a checkpoint or an export.
    """
    from shoal.client.ask import explaining
    from shoal.client.ask.local_jobs import find

    try:
        number = int(key)
    except ValueError:
        raise UserError(f"ID must be an integer, not {key!r}") from None
    if not LEAST <= number <= MOST:
        raise UserError(f"ID must be an int64 number, from {LEAST} to {MOST}, not {key}")
    at = None if namespace or find(job) else explaining.find_at(job, table, number)
    found, where = at or explaining.find_of_job(finding.found(job, namespace), table, number)
    explaining.check_vocabulary(found)
    if as_object:
        echo(json.dumps(explaining.as_json(found, where)))
        return
    lines = list(explaining.explained(found))
    echo(f"id {number} of table {table!r}, by {where}:")
    width = max(len(heading) for heading, _ in lines)
    for heading, text in lines:
        echo(f"  {heading:<{width}}  {text}")
