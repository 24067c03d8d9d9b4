"""The job of `shoal chaos --count`: its data, and its configuration.

Owns the files of the data, and which flags go with it. The model is shoal/tools/counting's.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

import shoal.tools.counting
from shoal.base.disk.wholefile import replacing
from shoal.config.table_options import table_options
from shoal.errors import UserError

RECORDS = 7680
USERS = 400
GROUPS = 12
"""Dense weights of the model: shoal/tools/counting/counts.py says which record counts in which."""

INPUT = "-input"
"""Behind the job's folder: the folder of its data, which `--resume` needs as well."""

FIXED = (
    *("model_def", "model_zoo", "training_data", "validation_data", "restore_from", "export"),
    *("accumulate", "sync", "lr_staleness_modulation"),
)
"""Flags that cannot be given with --count: its own, and those by which a row is no count."""

COMPARED = ("undisturbed", "tolerance")
"""Flags of `shoal chaos` that are about metrics."""

RECORDS_TABLE = "records"
"""In which each record has a row of its own."""

_FILES = ("part-0.parquet", "part-1.parquet")

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Source:
    """A file of the data. name: as the audit names it. records, users: int64 [records]."""

    name: str
    records: Int64
    users: Int64


def write_input(
    folder: Path, *, records: int = RECORDS, users: int = USERS, seed: int = 0, first: int = 0
) -> None:
    """Write the data: record numbers from `first`, none twice, each with one of `users` user ids.

    Some users are much more frequent than others. Raises UserError if the folder holds
    other files, OSError if it cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if foreign := sorted({entry.name for entry in folder.iterdir()} - set(_FILES)):
        raise UserError(
            f"--count: {folder}, where its data goes, holds {foreign[0]}, which is not its data; "
            "choose another --job-dir"
        )
    draw = random.Random(f"count {seed}")
    ids = [draw.randrange(-(1 << 63), 1 << 63) for _ in range(users)]
    drawn = np.array([ids[int(users * draw.random() ** 3)] for _ in range(records)], np.int64)
    numbers = np.arange(first, first + records, dtype=np.int64)
    # Of unequal length, so that no task of one ends where one of the other does.
    parts = np.split(np.stack([numbers, drawn]), [records // 3], axis=1)
    for name, part in zip(_FILES, parts, strict=True):
        with replacing(folder / name) as path:
            pq.write_table(pa.table({"record": part[0], "user": part[1]}), path)


def read_input(folder: Path) -> list[Source]:
    """The data that `write_input` wrote there, or into its folders, in the order of names."""
    sources = []
    for path in sorted(folder.rglob("*.parquet")):
        table = pq.read_table(path)
        columns = [table[name].to_numpy() for name in ("record", "user")]
        sources.append(Source(str(path), *columns))
    return sources


def count_values(job_dir: Path) -> dict[str, Any]:
    """Fields of the JobConfig of a job that counts; others are as the user gives them.

    Two epochs of 240 steps: some seconds.
    """
    return {
        "model_zoo": shoal.tools.counting.__path__[0],
        "model_def": "counts.custom_model",
        "training_data": str(job_dir) + INPUT,
        "output": str(job_dir / "export"),
        "export": "none",
        "epochs": 2,
        "batch_size": 32,
    }


def admit_after_of(text: str) -> int:
    """That of the table of records. text: of --table.

    Raises UserError for another option of a table: a user may come several times in a push, so
    pushes of a user are no count of records.
    """
    options = table_options(text)
    admit_after: int = options.get(RECORDS_TABLE, {}).pop("admit_after", 1)
    for table, others in options.items():
        for option in others:
            raise UserError(
                f"--table {table}.{option} cannot be given with --count, whose rows could not be "
                f"compared; {RECORDS_TABLE}.admit_after can"
            )
    return admit_after
