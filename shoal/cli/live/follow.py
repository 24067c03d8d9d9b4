"""`shoal follow`: its flags. What it does is shoal.deltas' to_redis.py's and to_versions.py's."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys

import click

from shoal.base.modules.engines import VARIABLE
from shoal.base.signals import told_to_end
from shoal.cli.data_flags import GroupedCommand
from shoal.cli.finding import guarded
from shoal.cli.live.serve import names_of
from shoal.config.job import JobConfig
from shoal.errors import Error, UserError

WRITER = "shoal.worker.engines.tensorflow.outputs.versions"
"""The module of the process that has TensorFlow."""

EVERY_SECONDS = 60.0


@click.command(cls=GroupedCommand)
@click.argument("url")
@click.option(
    "--to",
    required=True,
    metavar="WHERE",
    help="A folder or URL for numbered SavedModels, or redis://HOST:PORT/DB?prefix=TEXT for rows. "
    "${NAME} stands for a variable of the environment, as for a password.",
)
@click.option(
    "--every",
    type=click.FloatRange(0, min_open=True),
    metavar="SECONDS",
    help="Write a SavedModel no more often, if there is something new. Default: "
    f"{EVERY_SECONDS:g}.",
)
@click.option(
    "--export-max-table-mb",
    type=click.FloatRange(0),
    metavar="MB",
    help="Limit for the ids and rows of all tables in a SavedModel. Default: "
    f"{JobConfig.export_max_table_mb}.",
)
@click.option(
    "--tables",
    metavar="A,B",
    default="",
    help="Write the rows of these tables only. Default: all of them.",
)
@click.option(
    "--until", type=click.IntRange(1), metavar="N", help="End once all of delta N is there."
)
@guarded
def follow(
    url: str,
    to: str,
    every: float | None,
    export_max_table_mb: float | None,
    tables: str,
    until: int | None,
) -> None:
    """Keep SavedModels or Redis as new as what a job publishes.

    URL is the folder of shoal train --publish. In a folder of TensorFlow Serving, FOLDER/NUMBER is
    the whole model of delta NUMBER; the newest two are kept. In Redis a row is the key
    PREFIX + TABLE:ID, its value the float32s of the row; rows that the job removes are deleted.
    Goes on until it is interrupted.
    """
    names = names_of(tables)
    if to.partition("://")[0] in ("redis", "rediss", "unix"):
        if every is not None or export_max_table_mb is not None:
            raise UserError("--every and --export-max-table-mb are of SavedModels, not of Redis")
        _into_redis(url, to, names, until)
        return
    if names:
        raise UserError("--tables: a SavedModel needs all tables; it is for rows in Redis")
    if importlib.util.find_spec("tensorflow") is None:
        raise UserError("--to FOLDER needs 'shoal[cpu]': pip install 'shoal[cpu]'")
    every = EVERY_SECONDS if every is None else every
    most = JobConfig.export_max_table_mb if export_max_table_mb is None else export_max_table_mb
    command = [sys.executable, "-m", WRITER, url, "--to", to, "--every", str(every)]
    command += ["--export-max-table-mb", str(most)]
    command += [] if until is None else ["--until", str(until)]
    # In the place of this process: signals are for that one, and nothing is left behind by a kill.
    environment = {"TF_CPP_MIN_LOG_LEVEL": "2"} | os.environ | {VARIABLE: "tensorflow"}
    os.execve(command[0], command, environment)


def _into_redis(url: str, to: str, tables: tuple[str, ...], until: int | None) -> None:
    import logging  # late: --help needs none of these

    from shoal.deltas.to_redis import RedisRows, follow_into

    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    logging.getLogger("shoal").setLevel(logging.INFO)
    ends = told_to_end()
    with contextlib.closing(RedisRows(to, tables)) as rows:
        try:
            follow_into(url, rows, until, ends)
        except UserError:
            raise
        except Error as error:
            raise UserError(str(error)) from error
