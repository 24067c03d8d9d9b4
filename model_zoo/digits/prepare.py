"""Writes scikit-learn's handwritten digits as train.parquet and validation.parquet.

    python -m shoal.model_zoo.digits.prepare OUTPUT_DIR

1,797 images of 8x8 pixels, each from 0 to 16: `pixels`, a list of 64 numbers, and `label`.
A fifth, drawn at random, is for validation.
"""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from shoal.base.disk.wholefile import replacing
from shoal.model_zoo.wheels import command, file_of_package

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
        with replacing(output / name) as path:
            pq.write_table(table, path)
        written[name] = len(part)
    return written


main = command(prepare, PACKAGE, "the digits as Parquet")

if __name__ == "__main__":
    main()
