"""One schema for several files whose types were guessed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from shoal.errors import UserError

GUESSED_FILES = 32
"""Files from which types are guessed at most."""

Kinds = Mapping[str, pa.DataType | None]
"""Column -> type, in the file's order; None where no value tells it."""


def spread(paths: Sequence[str]) -> list[str]:
    """Those of many files from which types are guessed: the first, and others evenly apart."""
    if len(paths) <= GUESSED_FILES:
        return list(paths)
    return [paths[i * len(paths) // GUESSED_FILES] for i in range(GUESSED_FILES)]


def merged_schema(
    files: Sequence[tuple[str, Kinds]], flag: str, *, same_columns: bool, hint: str = ""
) -> pa.Schema:
    """The types that fit all files: int64 and float64 give float64.

    files: name and columns of each. same_columns: each must have every column.
    hint: what to do about a difference, for the error.

    A column without a value in any file may hold anything: a string. Raises UserError
    naming two files and the column in which they differ.
    """
    merged: dict[str, pa.DataType | None] = {}
    origin: dict[str, str] = {}
    for path, kinds in files:
        if same_columns and merged:
            for name in dict.fromkeys((*merged, *kinds)):
                if name not in merged or name not in kinds:
                    first = files[0][0]
                    has, lacks = (first, path) if name in merged else (path, first)
                    raise UserError(
                        f"{flag}: the files differ: column {name!r} is in {has}, not in {lacks}: "
                        "give all files the same columns, or leave one of these out"
                    )
        for name, kind in kinds.items():
            known = merged.get(name)
            if known is None:
                merged[name], origin[name] = kind, path
            elif {known, kind} == {pa.int64(), pa.float64()}:
                merged[name] = pa.float64()
            elif kind not in (None, known):
                raise UserError(
                    f"{flag}: the files differ in column {name!r}: {known} in {origin[name]}, "
                    f"{kind} in {path}{hint}"
                )
    return pa.schema([(n, pa.string() if kind is None else kind) for n, kind in merged.items()])
