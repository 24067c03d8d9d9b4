"""Data of every type that docs/guide/data.md names, in each form that data may have."""

import pandas
import polars
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

NUMBERS = {
    "bool": (pa.bool_(), False, True, "true"),
    **{f"int{bits}": (getattr(pa, f"int{bits}")(), 1, -7, "-7") for bits in (8, 16, 32, 64)},
    **{
        f"uint{bits}": (getattr(pa, f"uint{bits}")(), 1, 2**bits - 1, str(2**bits - 1))
        for bits in (8, 16, 32, 64)
    },
    **{f"float{bits}": (getattr(pa, f"float{bits}")(), 0.5, -7.0, "-7") for bits in (16, 32, 64)},
}
TEXTS = {
    "string": (pa.string(), "a", "b", "b"),
    "large": (pa.large_string(), "a", "b", "b"),
    "categories": (pa.dictionary(pa.int32(), pa.string()), "a", "b", "b"),
    "binary": (pa.binary(), b"a", b"b", "b"),
}
DECIMALS = {
    "cents": (pa.decimal128(10, 2), 1, -7, "-7"),
    "whole": (pa.decimal128(10, 0), 1, -7, "-7"),
}
TIMES = {
    "timestamp": (pa.timestamp("us"), 0, 1_000_000, "1970-01-01 00:00:01"),
    "zoned": (pa.timestamp("us", "UTC"), 0, 1_000_000, "1970-01-01 00:00:01Z"),
    "date": (pa.date32(), 0, 7, "1970-01-08"),
    "time": (pa.time64("us"), 0, 7_000_000, "00:00:07"),
    "duration": (pa.duration("ms"), 1, -7, "-7"),
}
SCALARS = NUMBERS | TEXTS | DECIMALS | TIMES
"""By name: type, two values, and the text that stands for the second one."""

LISTED = ["bool", "int64", "uint64", "float32", "float64", "string", "binary", "cents", "timestamp"]
"""Those of which lists are made."""

SHAPES = {
    "": (lambda kind: kind, lambda first, second: [first, second]),
    "list_": (pa.list_, lambda first, second: [[first], [second, first]]),
    "lists_": (
        lambda kind: pa.list_(pa.list_(kind)),
        lambda first, second: [[[first]], [[second, first], []]],
    ),
    "fixed_": (
        lambda kind: pa.list_(kind, 2),
        lambda first, second: [[first, first], None if second is None else [second, second]],
    ),
}
"""By what is in front of a name: the type, and the values of a column."""

ROWS = {
    "integers, floats, bools": [*NUMBERS],
    "strings, binary": [*TEXTS],
    "decimals (Parquet)": [*DECIMALS],
    "timestamps, dates, times, durations (Parquet)": [*TIMES],
    "lists of these (Parquet, Arrow)": [f"list_{name}" for name in LISTED],
    "lists of lists": [f"lists_{name}" for name in LISTED],
    "lists of fixed size (Parquet)": [f"fixed_{name}" for name in LISTED],
}
"""The columns, by the row of the page that is about them."""

ALL = [name for names in ROWS.values() for name in names]

GAP = "_gap"
"""Behind a column's name: one whose second value is missing, and is filled by it."""

GUESSED = ["bool", "int64", "float64", "string"]
"""Types that are found in text."""


def parts(name):
    """What is in front of a column's name, and the name of its scalars."""
    shape, line, kind = name.removesuffix(GAP).rpartition("_")
    return shape + line, kind


def table(names):
    """Two records of columns, each with one behind it in which the second value is missing."""
    columns = {}
    for name in names:
        shape, kind = parts(name)
        scalar, first, second, _ = SCALARS[kind]
        made, values = SHAPES[shape]
        columns[name] = pa.array(values(first, second), made(scalar))
        columns[name + GAP] = pa.array(values(first, None), made(scalar))
    return pa.table(columns)


def filled(names):
    """The values of --fill-missing and --missing-mask for all columns that have a gap."""
    fill = [f"{name}{GAP}={SCALARS[parts(name)[1]][3]}" for name in names]
    return {
        "fill_missing": ",".join(fill),
        "missing_mask": ",".join(name + GAP for name in names),
    }


# ------------------------------------------------------------ forms of data


def _parquet(folder):
    pq.write_table(table(ALL), folder / "data.parquet")
    return folder / "data.parquet", ALL


def _arrow(folder):
    whole = table(ALL)
    with pa.ipc.new_file(folder / "data.arrow", whole.schema) as file:
        file.write_table(whole)
    return folder / "data.arrow", ALL


def _csv(folder):
    # Text has no missing value: it is empty.
    names = [name for name in GUESSED if name != "string"]
    pyarrow.csv.write_csv(table(names), folder / "data.csv")
    return folder / "data.csv", names


def _json_lines(folder):
    names = [shape + name for shape in ("", "list_", "lists_") for name in GUESSED]
    polars.from_arrow(table(names)).write_ndjson(folder / "data.jsonl")
    return folder / "data.jsonl", names


def _pandas(_):
    names = [name for name in ALL if parts(name)[0] != "fixed_"]
    whole = table(names)
    # With types of Arrow where a value is missing: else pandas makes floats of integers.
    missing = whole.to_pandas(types_mapper=pandas.ArrowDtype)
    return missing.assign(**whole.select(names).to_pandas()), names


FORMS = {
    "parquet": _parquet,
    "arrow": _arrow,
    "csv": _csv,
    "json lines": _json_lines,
    "pandas": _pandas,
    "pandas with types of Arrow": lambda _: (
        table(ALL).to_pandas(types_mapper=pandas.ArrowDtype),
        ALL,
    ),
    "polars": lambda _: (polars.from_arrow(table(ALL)), ALL),
    "table": lambda _: (table(ALL), ALL),
}
"""By name: given a folder, a path or an object, and the columns that this form can have."""
