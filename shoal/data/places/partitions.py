"""Columns whose values stand in the paths of files: .../day=2026-01-01/country=de/part-0.parquet.

As Hive and Spark write them. Owns the names and values of a path; who adds them to records is
shaped.py's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from shoal.errors import UserError

MISSING = "__HIVE_DEFAULT_PARTITION__"
"""What stands in a path for a missing value."""

_PART = re.compile(r"([^/=]+)=([^/]*)/")
_INTEGER = re.compile(r"0|-?[1-9]\d{0,17}")


@dataclass(frozen=True)
class Partitions:
    """The columns that the paths of files tell: int64 where all values are integers, else text.

    fields: by name.
    """

    fields: Mapping[str, pa.Field]

    def values(self, path: str) -> dict[str, Any]:
        """The value of each column in the file; None for a missing one.

        Raises UserError for a file that has come later, if its folders are others.
        """
        values = partition_of(path)
        if lacking := self.fields.keys() - values.keys():
            raise UserError(
                f"{path}: no folder of it gives column {min(lacking)}, as of the others"
            )
        return {
            name: None if value == MISSING else _typed(path, value, self.fields[name])
            for name, value in values.items()
            if name in self.fields
        }


def _typed(path: str, value: str, field: pa.Field) -> Any:
    if not pa.types.is_integer(field.type):
        return value
    if not _INTEGER.fullmatch(value):
        raise UserError(f"{path}: column {field.name} of the others' folders is an integer")
    return int(value)


def partition_of(path: str) -> dict[str, str]:
    """The names and values in a path, in its order: those of the folders that end with the file's.

    Folders above one of another form do not count: they are not of this table.
    """
    folder = path[: path.rfind("/") + 1]
    found: list[tuple[str, str]] = []
    for part in reversed(folder.split("/")[:-1]):
        match = _PART.fullmatch(f"{part}/")
        if match is None:
            break
        found.append((unquote(match[1]), unquote(match[2])))
    return dict(reversed(found))


def partitions_of(paths: Iterable[str], flag: str) -> Partitions | None:
    """The columns of these files' paths; None if there are none.

    Raises UserError naming two files whose paths have other columns.
    """
    first: tuple[str, list[str]] | None = None
    integer: dict[str, bool] = {}
    for path in paths:
        values = partition_of(path)
        names = list(values)
        if first is None:
            first = path, names
            integer = dict.fromkeys(names, True)
        elif names != first[1]:
            raise UserError(
                f"{flag}: the folders of the files differ: {first[0]} is in "
                f"{', '.join(first[1]) or 'no partition'}, {path} in "
                f"{', '.join(names) or 'no partition'}"
            )
        for name, value in values.items():
            if value != MISSING and integer[name] and not _INTEGER.fullmatch(value):
                integer[name] = False
    if not integer:
        return None
    return Partitions(
        {
            name: pa.field(name, pa.int64() if whole else pa.string())
            for name, whole in integer.items()
        }
    )
