"""`shoal analyze`: the statistics of data, as JSON for the user's module and as a table."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from typing import Any

import click

from shoal.cli.data_flags import GroupedCommand, field_options
from shoal.client.show.plain import echo
from shoal.config.expected import DEFAULTS, Expected
from shoal.config.groups.data_format import FormatOptions
from shoal.errors import EXIT_HELD_BACK, EXIT_INTERRUPTED, EXIT_USER_ERROR, UserError


@click.command(cls=GroupedCommand)
@click.option(
    "--data", required=True, metavar="DATA", help="Records, given as for --training-data."
)
@click.option(
    "--output",
    default="",
    metavar="FILE",
    help="JSON file to write the statistics to. Required without --against and --expect.",
)
@click.option(
    "--against",
    default="",
    metavar="FILE",
    help="Compare with the statistics in this file, which were written before. Exits with 3 if the "
    "data are not as expected, and says why.",
)
@click.option(
    "--expect",
    default="",
    metavar="LIMITS",
    help="Limits, with commas between them: [COLUMN:]MEASURE<=VALUE or >=, or COLUMN:any for none "
    "of a column. Of the data: records. Of each column: missing (a share), distinct, min, max, "
    "mean, median. With --against also, and these are the defaults: "
    f"{DEFAULTS.replace(',', ', ')}.",
)
@field_options(dataclasses.fields(FormatOptions))
@click.option(
    "--max-vocabulary",
    default=10_000,
    show_default=True,
    type=click.IntRange(1),
    metavar="N",
    help="Number of the most frequent values to keep of a column of text or integers.",
)
def analyze(
    data: str, output: str, against: str, expect: str, max_vocabulary: int, **written: str
) -> None:
    """Compute statistics of columns, for preprocessing layers.

    These are minimum, maximum, mean, quantiles, vocabulary and so on. Reads the data once, in
    bounded memory. A model module reads the file with shoal.preprocessing.Statistics. With
    --against or --expect, the statistics are held against an earlier day's or limits.
    """
    # Late: --help needs no Arrow.
    from shoal.data.opening import open_reader
    from shoal.data.samples.analysis import analyze as statistics_of
    from shoal.data.samples.analysis import save_statistics
    from shoal.data.samples.comparison import compare, read_statistics

    try:
        if not (output or against or expect):
            raise UserError("--output is required by shoal analyze without --against and --expect")
        expected = Expected(expect, compares=bool(against))
        # Before the data, which may be long.
        earlier = read_statistics(against, "--against") if against else None
        columns = written.pop("columns")
        data_format = FormatOptions(**written).format_of_data
        reader = open_reader(data, "--data", data_format=data_format)
        for doubt in reader.doubts():
            echo(f"warning: {doubt}", err=True)
        names = [name.strip() for name in columns.split(",") if name.strip()] or None
        statistics = statistics_of(
            reader,
            columns=names,
            max_vocabulary=max_vocabulary,
            progress=_progress if sys.stderr.isatty() else None,
        )
        try:
            if output:
                save_statistics(output, statistics)
        except OSError as error:
            raise UserError(f"--output: cannot write {output}: {error.strerror}") from error
        compared = compare(statistics, earlier, expected)
    except UserError as error:
        echo(f"Error: {error}", err=True)
        sys.exit(EXIT_USER_ERROR)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    _show(statistics, output or data)
    for note in compared.notes:
        echo(f"note: {note}", err=True)
    for finding in compared.findings:
        echo(f"not as expected: {finding}", err=True)
    if compared.findings:
        sys.exit(EXIT_HELD_BACK)


def _progress(records: int) -> None:
    click.echo(f"\r{records:,} records", nl=False, err=True)


def _show(statistics: Mapping[str, Any], output: str) -> None:
    from rich.table import Table
    from rich.text import Text

    from shoal.client.show.console import PlainConsole

    table = Table(title=Text(f"{statistics['records']:,} records: {output}"))
    for heading in ("column", "type", "missing", "distinct", "min", "mean", "max", "most frequent"):
        table.add_column(heading)
    for name, told in statistics["columns"].items():
        words = told.get("vocabulary", {"values": []})["values"]
        about = "" if told["distinct_exact"] else "about "
        cells = (
            name,
            told["type"],
            f"{told['missing']:,}",
            f"{about}{told['distinct']:,}",
            *(f"{told[what]:.6g}" if what in told else "" for what in ("min", "mean", "max")),
            ", ".join(str(word)[:20] for word in words[:3]),
        )
        # Not as markup: brackets in the data are no styles.
        table.add_row(*map(Text, cells))
    PlainConsole().print(table)
