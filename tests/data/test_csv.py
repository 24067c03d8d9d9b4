"""CSV: ranges equal slices of the whole, counts are right, errors name file and row."""

import csv
import gzip
import io
import sys

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.data import CsvReader, Source, open_reader
from shoal.data.csv import csv_sample
from shoal.data.readers import csv_reader
from shoal.errors import UserError
from tests.examples import examples

FLAG = "--training-data"
MODULES = (csv_reader.__file__, csv_sample.__file__)


def write_csv(path, records, header=("id", "text", "value"), terminator="\n", **options):
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator=terminator, **options)
    writer.writerow(header)
    writer.writerows(records)
    path.write_bytes(buffer.getvalue().encode())


def read_rows(reader, source, start, end):
    batches = list(reader.read(source, start, end))
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


def read_all(reader):
    for source in reader.sources():
        list(reader.read(source.name, 0, source.records))


def refused(path, text):
    path.write_bytes(text)
    with pytest.raises(UserError) as caught:
        read_all(open_reader(str(path), FLAG))
    assert str(path) in str(caught.value)
    return str(caught.value)


@settings(max_examples=examples(100))
@given(
    texts=st.lists(
        st.lists(st.sampled_from(["\r\n", "\n", "\r", '"', ",", "ab"]), max_size=6).map("".join),
        min_size=5,
        max_size=40,
    ),
    data=st.data(),
)
def test_line_ends_within_quotes_are_as_pythons_csv_reads_them(tmp_path, monkeypatch, texts, data):
    """Arrow's blocks are as short as a record here, and so end in each place."""
    monkeypatch.setattr(csv_reader, "BLOCK_BYTES", 1)
    path = tmp_path / "ends.csv"
    write_csv(path, [*enumerate(texts)], ("id", "text"), quoting=csv.QUOTE_ALL)
    with open(path, newline="") as file:
        expected = [row[1] for row in csv.reader(file)][1:]
    reader = CsvReader(str(path), column_types={"text": pa.string()})
    start, end = sorted(data.draw(st.integers(0, len(texts))) for _ in range(2))
    assert [row[1] for row in read_rows(reader, str(path), start, end)] == expected[start:end]
    monkeypatch.undo()


def test_names_may_hold_any_character(tmp_path):
    names = ["a\x85b", "c\u2028d", "e\x0bf", "g\nh"]
    write_csv(tmp_path / "names.csv", [(1, 2, 3, 4)], names)
    assert open_reader(str(tmp_path / "names.csv"), FLAG).schema().names == names


def test_a_long_file_has_an_index_of_many_entries(tmp_path):
    path = tmp_path / "long.csv"
    records = [(i, f"line {i}\nof {i}", i / 4) for i in range(5000)]
    write_csv(path, records)
    reader = open_reader(str(path), FLAG)
    assert reader.sources() == [Source(str(path), 5000)]
    for start, end in ((0, 5000), (1023, 1025), (1024, 2048), (4999, 5000), (17, 4100)):
        assert read_rows(reader, str(path), start, end) == records[start:end]


def test_empty_lines_are_no_records_and_the_last_line_may_lack_its_end(tmp_path):
    path = tmp_path / "gaps.csv"
    path.write_bytes(b"\n\na,b\n\n1,2\r\n\r\n\n3,4\n\n5,6")
    reader = open_reader(str(path), FLAG)
    assert reader.sources() == [Source(str(path), 3)]
    assert read_rows(reader, str(path), 1, 3) == [(3, 4), (5, 6)]


def test_a_byte_order_mark_is_not_part_of_the_first_name(tmp_path):
    path = tmp_path / "mark.csv"
    path.write_bytes(b'\xef\xbb\xbf"a",b\n1,2\n')
    reader = open_reader(str(path), FLAG)
    assert reader.schema().names == ["a", "b"]
    assert read_rows(reader, str(path), 0, 1) == [(1, 2)]


def test_gzip_is_read_as_its_text(tmp_path):
    path = tmp_path / "packed.csv.gz"
    path.write_bytes(gzip.compress(b"a\n" + b"".join(b"%d\n" % i for i in range(3000))))
    reader = open_reader(str(path), FLAG)
    assert reader.sources() == [Source(str(path), 3000)]
    assert read_rows(reader, str(path), 2000, 2003) == [(2000,), (2001,), (2002,)]


def test_a_record_longer_than_a_block_is_read(tmp_path):
    path = tmp_path / "wide.csv"
    write_csv(path, [(1, "x" * (3 << 20), 0.5), (2, "y", 1.5)])
    reader = open_reader(str(path), FLAG)
    assert [len(row[1]) for row in read_rows(reader, str(path), 0, 2)] == [3 << 20, 1]


def test_columns_are_projected_in_the_order_asked(tmp_path):
    path = tmp_path / "records.csv"
    write_csv(path, [(1, "a", 0.5)])
    reader = open_reader(str(path), FLAG, columns=["value", "id"])
    assert reader.metadata.column_names == ("value", "id")
    assert read_rows(reader, str(path), 0, 1) == [(0.5, 1)]


def test_types_are_guessed_over_all_files(tmp_path):
    (tmp_path / "a.csv").write_text("n,day,gap,flag\n1,2024-01-02,,true\n")
    (tmp_path / "b.csv").write_text("n,day,gap,flag\n1.5,2024-01-02,7,false\n")
    schema = open_reader(str(tmp_path), FLAG).schema()
    assert schema == pa.schema(
        [("n", pa.float64()), ("day", pa.string()), ("gap", pa.int64()), ("flag", pa.bool_())]
    )


def test_files_of_different_columns_are_both_named(tmp_path):
    (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    (tmp_path / "b.csv").write_text("x,z\n1,2\n")
    with pytest.raises(UserError, match=r"column 'y' is in .*a\.csv, not in .*b\.csv"):
        read_all(open_reader(str(tmp_path), FLAG))


def test_files_of_different_types_are_both_named(tmp_path):
    (tmp_path / "a.csv").write_text("x\n1\n")
    (tmp_path / "b.csv").write_text("x\nhello\n")
    with pytest.raises(UserError, match=r"'x': int64 in .*a\.csv, string in .*b\.csv"):
        read_all(open_reader(str(tmp_path), FLAG))


def test_numbers_that_few_values_make_text_are_doubted_with_the_first_such_row(tmp_path):
    header = ("id", "zip", "few", "name", "price")
    records = [(i, f"{i:05}", "", f"n{i}", i / 7) for i in range(100)]
    records[40] = (40, "00040", "", "n40", "-1e3 EUR")
    records[60] = (60, "n/a", "x", "n60", "nan")
    records[70] = (70, "07O70", "", "n70", "cheap")
    write_csv(tmp_path / "a.csv", records, header)
    reader = open_reader(str(tmp_path / "a.csv"), FLAG)
    assert reader.metadata.column_types["price"] == "string"
    assert reader.doubts() == [
        f"{tmp_path}/a.csv: column 'zip' is read as text: row 71 holds '07O70', and 98 of the "
        "first 100 values are numbers",
        f"{tmp_path}/a.csv: column 'price' is read as text: row 41 holds '-1e3 EUR', and 97 of "
        "the first 100 values are numbers",
    ]
    given = CsvReader(str(tmp_path / "a.csv"), column_types={"zip": pa.string()})
    assert [text.partition("'")[2][:5] for text in given.doubts()] == ["price"]
    write_csv(tmp_path / "b.csv", records[:40], header)
    with pytest.raises(UserError, match=r"string in .*a\.csv, int64 in .*b\.csv.*; .*row 71 holds"):
        read_all(open_reader(str(tmp_path), FLAG))


@settings(max_examples=examples(60))
@given(
    st.lists(
        st.tuples(
            st.integers(0, 2**64 - 1),
            st.integers(-(2**63), 2**63 - 1),
            st.sampled_from(["0x1F", "31", "0X2a"]),
            st.floats(allow_nan=False),
            st.sampled_from(["2024-01-01", "10:00:00"]),
        ),
        min_size=1,
        max_size=20,
    )
)
def test_what_is_guessed_keeps_each_value_apart(tmp_path, records):
    path = tmp_path / "guessed.csv"
    write_csv(path, records, ("hash", "id", "word", "price", "day"))
    reader = open_reader(str(path), FLAG)
    expected = records
    if all(record[2] == "31" for record in records):
        expected = [(*record[:2], 31, *record[3:]) for record in records]
    (source,) = reader.sources()
    assert read_rows(reader, str(path), 0, source.records) == expected
    assert not [each for each in reader.doubts() if "floats" in each]


def test_integers_that_no_type_holds_are_doubted(tmp_path):
    (tmp_path / "a.csv").write_text("id,n\n-1,1\n9223372036854775808,2\n")
    (tmp_path / "b.csv").write_text("id,n\n18446744073709551616,1\n")
    for name, largest in (("a", 1 << 63), ("b", 1 << 64)):
        (doubt,) = open_reader(str(tmp_path / f"{name}.csv"), FLAG).doubts()
        assert doubt.startswith(
            f"{tmp_path}/{name}.csv: column 'id' is read as floats, as it holds {largest}, "
        )
        assert "CsvReader(column_types={'id': pyarrow.string()})" in doubt


def test_unsigned_and_signed_files_are_read_as_unsigned(tmp_path):
    (tmp_path / "a.csv").write_text("id\n1\n")
    (tmp_path / "b.csv").write_text(f"id\n{2**64 - 1}\n")
    reader = open_reader(str(tmp_path), FLAG)
    assert [read_rows(reader, name, 0, 1) for name in reader.names()] == [[(1,)], [(2**64 - 1,)]]


def test_zeros_in_front_of_numbers_are_doubted_where_texts_become_one(tmp_path):
    (tmp_path / "a.csv").write_text("article,zip,n\n108,00501,0\n0108,10001,10\n00108,94103,9\n")
    (doubt,) = open_reader(str(tmp_path / "a.csv"), FLAG).doubts()
    assert doubt == (
        f"{tmp_path}/a.csv: column 'article' is read as numbers, of which '00108' and '108' have "
        "zeros in front or lack them: texts that differ in these alone become one. To keep them "
        "apart, read it as text: CsvReader(column_types={'article': pyarrow.string()})"
    )


@pytest.mark.parametrize("word", ["0x1F", "0X1f", " 0x7"])
def test_a_hexadecimal_word_behind_the_sample_is_no_number(tmp_path, monkeypatch, word):
    monkeypatch.setattr(csv_sample, "SAMPLE_BYTES", 100)
    path = tmp_path / "a.csv"
    path.write_text("id,text\n" + "1,0x1\n" * 50 + f"{word},x\n")
    reader = open_reader(str(path), FLAG)
    assert read_rows(reader, str(path), 40, 50) == [(1, "0x1")] * 10
    with pytest.raises(UserError, match=rf"row 51: column 'id' holds '{word}', which is no number"):
        read_rows(reader, str(path), 45, 51)


def test_an_empty_file_of_a_folder_is_passed_over_and_told(tmp_path):
    for name, text in (("part-0", ""), ("part-1", "a,b\n1,2\n"), ("part-2", "\n")):
        (tmp_path / f"{name}.csv").write_text(text)
    reader = open_reader(str(tmp_path), FLAG)
    assert [source.records for source in reader.sources()] == [0, 1, 0]
    assert reader.doubts() == [
        f"{tmp_path}/part-{number}.csv: the file is empty, and passed over" for number in (0, 2)
    ]
    (tmp_path / "part-1.csv").unlink()
    with pytest.raises(UserError, match=r"part-0\.csv: the file is empty; a header line"):
        open_reader(str(tmp_path), FLAG).sources()


def test_files_as_excel_writes_them_are_told(tmp_path):
    assert (
        "row 1: there is a \" inside an unquoted field; if ';' separates the fields, give "
        "--csv-separator ';'" in refused(tmp_path / "semicolon.csv", b'a;b\n"x";"y"\n')
    )
    latin = "a,name\n1,Zo\xeb\n".encode("latin-1")
    assert "column 'name' is not UTF-8 text: write the file anew in UTF-8" in refused(
        tmp_path / "latin.csv", latin
    )
    assert "the header is not UTF-8 text: write" in refused(tmp_path / "head.csv", latin[::-1])
    for encoding in ("utf-16", "utf-16-be"):
        text = "\ufeffa,b\n1,2\n" if encoding == "utf-16-be" else "a,b\n1,2\n"
        assert "looks like UTF-16: write the file anew" in refused(
            tmp_path / f"{encoding}.csv", text.encode(encoding)
        )


def test_a_row_of_too_few_fields_is_named(tmp_path):
    assert "row 2: Expected 2 columns, got 1" in refused(tmp_path / "short.csv", b"a,b\n1,2\n3\n")


def test_a_row_in_a_later_range_is_named_by_its_place_in_the_file(tmp_path):
    path = tmp_path / "late.csv"
    path.write_bytes(b"a\n" + b"1\n" * 600_000 + b"x\n" + b"1\n" * 10)
    reader = open_reader(str(path), FLAG)
    assert len(read_rows(reader, str(path), 599_000, 600_000)) == 1000
    with pytest.raises(UserError, match=r"late\.csv: row 600001: column 'a': .*'x'"):
        read_rows(reader, str(path), 599_990, 600_005)


def test_quotes_that_csv_does_not_allow_are_refused_with_their_row(tmp_path):
    message = refused(tmp_path / "inch.csv", b'a,b\n1,2\n5" disk,3\n')
    assert 'row 2: there is a " inside an unquoted field' in message
    # Empty lines are no rows.
    assert "row 3: there is a" in refused(tmp_path / "gaps.csv", b'a,b\n\n1,2\n\n\r\n3,4\n5",6\n')
    assert "row 2: a quoted field is never closed" in refused(
        tmp_path / "open.csv", b'a,b\n1,2\n"3,4\n5,6\n'
    )
    assert "row 1: there is a carriage return" in refused(tmp_path / "mac.csv", b"a\n1\r2\n")


def test_files_without_header_or_records_are_refused(tmp_path):
    assert "a header line is expected" in refused(tmp_path / "empty.csv", b"")
    assert "holds no records" in refused(tmp_path / "bare.csv", b"a,b\n")
    assert "'a' twice" in refused(tmp_path / "twice.csv", b"a,a\n1,2\n")


def test_a_damaged_gzip_is_named(tmp_path):
    whole = gzip.compress(b"a\n" + b"123456789\n" * 1000)
    assert "damaged" in refused(tmp_path / "cut.csv.gz", whole[: len(whole) // 2])
    assert "damaged" in refused(tmp_path / "no.csv.gz", b"a\n1\n")


def test_a_range_beyond_the_end_is_refused(tmp_path):
    path = tmp_path / "records.csv"
    write_csv(path, [(1, "a", 0.5)])
    with pytest.raises(UserError, match="it holds 1"):
        list(open_reader(str(path), FLAG).read(str(path), 0, 2))


def test_reading_a_wide_header_makes_no_call_for_each_column(tmp_path):
    """To look for each name among all of them took minutes for 10,000 columns."""
    columns = 2000
    path = tmp_path / "wide.csv"
    names = [f"column_{i}" for i in range(columns)]
    write_csv(path, [[str(i) for i in range(columns)]], names)
    calls = []

    def count(frame, event, argument):
        if event == "c_call" and frame.f_code.co_filename in MODULES:
            calls.append(argument)

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        reader = CsvReader(str(path))
        rows = read_rows(reader, str(path), 0, 1)
    finally:
        sys.setprofile(before)
    assert rows == [tuple(range(columns))]
    assert len(calls) < columns / 4
    path.write_text(",".join([*names, "column_7", "column_3"]) + "\n1\n")
    with pytest.raises(UserError, match="the header names column 'column_3' twice"):
        read_all(open_reader(str(path), FLAG))
