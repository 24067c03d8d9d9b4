"""One schema for several files whose types were guessed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

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


def common_type(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The guessed type that holds what both do; None if there is none.

    int64 and float64 give float64, int64 and uint64 give uint64: reading tells a negative one.
    """
    kinds = {one, other}
    if len(kinds) == 1 or pa.null() in kinds:
        return one if pa.types.is_null(other) else other
    if kinds <= {pa.int64(), pa.uint64(), pa.float64()}:
        return pa.float64() if pa.float64() in kinds else pa.uint64()
    if all(map(pa.types.is_list, kinds)):
        inner = common_type(one.value_type, other.value_type)
        return None if inner is None else pa.list_(inner)
    return None


def merged_schema(
    files: Sequence[tuple[str, Kinds]], flag: str, *, same_columns: bool, hint: str = ""
) -> pa.Schema:
    """The types that fit all files, as of `common_type`.

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
            elif kind is not None and (both := common_type(known, kind)) is not None:
                merged[name] = both
            elif kind is not None:
                raise UserError(
                    f"{flag}: the files differ in column {name!r}: {known} in {origin[name]}, "
                    f"{kind} in {path}{hint}"
                )
    return pa.schema([(n, pa.string() if kind is None else kind) for n, kind in merged.items()])


def beyond_64_bits(name: str, values: Collection[int], reader: str) -> str:
    """What to do about a column of integers that no type holds. reader: that of its format."""
    largest = max(values, key=abs)
    return (
        f"column {name!r} is read as floats, as it holds {largest}, which is no integer of 64 "
        "bits: different ones become one. If they are ids, read them as text: "
        f"{reader}(column_types={{{name!r}: pyarrow.string()}})"
    )
