"""`shoal serve`: its flags. What it does is shoal.serve's."""

from __future__ import annotations

import os

import click

from shoal.cli.data_flags import GroupedCommand, GroupedOption
from shoal.cli.finding import guarded
from shoal.errors import UserError

LISTEN = "127.0.0.1:8501"

SECURITY = "Security"


def default_address() -> str:
    """The default of --listen: Vertex AI says at which port its containers are to listen."""
    port = os.environ.get("AIP_HTTP_PORT")
    return f"0.0.0.0:{port}" if port else LISTEN


def names_of(tables: str) -> tuple[str, ...]:
    """The names in --tables. Raises UserError."""
    names = tuple(each.strip() for each in tables.split(",")) if tables else ()
    if "" in names or len(set(names)) < len(names):
        raise UserError(f"--tables: {tables!r} is not a list of different names, as in users,items")
    return names


@click.command(cls=GroupedCommand)
@click.argument("url")
@click.option(
    "--listen",
    metavar="HOST:PORT",
    default=default_address,
    help=f"Where it listens; port 0 is any free one. Default: {LISTEN}, or as AIP_HTTP_PORT says.",
)
@click.option(
    "--name", default="model", show_default=True, help="Name of the model in its addresses."
)
@click.option(
    "--rows",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="Also answer lookups of rows over the data plane at this port: shoal.serve.data_plane.",
)
@click.option(
    "--grpc",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="Also answer TensorFlow Serving's gRPC API at this port.",
)
@click.option(
    "--until", type=click.IntRange(1), metavar="N", help="Stop at delta N, and serve that."
)
@click.option(
    "--max-age",
    type=click.FloatRange(0, min_open=True),
    metavar="SECONDS",
    help="/readyz says no while the newest delta is older.",
)
@click.option(
    "--tables",
    metavar="A,B",
    default="",
    help="Keep these tables only, for lookups: with some left out, the model cannot predict.",
)
@click.option(
    "--tls-cert",
    cls=GroupedOption,
    group=SECURITY,
    type=click.Path(),
    default="",
    help="File with the certificate of this server, PEM. Other addresses than 127.0.0.1 need it.",
)
@click.option(
    "--tls-key",
    cls=GroupedOption,
    group=SECURITY,
    type=click.Path(),
    default="",
    help="File with its key.",
)
@click.option(
    "--tls-ca",
    cls=GroupedOption,
    group=SECURITY,
    type=click.Path(),
    default="",
    help="File with the authorities of those who may ask. Default: anybody may.",
)
@click.option(
    "--insecure",
    cls=GroupedOption,
    group=SECURITY,
    is_flag=True,
    help="Listen without TLS beyond this machine.",
)
@guarded
def serve(
    url: str,
    listen: str,
    name: str,
    rows: int | None,
    grpc: int | None,
    until: int | None,
    max_age: float | None,
    tables: str,
    tls_cert: str,
    tls_key: str,
    tls_ca: str,
    insecure: bool,
) -> None:
    """Serve the newest values of the model that a job publishes.

    URL is the folder of shoal train --publish. Answers TensorFlow Serving's REST API and KServe's
    V1 protocol at /v1/models/NAME:predict, rows at /v1/tables/TABLE:lookup, and /healthz, /readyz
    and /metrics.
    """
    from shoal.serve.run import Options, of_vertex, run  # late: --help needs no sockets

    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    kept = names_of(tables)
    options = Options(
        *(listen, name, rows, grpc, until, max_age, kept, tls_cert, tls_key, tls_ca, insecure)
    )
    run(url, options, of_vertex())
