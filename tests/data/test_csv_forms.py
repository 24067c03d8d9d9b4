"""Separated text as people have it: other separators, no header, packed; and suspicions told."""

import gzip
import os
import re
import tempfile

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.client.found.processes import limit_files
from shoal.config.groups.data_format import DataFormat, FormatOptions
from shoal.data import CsvReader, open_reader
from shoal.data.csv import csv_index
from shoal.data.places.index_store import unpacked
from shoal.data.samples.analysis import analyze
from shoal.errors import UnreadableError, UserError
from tests.data.told import Told
from tests.examples import examples

FLAG = "--training-data"
RATINGS = [(196, 242, 3, 881250949), (186, 302, 3, 891717742), (22, 377, 1, 878887116)]
NAMES = ("user", "item", "rating", "time")


def opened(path, **fields):
    return open_reader(str(path), FLAG, data_format=FormatOptions(**fields).format_of_data)


def rows(reader, start=0, end=None):
    (source,) = reader.sources()
    batches = reader.read(source.name, start, source.records if end is None else end)
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


def write(path, records, separator, header=()):
    lines = [separator.join(map(str, each)) for each in ([header] if header else []) + records]
    path.write_text("\n".join(lines) + "\n")
    return path


SEPARATORS = {"tab": "\t", r"\t": "\t", ";": ";", "|": "|", "::": "::", " ": " ", "||": "||"}


@pytest.mark.parametrize(("given", "separator"), SEPARATORS.items(), ids=map(repr, SEPARATORS))
@pytest.mark.parametrize("headed", [True, False], ids=["header", "no header"])
def test_any_separator_with_and_without_a_header(tmp_path, given, separator, headed):
    path = write(tmp_path / "u.data", RATINGS, separator, NAMES if headed else ())
    names = {} if headed else {"csv_columns": "user, item,rating,time"}
    reader = opened(path, data_format="csv", csv_separator=given, **names)
    assert reader.schema() == pa.schema([(name, pa.int64()) for name in NAMES])
    assert rows(reader) == RATINGS
    assert rows(reader, 1, 2) == RATINGS[1:2]
    assert reader.doubts() == []


def test_comments_are_no_rows_in_errors(tmp_path):
    (tmp_path / "a.csv").write_text('a,b\n# one\n1,2\n# two\n3,4\n5",6\n')
    with pytest.raises(UserError, match="row 3: there is a"):
        rows(opened(tmp_path / "a.csv", csv_comment="#"))


@pytest.mark.parametrize("separator", ["\t", "::"])
def test_ranges_of_a_long_file_without_a_header(tmp_path, monkeypatch, separator):
    monkeypatch.setattr(csv_index, "BLOCK_BYTES", 1000)
    records = [(i, f"title: {i}", i / 4) for i in range(5000)]
    path = write(tmp_path / "long.csv", records, separator)
    reader = opened(path, csv_separator=separator, csv_columns="a,b,c")
    for start, end in ((0, 5000), (0, 1), (1023, 1025), (1024, 2048), (4999, 5000), (17, 4100)):
        assert rows(reader, start, end) == records[start:end]
    assert reader.place(str(path), 0) == "record 0 (row 1, at byte 0)"


def test_tabs_are_the_default_of_tsv(tmp_path):
    path = write(tmp_path / "a.inter.tsv", RATINGS, "\t", NAMES)
    assert rows(opened(path)) == RATINGS
    commas = write(tmp_path / "commas.tsv", RATINGS, ",", NAMES)
    assert rows(opened(commas, csv_separator=",")) == RATINGS


@pytest.mark.parametrize("ending", [".csv.zst", ".tsv.zst", ".csv.gz"])
def test_packed_files(tmp_path, ending):
    path = tmp_path / f"packed{ending}"
    separator = "\t" if "tsv" in ending else ","
    text = write(tmp_path / "plain", RATINGS * 2000, separator, NAMES).read_bytes()
    if ending.endswith(".gz"):
        path.write_bytes(gzip.compress(text))
    else:
        with pa.CompressedOutputStream(str(path), "zstd") as file:
            file.write(text)
    assert rows(opened(path)) == RATINGS * 2000
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UserError, match=f"packed{ending}: .*damaged"):
        rows(opened(path))


@pytest.mark.parametrize("trouble", ["full", "missing"])
@pytest.mark.parametrize("ending", [".csv.zst", ".csv.gz"])
def test_errors_in_unpacking_name_the_temporary_folder(tmp_path, monkeypatch, ending, trouble):
    """And say what to do, in place of blaming the file."""
    path = tmp_path / f"packed{ending}"
    text = write(tmp_path / "plain", RATINGS * 2000, ",", NAMES).read_bytes()
    if ending.endswith(".gz"):
        path.write_bytes(gzip.compress(text))
    else:
        with pa.CompressedOutputStream(str(path), "zstd") as file:
            file.write(text)
    folder = tmp_path / "temporary"
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    if trouble == "full":
        folder.mkdir()
        limit_files(os.getpid(), 4096)
    told = rf"packed{ending}: cannot be unpacked to {folder}: .*set TMPDIR"
    try:
        with pytest.raises(UnreadableError, match=told):
            rows(opened(path))
    finally:
        limit_files(os.getpid(), None)
    assert not list(folder.glob("*"))
    folder.mkdir(exist_ok=True)
    assert rows(opened(path)) == RATINGS * 2000


def test_quotes_may_be_characters_like_others(tmp_path):
    path = tmp_path / "titles.tsv"
    path.write_text('id\ttitle\n1\t"Heat" (1995)\n2\t5" disk\n3\t"open\n')
    assert rows(opened(path, csv_quotes="none")) == [
        (1, '"Heat" (1995)'),
        (2, '5" disk'),
        (3, '"open'),
    ]
    with pytest.raises(UserError, match=r"row 2: there is a \" inside .* --csv-quotes none"):
        rows(opened(path))
    quoted = write(tmp_path / "quoted.csv", [(1, '"a;b"'), (2, '"c\nd"')], ";", ("id", "text"))
    assert rows(opened(quoted, csv_separator=";")) == [(1, "a;b"), (2, "c\nd")]


def test_a_byte_order_mark_is_not_part_of_the_first_value(tmp_path):
    path = tmp_path / "mark.csv"
    path.write_bytes(b"\xef\xbb\xbf1,2\n3,4\n")
    assert rows(opened(path, csv_columns="a,b")) == [(1, 2), (3, 4)]


def test_an_index_is_of_one_way_to_read_a_file(tmp_path):
    """Kept for other processes, and not taken for that of another separator or header."""
    path = write(tmp_path / "a.csv", RATINGS, ",", NAMES)

    def count(**fields):
        form = FormatOptions(**fields).format_of_data
        reader = open_reader(str(path), FLAG, data_format=form)
        return len(rows(told.to(reader) if told.known else reader))

    told = Told()
    told.describe(open_reader(str(path), FLAG))
    assert count() == 3
    known = told.known[str(path)]
    assert unpacked("csv of another kind", known.index) is None


SUSPECTED = {
    "no header": (",", {}, "first line is taken for the names .* \\('196' .* give --csv-columns"),
    "no header, and tabs": ("\t", {}, r"one column, '196\\t242.* give --csv-separator tab$"),
    "colons": ("::", {}, "if '::' separates the fields, give --csv-separator '::'"),
    "commas in a .tsv": (",", {"csv_separator": "tab"}, "if ',' separates the fields"),
}


@pytest.mark.parametrize(("separator", "fields", "words"), SUSPECTED.values(), ids=SUSPECTED)
def test_a_first_line_that_looks_like_a_record_is_told(tmp_path, separator, fields, words):
    reader = opened(write(tmp_path / "u.csv", RATINGS, separator), **fields)
    (doubt,) = reader.doubts()
    assert doubt.startswith(f"{tmp_path}/u.csv: its first line is taken for ")
    assert re.search(words, doubt), doubt


def test_text_without_a_header_is_suspected_by_its_values(tmp_path):
    path = tmp_path / "mushrooms.csv"
    path.write_text("p,x,s,n\ne,x,s,y\ne,b,s,w\np,x,y,w\n")
    assert "its first line is taken for the names" in opened(path).doubts()[0]


NAMED = {
    "names": "user,item\n1,2\n3,4\n",
    "a frame of pandas without names": ",0,1,2\n0,5,6,7\n1,8,9,10\n",
    "numbers over text": "id,1\n1,a\n2,b\n",
    "text under its own name, once": "city,street,note\nx,y,note\nz,q,w\n",
    "one column": "user id\n1\n2\n",
    "colons in names, as RecBole has": "user_id:token,item_id:token\n1,2\n3,4\n",
}


@pytest.mark.parametrize("text", NAMED.values(), ids=NAMED)
def test_a_header_is_left_alone(tmp_path, text):
    path = tmp_path / "a.csv"
    path.write_text(text)
    assert opened(path).doubts() == []


def test_a_header_that_is_read_as_a_record_is_told(tmp_path):
    path = write(tmp_path / "a.csv", RATINGS, ",", NAMES)
    doubts = opened(path, csv_columns="a,b,c,d").doubts()
    assert len(doubts) == 4
    assert "row 1 holds 'user'" in doubts[0]
    assert doubts[0].endswith("if that is a header line, leave out --csv-columns")


ERRORS = {
    "a record named twice": ((",", {}), r"'3' twice; .* give --csv-columns with the names"),
    "too few names": ((",", {"csv_columns": "a,b"}), r"row 1: .*got 4: .*; --csv-columns names 2"),
    "names without the separator": (
        ("\t", {"csv_columns": "a,b,c,d"}),
        r"Expected 4 columns, got 1: .* give --csv-separator tab",
    ),
}


@pytest.mark.parametrize(("given", "words"), ERRORS.values(), ids=ERRORS)
def test_errors_name_the_flag(tmp_path, given, words):
    separator, fields = given
    path = write(tmp_path / "u.csv", [(3, 1, 3, 7), *RATINGS], separator)
    with pytest.raises(UserError, match=f"u.csv: .*{words}"):
        opened(path, **fields).schema()


def test_decimal_commas_in_one_column_are_told_as_a_separator(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("a;b\n1,5;2\n2,5;3\n")
    with pytest.raises(UserError, match=r"Expected 1 columns, got 2.*give --csv-separator ';'"):
        opened(path).schema()


REFUSED = {
    "a letter": ({"csv_separator": "x"}, "--csv-separator must be of ASCII characters"),
    "what a shell leaves of a tab": ({"csv_separator": "t"}, "--csv-separator tab$"),
    "a quote": ({"csv_separator": '"'}, "--csv-separator must be"),
    "an unknown format": ({"data_format": "xlsx"}, "--data-format must be one of csv, parquet"),
    "Parquet with a separator": (
        {"data_format": "parquet", "csv_separator": ";"},
        "--csv-separator is for CSV files, not for parquet",
    ),
    "a name twice": ({"csv_columns": "a,b,a"}, "--csv-columns names 'a' twice"),
    "a name that is empty": ({"csv_columns": "a,,b"}, "--csv-columns: 'a,,b' has an empty name"),
}


@pytest.mark.parametrize(("fields", "words"), REFUSED.values(), ids=REFUSED)
def test_flags_that_cannot_be_meant(fields, words):
    with pytest.raises(UserError, match=words):
        _ = FormatOptions(**fields).format_of_data


def test_what_is_not_said_is_told_by_names():
    assert FormatOptions().format_of_data == DataFormat()


def test_a_field_may_not_hold_what_stands_for_a_long_separator(tmp_path):
    path = write(tmp_path / "a.csv", [(1, "a\x1fb")], "::")
    with pytest.raises(UserError, match=r"a.csv: there is a character '\\x1f'"):
        rows(opened(path, csv_separator="::", csv_columns="a,b"))


def test_statistics_of_a_file_without_a_header(tmp_path):
    path = write(tmp_path / "u.data", RATINGS, "\t")
    form = {"data_format": "csv", "csv_separator": "tab", "csv_columns": "user,item,rating,time"}
    columns = analyze(opened(path, **form))["columns"]
    assert (columns["rating"]["min"], columns["rating"]["max"]) == (1, 3)


def test_a_reader_in_code_takes_the_same(tmp_path):
    path = write(tmp_path / "ratings.dat", RATINGS, "::")
    reader = CsvReader(str(path), separator="::", column_names=NAMES)
    assert rows(reader) == RATINGS


def test_comments_are_no_records(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(
        '# made by hand, it\'s "raw\nname,x\n# one\na,1\n"b\n# not this",2\n#\nc#,3\n# the end'
    )
    reader = opened(path, csv_comment="#")
    assert rows(reader) == [("a", 1), ("b\n# not this", 2), ("c#", 3)]
    assert reader.schema().names == ["name", "x"]


@settings(max_examples=examples(60), deadline=None)
@given(
    lines=st.lists(st.sampled_from(["#", '# "a', "1,x", '#"', '3,"#\n#"', "", "4,z#"])),
    block=st.integers(1, 9),
)
def test_comments_in_blocks_of_any_size(tmp_path_factory, lines, block):
    """The same as without the lines that begin with the character, outside of quotes."""
    text = "n,t\n" + "".join(f"{line}\n" for line in lines)
    plain = "n,t\n" + "".join(f"{line}\n" for line in lines if not line.startswith("#"))
    folder = tmp_path_factory.mktemp("comments")
    (folder / "a.csv").write_text(text)
    (folder / "b.csv").write_text(plain)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(csv_index, "BLOCK_BYTES", block)
        commented, without = opened(folder / "a.csv", csv_comment="#"), opened(folder / "b.csv")
        names = [str(folder / name) for name in ("a.csv", "b.csv")]
        count = without.describe(names[1]).records
        assert commented.describe(names[0]).records == count
        assert rows_of(commented, names[0], count) == rows_of(without, names[1], count)


def rows_of(reader, name, count):
    return [row for batch in reader.read(name, 0, count) for row in batch.to_pylist()]


def test_single_quotes(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("\n".join(["name,x", "'a, ''b''',1", '"c",2']))
    assert rows(opened(path, csv_quotes="single")) == [("a, 'b'", 1), ('"c"', 2)]


def test_options_behind_a_path_are_of_it_alone(tmp_path):
    path = tmp_path / "a#b.csv"
    path.write_text("1;2\n3;4\n")
    reader = open_reader(f"{path}#separator=;&columns=user,item", FLAG)
    assert reader.schema().names == ["user", "item"]
    assert rows(reader) == [(1, 2), (3, 4)]
    (tmp_path / "u.data").write_text("1\t'x'\n# no\n")
    options = "format=csv&separator=tab&columns=a,b&quotes=single&comment=#"
    with pytest.raises(UserError, match="no file or folder"):
        open_reader(f"{tmp_path}/u.data#what=csv", FLAG)
    reader = open_reader(f"{tmp_path}/u.data#{options}", FLAG)
    assert reader.schema().names == ["a", "b"]
    assert rows(reader) == [(1, "x")]
    with pytest.raises(UserError, match=r"^--training-data: behind #: --csv-separator"):
        open_reader(f"{path}#separator=x", FLAG)


def test_a_header_of_many_columns(tmp_path):
    names = [f"a_column_of_a_long_name_{i}" for i in range(10_000)]
    path = tmp_path / "wide.csv"
    path.write_text(",".join(names) + "\n" + ",".join(["1"] * 10_000) + "\n")
    reader = opened(path)
    assert reader.schema().names == names
    assert rows(reader) == [(1,) * 10_000]
    assert opened(path, csv_columns=",".join(names)).schema().names == names
