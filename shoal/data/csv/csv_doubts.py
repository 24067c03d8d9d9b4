"""Find likely mistakes in a CSV file that can still be read, and describe them in words.

Looks at the names of the columns and the first records, which csv_reader.py reads.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from shoal.data.schemas import beyond_64_bits

DOUBTED_SHARE = 0.05
"""Values that are no numbers, to one that is, up to which a column of text is in doubt."""

NUMBER = r"^[ \t]*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?[ \t]*$"

INTEGER = r"^[-+]?\d+$"

HEX = r"^0[xX]"

SEPARATORS = {"\t": "tab", ";": "';'", "|": "'|'", "::": "'::'", ",": "','"}
"""What often separates fields, as --csv-separator takes it."""

OWN_NAMES = 0.5
"""Columns of text with a value that is their own name, to one of text, from which on the names
are taken for a record."""


def other_separator(names: Sequence[str]) -> str:
    """Advice about a single column whose name holds another separator; "" if none does."""
    if len(names) != 1:
        return ""
    for separator, given in SEPARATORS.items():
        if separator in names[0]:
            return (
                f"its first line is taken for one column, {names[0]!r}: if {given} separates the "
                f"fields, give --csv-separator {given}"
            )
    return ""


def record_for_header(names: Sequence[str], sample: pa.Table | None) -> str:
    """Advice about a header that looks like a record; "" if it does not.

    sample: the first records, typed.
    """
    # Not by Arrow, which would import pandas to make an array of them.
    counted = [name for name in names if re.fullmatch(NUMBER, name, re.ASCII)]
    # As pandas writes a frame without names.
    if counted == [str(i) for i in range(len(counted))]:
        counted = []
    texts, own = 0, 0
    found = ""
    if sample is not None:
        kinds = dict(zip(sample.column_names, sample.schema.types, strict=True))
        found = next((name for name in counted if _is_number(kinds[name])), "")
        for name in () if found else names:
            if kinds[name] == pa.string():
                texts += 1
                own += name in sample[name].to_pylist()
        if own and own >= OWN_NAMES * texts:
            found = next(n for n in names if kinds[n] == pa.string())
    elif counted:
        found = counted[0]
    return found and (
        f"its first line is taken for the names of the columns, and looks like a record ({found!r} "
        "is the name of a column that holds such values): if it is one, give --csv-columns with "
        "the names"
    )


def columns_in_doubt(
    sample: pa.Table, settled: Collection[str], *, named: bool
) -> Iterator[tuple[str, str]]:
    """(column, what is wrong with it) of those that few values make text.

    settled: columns of which nothing is said. named: whether the user gave the columns' names.
    """
    for name, column in zip(sample.column_names, sample.columns, strict=True):
        if column.type != pa.string() or name in settled:
            continue
        if found := _few_that_are_text(column):
            row, text = found
            hint = ""
            if named and row == 0:
                hint = "; if that is a header line, leave out --csv-columns"
            yield name, f"column {name!r} is read as text: {text}{hint}"


def settled_types(texts: pa.Table) -> tuple[dict[str, pa.DataType], dict[str, str]]:
    """Types of columns that Arrow takes for numbers too readily; and what is lost all the same.

    texts: the first values of columns of numbers, as they are spelled. uint64 where integers do not
    fit in an int64, string where one is spelled like 0x1F, which Arrow takes for 31.
    """
    kinds: dict[str, pa.DataType] = {}
    doubts: dict[str, str] = {}
    for name, column in zip(texts.column_names, texts.columns, strict=True):
        words = pc.unique(pc.utf8_trim_whitespace(column)).drop_null()
        if pc.any(pc.match_substring_regex(words, HEX)).as_py():
            kinds[name] = pa.string()
        if not len(words) or not pc.all(pc.match_substring_regex(words, INTEGER)).as_py():
            continue
        spelled = words.to_pylist()
        values = [int(each) for each in spelled]
        if min(values) >= 0 and 1 << 63 <= max(values) < 1 << 64:
            kinds[name] = pa.uint64()
        elif not -(1 << 63) <= min(values) <= max(values) < 1 << 63:
            as_text = f"CsvReader(column_types={{{name!r}: pyarrow.string()}})"
            doubts[name] = beyond_64_bits(name, values, as_text)
        elif found := _padded(spelled):
            doubts[name] = (
                f"column {name!r} is read as numbers, of which {found[0]!r} and {found[1]!r} have "
                "zeros in front or lack them: texts that differ in these alone become one. To keep "
                f"them apart, read it as text: CsvReader(column_types={{{name!r}: "
                "pyarrow.string()})"
            )
    return kinds, doubts


def _padded(spelled: Sequence[str]) -> tuple[str, str] | None:
    """A word with a zero in front, and another one of fewer characters, or of more such zeros.

    None if all words are of one width, or longer than it, as numbers of a zip code are.
    """
    padded = [word for word in spelled if len(word) > 1 and word[0] == "0"]
    if not padded:
        return None
    longest = max(padded, key=len)
    other = min((word for word in spelled if word != longest), key=len, default=longest)
    return (longest, other) if len(other) < len(longest) else None


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _few_that_are_text(values: pa.ChunkedArray) -> tuple[int, str] | None:
    """The first value that is no number, and where, in words; None if there are many of them."""
    number = pc.match_substring_regex(values, NUMBER)
    numbers = pc.sum(number).as_py() or 0
    if not numbers:
        return None
    missing = pc.is_in(values, pa.array(pacsv.ConvertOptions().null_values))
    others = len(values) - (pc.sum(pc.or_(number, missing)).as_py() or 0)
    row = pc.index(pc.or_(number, missing), False).as_py()
    # A header among few records is one value of few.
    if not 0 < others <= max(numbers * DOUBTED_SHARE, 1 if row == 0 and numbers > 1 else 0):
        return None
    return row, (
        f"row {row + 1} holds {values[row].as_py()!r}, and {numbers:,} of the first "
        f"{len(values):,} values are numbers"
    )
