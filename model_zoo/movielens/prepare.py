"""Writes MovieLens-100K as train.parquet and validation.parquet.

    python -m shoal.model_zoo.movielens.prepare OUTPUT_DIR

One record per rating. The label says whether the rating was 4 or 5; the features are
user, item, age, gender, occupation, zip, release_year, genres (a list), hour and
weekday, all int64. Strings become numbers as vocabulary.json beside the data tells.

The last fifth of every user's ratings, by time, is validation: a model is judged on
what its users did later, as in service.
"""

from __future__ import annotations

import random
import sys
import zlib
from collections import defaultdict
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
import pyarrow.parquet as pq

from shoal.base.disk.wholefile import replacing, write_json
from shoal.errors import EXIT_USER_ERROR, UserError
from shoal.model_zoo.movielens.archives import Archive, load

VALIDATION_SHARE = 5
"""One of so many ratings of a user is for validation, rounded down."""

ROW_GROUP = 4096
"""Records: a task of the default size reads one row group."""

SCHEMA = pa.schema(
    [
        ("label", pa.float32()),
        *(
            (name, pa.int64())
            for name in ["user", "item", "age", "gender", "occupation", "zip", "release_year"]
        ),
        ("genres", pa.list_(pa.int64())),
        ("hour", pa.int64()),
        ("weekday", pa.int64()),
    ]
)


def zip_id(zip_code: str) -> int:
    """A US zip code as its number, any other as a hash that no US code equals."""
    if zip_code.isdecimal():
        return int(zip_code)
    return (1 << 32) | zlib.crc32(zip_code.encode())


def vocabularies(archive: Archive) -> dict[str, list[str]]:
    """Sorted values of each feature made of strings; an id is a value's place."""
    users, items = archive.users.values(), archive.items.values()
    return {
        "gender": sorted({user.gender for user in users}),
        "occupation": sorted({user.occupation for user in users}),
        "genres": sorted({genre for item in items for genre in item.genres}),
    }


def split(archive: Archive) -> tuple[list[tuple[int, int, int, int]], ...]:
    """The ratings for training and for validation, each in a fixed random order.

    Random because batches are cut from neighbouring records: sorted by user, a batch
    would tell of one or two users only.
    """
    by_user = defaultdict(list)
    for rating in archive.ratings:
        by_user[rating[0]].append(rating)
    train, validation = [], []
    for user in sorted(by_user):
        ratings = sorted(by_user[user], key=lambda r: (r[3], r[1]))
        cut = len(ratings) - len(ratings) // VALIDATION_SHARE
        train += ratings[:cut]
        validation += ratings[cut:]
    shuffle = random.Random(0).shuffle
    shuffle(train)
    shuffle(validation)
    return train, validation


def records(archive: Archive, ratings: list[tuple[int, int, int, int]]) -> pa.Table:
    """The ratings with their features, a table of SCHEMA."""
    ids = {
        name: {value: index for index, value in enumerate(values)}
        for name, values in vocabularies(archive).items()
    }
    columns: dict[str, list[Any]] = {name: [] for name in SCHEMA.names}
    for user, item, rating, time in ratings:
        person, film = archive.users[user], archive.items[item]
        record = {
            "label": float(rating >= 4),
            "user": user,
            "item": item,
            "age": person.age,
            "gender": ids["gender"][person.gender],
            "occupation": ids["occupation"][person.occupation],
            "zip": zip_id(person.zip_code),
            "release_year": film.release_year,
            "genres": sorted(ids["genres"][genre] for genre in film.genres),
            "hour": time // 3600 % 24,
            "weekday": (time // 86400 + 3) % 7,  # day 0, 1970-01-01, was a Thursday
        }
        for name, value in record.items():
            columns[name].append(value)
    return pa.table(columns, schema=SCHEMA)


def prepare(output: Path, source: str | None = None) -> dict[str, int]:
    """Write the data set to the folder `output`; returns file name -> records.

    Raises UserError as `archives.load` does, or if the folder cannot be written.
    """
    archive = load(source)
    train, validation = split(archive)
    written = {}
    try:
        output.mkdir(parents=True, exist_ok=True)
        write_json(output / "vocabulary.json", vocabularies(archive))
        # The training data last: where they are, all is.
        for name, ratings in (("validation.parquet", validation), ("train.parquet", train)):
            table = records(archive, ratings)
            with replacing(output / name) as path:
                pq.write_table(table, path, row_group_size=ROW_GROUP)
            written[name] = table.num_rows
    except OSError as error:
        raise UserError(f"cannot write to {output}: {error}") from error
    return written


@click.command(help="Write MovieLens-100K as Parquet to OUTPUT_DIR.")
@click.argument("output_dir", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--source",
    help="GroupLens's ml-100k.zip, or the folder it was unpacked to. Without it the data are "
    "fetched with pip, from the package recbole.",
)
def main(output_dir: Path, source: str | None) -> None:
    """The command line."""
    try:
        written = prepare(output_dir, source)
    except UserError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(EXIT_USER_ERROR)
    for name, count in written.items():
        click.echo(f"{output_dir / name}: {count} records")


if __name__ == "__main__":
    main()
