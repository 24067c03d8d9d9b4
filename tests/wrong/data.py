"""Data that cannot be trained on: what writes them to a folder, and words of the message.

EARLY: refused without TensorFlow, before anything is started. LATE: by the process that has it.
"""

import json
import sqlite3

import pyarrow as pa
import pyarrow.parquet as pq

HEADER = "user,item,price,label"
RECORDS = 200
ROWS = [
    {"user": i % 7, "item": i % 5, "price": i / 4, "label": float(i % 2)} for i in range(RECORDS)
]
LINES = [",".join(map(str, row.values())) for row in ROWS]
BAD = 90
"""The row that is bad, where one is; rows count from 1."""


def written(name, data):
    def write(folder):
        (folder / name).write_bytes(data)
        return folder / name

    return write


def csv(lines=LINES, header=HEADER, name="a.csv", encoding="utf-8"):
    return written(name, "\n".join([header, *lines, ""]).encode(encoding))


def with_row(text):
    return csv([*LINES[: BAD - 1], text, *LINES[BAD:]])


def json_lines(bad, encoding="utf-8"):
    lines = [json.dumps(row) for row in ROWS]
    text = "\n".join([*lines[: BAD - 1], bad, *lines[BAD:], ""])
    return written("a.jsonl", text.encode(encoding))


def parquet(name="a.parquet", without="", **columns):
    def write(folder):
        table = pa.Table.from_pylist(ROWS).to_pydict() | columns
        table.pop(without, None)
        pq.write_table(pa.table(table), folder / name)
        return folder / name

    return write


def cut_parquet(folder):
    path = parquet()(folder)
    path.write_bytes(path.read_bytes()[:-200])
    return path


def two_formats(folder):
    csv()(folder)
    parquet()(folder)
    return folder


def database(folder):
    sqlite3.connect(folder / "a.db").execute("CREATE TABLE t (a INT)").connection.close()
    return f"sqlite:///{folder}/a.db#clicks"


def place(text):
    return lambda folder: text.format(folder=folder)


EARLY = {
    "utf-16": (csv(encoding="utf-16"), "header: the text looks like UTF-16: write the file anew"),
    "a decimal comma": (
        csv([line.replace(",", ";").replace(".", ",") for line in LINES], HEADER.replace(",", ";")),
        "row 1: .*give --csv-separator ';'",
    ),
    "a short row": (with_row("1,2,3.0"), "row 90: Expected 4 columns, got 3: .*; mend the row"),
    "a long row": (with_row("1,2,3.0,1.0,7"), "row 90: Expected 4 columns, got 5: .*; mend the"),
    "a name twice": (csv(header="user,item,item,label"), "names column 'item' twice; .*--csv-colu"),
    "no header": (csv(header=LINES[0]), "names column '0' twice; .*give --csv-columns"),
    "an empty file": (written("a.csv", b""), "the file is empty; a header line is expected"),
    "blank lines": (written("a.csv", b"\n\n"), "the file is empty; a header line is expected"),
    "a cut Parquet file": (cut_parquet, "a.parquet: cannot be read as Parquet .*write or copy it"),
    "CSV called Parquet": (csv(name="a.parquet"), "not a Parquet file: write or copy it anew"),
    "Parquet called CSV": (parquet("a.csv"), "the file is Parquet: call it .parquet, or give"),
    "no gzip": (csv(name="a.csv.gz"), "the gzip'd file is damaged: .*: write or copy it anew"),
    "a JSON array": (
        written("a.jsonl", json.dumps(ROWS).encode()),
        "row 1: not a JSON object but an array: write each object of it in a line of its own",
    ),
    "a JSON array of many lines": (
        written("a.jsonl", json.dumps(ROWS, indent=1).encode()),
        "row 1: not a JSON object but an array",
    ),
    "types of JSON": (
        json_lines('{"user": "one", "item": 2, "price": 1.0, "label": 0.0}'),
        "row 90: column 'user' is of type string here, and of type number elsewhere: mend the line",
    ),
    "lists of two depths": (
        written("a.jsonl", b'{"user": [1], "label": 0}\n' * 9 + b'{"user": [[1]], "label": 0}\n'),
        r"row 10: column 'user.\[\]' is of type array here, and of type number elsewhere",
    ),
    "JSON in Latin-1": (
        json_lines('{"user": 1, "item": 2, "price": 1.0, "label": 0.0, "x": "\xfc"}', "latin-1"),
        "row 90: not a JSON object: it is not UTF-8 .*: mend the line, or remove it",
    ),
    "single quotes": (json_lines("{'user': 1}"), "row 90: not a JSON object: .*double quotes"),
    "an Excel file": (written("a.xlsx", b"PK"), "a.xlsx has no known ending; .*--data-format"),
    "no ending": (csv(name="data"), "data has no known ending; .*--data-format csv"),
    "two formats": (two_formats, "files of different formats, such as .*; name one kind"),
    "a pattern of nothing": (place("{folder}/*.csv"), r"no file matches .*/\*.csv"),
    "one slash": (place("s3:/bucket/a.csv"), r"\(a URL has two slashes: s3://...\)"),
    "an unknown protocol": (place("sqs://bucket/a.csv"), "no filesystem for such URLs"),
    "no table": (database, "there is no table clicks"),
    "no database": (place("sqlite:///{folder}/b.db#clicks"), "there is no file .*b.db"),
    "no list": (place("@{folder}/list.txt"), "there is no list .*list.txt"),
}

LATE = {
    "semicolons": (
        csv([line.replace(",", ";") for line in LINES], HEADER.replace(",", ";")),
        "no column 'user' in .*if ';' separates the fields, give --csv-separator ';'",
    ),
    "an open quote": (
        with_row('"1,2,3.0,1.0'),
        "row 90: a quoted field is never closed: close it, or give --csv-quotes none",
    ),
    "text among numbers": (
        with_row("many,2,3.0,1.0"),
        r"feed\(\) of model.py gives text as feature 'user', .*look for a value that is not a num",
    ),
    "fractions as ids": (
        with_row("1.5,2,3.0,1.0"),
        "feature 'user' is 1.5 in row 89 of a minibatch, but the model's input takes int64.*: mend",
    ),
    "ids beyond int64": (
        parquet(user=pa.array([2**63 + i for i in range(RECORDS)], pa.uint64())),
        "feature 'user' is 9223372036854775808 in row 0 .*: mend the data, or convert the feature",
    ),
    "labels of text": (
        csv([line.removesuffix(".0") + "!" for line in LINES]),
        r"feed\(\) of model.py gives text as labels, and the loss takes numbers: make numbers",
    ),
    "another column": (
        csv(header="user,item,prize,label"),
        r"there is no column 'price' \(did you mean prize\?\) in .*a.csv; the columns are",
    ),
    "no label": (parquet(without="label"), "there is no column 'label' in .*a.parquet"),
    "a missing value": (with_row("1,2,,1.0"), "the loss is nan: .*--fill-missing COLUMN=VALUE"),
    "a header alone": (csv([]), "--training-data: .*a.csv holds no records: name data with one"),
    "objects": (
        parquet(user=[{"id": i} for i in range(RECORDS)]),
        "a.parquet: column 'user': the type struct<id: int64> has no counterpart",
    ),
    "nothing but nulls": (parquet(user=pa.nulls(RECORDS)), "column 'user': the type null has no"),
    "lists": (
        parquet(user=[[i] * (i % 3) for i in range(RECORDS)]),
        "gives lists as feature 'user', and the model's input takes one value .*: make one value",
    ),
    "lists of lists": (
        parquet(user=[[[i]] for i in range(RECORDS)]),
        r"gives lists of lists as feature 'user', .*keras.Input\(\(None, None\), name='user'\)",
    ),
}
