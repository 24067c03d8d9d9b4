"""Columns of types that mean the same: written by other libraries, and by file in turn."""

import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shoal.data import ListColumn, open_reader, read_columns
from shoal.data.frames import write_data
from shoal.data.plain_types import of_type, plain, same_meaning
from shoal.errors import UserError

FLAG = "--training-data"
FRAMES = {
    "strings": polars.Series(["x", "y"]),
    "lists": polars.Series([["x"], ["y", "z"]]),
    "lists of lists": polars.Series([[["x"], []], [["y"]]]),
    "categorical": polars.Series(["x", "y"], dtype=polars.Categorical),
    "enum": polars.Series(["y", "x"], dtype=polars.Enum(["x", "y"])),
    "lists of enums": polars.Series([["y"], ["x"]], dtype=polars.List(polars.Enum(["x", "y"]))),
    "binary": polars.Series([b"x\0", b"\0"]),
    "arrays": polars.Series([["a", "b"], ["c", "d"]], dtype=polars.Array(polars.String, 2)),
}


def told(column):
    """A column of `read_columns` as lists."""
    if not isinstance(column, ListColumn):
        return [each.decode() if isinstance(each, bytes) else each for each in column.tolist()]
    values = iter(told(column.values))
    return [[next(values) for _ in range(length)] for length in column.row_lengths]


def decoded(value):
    if isinstance(value, list):
        return [decoded(each) for each in value]
    return value.decode() if isinstance(value, bytes) else value


@pytest.mark.parametrize("way", ["frame", "parquet", "arrow"])
@pytest.mark.parametrize("kind", FRAMES)
def test_what_polars_has_and_writes_is_read(tmp_path, kind, way):
    frame = polars.DataFrame({"a": FRAMES[kind]})
    path = tmp_path / f"a.{'arrow' if way == 'arrow' else 'parquet'}"
    if way == "frame":
        write_data("training_data", frame, path, lambda _: None)
    else:
        (frame.write_parquet if way == "parquet" else frame.write_ipc)(path)
    reader = open_reader(str(path), FLAG)
    (columns,) = read_columns(reader, str(path), 0, 2)
    assert decoded(told(columns["a"])) == decoded(frame["a"].to_list())


TEXT = [
    pa.string(),
    pa.large_string(),
    pa.string_view(),
    pa.dictionary(pa.int8(), pa.string()),
]
COLUMNS = [pa.array([["a"], None, [], ["b", "c"]], pa.list_(kind)) for kind in TEXT[:3]] + [
    pa.array([["a", "b"], None, ["c", "d"]], pa.list_(pa.string_view(), 2)),
    pa.array([["a"], [], None], pa.list_view(pa.string_view())),
    pa.RunEndEncodedArray.from_arrays([2, 3], pa.array(["x", "y"])),
]


@pytest.mark.parametrize("column", COLUMNS, ids=lambda each: str(each.type))
def test_values_and_missing_ones_stay(column):
    for part in (column, column.slice(1), column.slice(1, 1)):
        made = plain(part)
        made.validate(full=True)
        assert made.to_pylist() == part.to_pylist()
        again = of_type(made, same_meaning(made.type))
        again.validate(full=True)
        assert again.to_pylist() == part.to_pylist()


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_files_whose_types_mean_the_same_are_read_together(tmp_path, ending):
    kinds = TEXT if ending == "arrow" else [TEXT[0], TEXT[1], TEXT[3]]
    for number, kind in enumerate(kinds):
        unused = pa.array([number] if number else ["text"])
        table = pa.table({"a": pa.array([str(number)]).cast(kind), "b": [number], "c": unused})
        path = tmp_path / f"{number}.{ending}"
        if ending == "parquet":
            pq.write_table(table, path)
        else:
            with pa.ipc.new_file(path, table.schema) as writer:
                writer.write_table(table)
    with pytest.raises(UserError, match=r"the files differ in column 'c': string in .*, int64 in"):
        open_reader(str(tmp_path), FLAG).sources()
    reader = open_reader(str(tmp_path), FLAG)
    reader.narrow({"a", "b"})
    read = [batch for name in reader.names() for batch in reader.read(name, 0, 1)]
    assert {batch.schema.field("a").type for batch in read} == {pa.string()}
    assert [batch.to_pylist() for batch in read] == [
        [{"a": str(number), "b": number}] for number in range(len(kinds))
    ]


UNLIKE = {
    "csv": ("a,b\n1,x\n", "b,c,a\n2,3,0.5\n", "a\n7\n"),
    "jsonl": ('{"a": 1, "b": "x"}', '{"b": 2, "c": [3], "a": 0.5}', '{"a": 7, "c": "x"}'),
}


@pytest.mark.parametrize("ending", UNLIKE)
def test_text_files_that_differ_in_columns_that_nobody_reads_are_read(tmp_path, ending):
    """Told where the column is read; a file may lack one, have one more, or another type."""
    for number, text in enumerate(UNLIKE[ending]):
        (tmp_path / f"{number}.{ending}").write_text(text)
    reader = open_reader(str(tmp_path), FLAG)
    assert [source.records for source in reader.sources()] == [1, 1, 1]
    faults = reader.faults()
    assert sorted(faults) == ["b", "c"]
    for name in faults:
        wrong = open_reader(str(tmp_path), FLAG, columns=["a", name])
        with pytest.raises(UserError, match=f"^--training-data: the files differ.* {name!r}"):
            list(wrong.read(wrong.names()[0], 0, 1))
    reader.narrow({"a"})
    read = [batch for name in reader.names() for batch in reader.read(name, 0, 1)]
    assert [batch.to_pylist() for batch in read] == [[{"a": 1.0}], [{"a": 0.5}], [{"a": 7.0}]]


def test_a_text_file_beyond_those_looked_at_may_differ_in_columns_that_nobody_reads(tmp_path):
    for number in range(40):
        (tmp_path / f"{number:02}.csv").write_text(f"a,b\n{number},{'x' if number == 39 else 1}\n")
    reader = open_reader(str(tmp_path), FLAG)
    with pytest.raises(UserError, match=r"differ in column 'b': int64 in .*, string in .*39\.csv"):
        reader.sources()
    reader = open_reader(str(tmp_path), FLAG)
    reader.narrow({"a"})
    assert len(reader.sources()) == 40
    assert next(reader.read(reader.names()[39], 0, 1)).to_pylist() == [{"a": 39}]
