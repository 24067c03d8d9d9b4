"""One schema for several files: types that were guessed, or that the files tell."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import pyarrow as pa

from shoal.data.plain_types import same_meaning
from shoal.errors import UserError

GUESSED_FILES = 32
"""Files from which types are guessed at most."""

Kinds = Mapping[str, pa.DataType | None]
"""Column -> type, in the file's order; None where no value tells it."""


def spread(paths: Sequence[str]) -> list[str]:
    """A few of many files, from which types are guessed: the first, and others evenly apart."""
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
) -> tuple[pa.Schema, dict[str, UserError]]:
    """The types that fit all files, as of `common_type`; and the columns that none fits.

    files: name and columns of each. same_columns: each must have every column.
    hint: what to do about a difference, for the error.

    A column without a value in any file, or in its lists, may hold anything: a string. The error
    of a column that differs names two files; it matters to who reads the column.
    """
    merged: dict[str, pa.DataType | None] = {}
    origin: dict[str, str] = {}
    faults: dict[str, UserError] = {}
    for path, kinds in files:
        if same_columns and merged:
            for name in dict.fromkeys((*merged, *kinds)):
                if name in merged and name in kinds:
                    continue
                first = files[0][0]
                has, lacks = (first, path) if name in merged else (path, first)
                fault = UserError(
                    f"{flag}: the files differ: column {name!r} is in {has}, not in {lacks}: "
                    "give all files the same columns, or leave one of these out"
                )
                faults.setdefault(name, fault)
        for name, kind in kinds.items():
            known = merged.get(name)
            if known is None:
                merged[name], origin[name] = kind, path
            elif kind is not None and (both := common_type(known, kind)) is not None:
                merged[name] = both
            elif kind is not None:
                fault = UserError(
                    f"{flag}: the files differ in column {name!r}: {known} in {origin[name]}, "
                    f"{kind} in {path}{hint}"
                )
                faults.setdefault(name, fault)
    return pa.schema([(name, _known(kind)) for name, kind in merged.items()]), faults


def _known(kind: pa.DataType | None) -> pa.DataType:
    """A type without null in it, of which Arrow makes JSON lists that are broken."""
    if kind is None or pa.types.is_null(kind):
        return pa.string()
    return pa.list_(_known(kind.value_type)) if pa.types.is_list(kind) else kind


def beyond_64_bits(name: str, values: Collection[int], as_text: str) -> str:
    """Advice about a column of integers that no type holds. as_text: has it read as text."""
    largest = max(values, key=abs)
    return (
        f"column {name!r} is read as floats, as it holds {largest}, which is no integer of 64 "
        f"bits: different ones become one. If they are ids, read them as text: {as_text}"
    )


def check_same(
    first: pa.Schema,
    other: pa.Schema,
    first_path: str,
    other_path: str,
    flag: str,
    only: Collection[str] | None = None,
) -> None:
    """Raises UserError naming both files and the column in which they differ.

    The order of the columns may differ: they are read by name. So may types of one meaning.
    only: these columns; all of them where None.
    """
    if other.equals(first):
        return
    for name in dict.fromkeys((*first.names, *other.names)):
        kinds = [
            schema.field(name).type if name in schema.names else None for schema in (first, other)
        ]
        same = None not in kinds and same_meaning(kinds[0]) == same_meaning(kinds[1])
        if not same and (only is None or name in only):
            told = ["missing" if kind is None else str(kind) for kind in kinds]
            raise UserError(
                f"{flag}: the files differ in column {name!r}: {told[0]} in {first_path}, "
                f"{told[1]} in {other_path}"
            )
