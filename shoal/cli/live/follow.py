"""`shoal follow`: its flags. What it does is shoal.deltas' to_redis.py's."""

from __future__ import annotations

import contextlib
import signal
import threading

import click

from shoal.base.signals import on_signal
from shoal.cli.data_flags import GroupedCommand
from shoal.cli.finding import guarded
from shoal.cli.live.serve import names_of
from shoal.errors import Error, UserError


@click.command(cls=GroupedCommand)
@click.argument("url")
@click.option(
    "--to",
    required=True,
    metavar="REDIS_URL",
    help="Where rows go: redis://HOST:PORT/DB?prefix=TEXT. ${NAME} stands for a variable of the "
    "environment, as for a password.",
)
@click.option(
    "--tables", metavar="A,B", default="", help="Write these tables only. Default: all of them."
)
@click.option(
    "--until", type=click.IntRange(1), metavar="N", help="End once all of delta N is there."
)
@guarded
def follow(url: str, to: str, tables: str, until: int | None) -> None:
    """Keep rows in Redis as new as those that a job publishes.

    URL is the folder of shoal train --publish. A row is the key PREFIX + TABLE:ID, its value the
    float32s of the row; rows that the job removes are deleted. Goes on until it is interrupted.
    """
    import logging  # late: --help needs none of these

    from shoal.deltas.to_redis import RedisRows, follow_into

    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    logging.getLogger("shoal").setLevel(logging.INFO)
    ends = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        on_signal(number, ends.set)
    with contextlib.closing(RedisRows(to, names_of(tables))) as rows:
        try:
            follow_into(url, rows, until, ends)
        except UserError:
            raise
        except Error as error:
            raise UserError(str(error)) from error
