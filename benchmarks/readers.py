"""Records a second of each reader, against the format's own library: `make bench-readers`.

Each reads a whole file to Arrow columns or Python values in one thread, ours in tasks of
4,096 records as a worker does, index built beforehand. The two are run in turn, and the
ratio is the median of the rounds'; that of CPU time holds on a machine with other work, too.
"""

import gc
import json
import sqlite3
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.json as pajson
import pyarrow.parquet as pq
import sqlalchemy
import tensorflow as tf

from shoal.data import open_reader

RECORDS = 300_000
TASK = 4096
ROUNDS = 5


def table():
    draw = np.random.default_rng(0)
    columns = {f"id_{i}": draw.integers(0, 10**6, RECORDS) for i in range(6)}
    columns |= {f"value_{i}": draw.random(RECORDS) for i in range(3)}
    columns["name"] = [f"name {i}" for i in draw.integers(0, 1000, RECORDS)]
    return pa.table(columns)


def write(folder):
    data = table()
    pq.write_table(data, folder / "a.parquet", row_group_size=TASK)
    pacsv.write_csv(data, folder / "a.csv")
    lines = [json.dumps(row) for row in data.to_pylist()]
    (folder / "a.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "a.txt").write_text("\n".join(lines) + "\n")
    names = ", ".join(data.column_names)
    database = sqlite3.connect(folder / "a.db")
    database.execute(f"CREATE TABLE a (number INTEGER PRIMARY KEY, {types_of(data)})")
    rows = zip(*(column.to_pylist() for column in data.columns), strict=True)
    places = ", ".join("?" * len(data.column_names))
    database.executemany(f"INSERT INTO a ({names}) VALUES ({places})", rows)
    database.commit()
    database.close()
    with tf.io.TFRecordWriter(str(folder / "a.tfrecord")) as writer:
        for line in lines:
            writer.write(line.encode())


def types_of(data):
    """The columns of a table as SQL declares them."""
    kinds = {pa.int64(): "INTEGER", pa.float64(): "REAL", pa.string(): "TEXT"}
    return ", ".join(f"{field.name} {kinds[field.type]} NOT NULL" for field in data.schema)


def ours(path):
    """A function that reads the whole file by tasks and returns the number of records."""
    table = path.suffix == ".db"
    reader = open_reader(f"sqlite:///{path}#a" if table else str(path), "--training-data")
    (source,) = reader.sources()

    def read():
        return sum(
            batch.num_rows
            for start in range(0, source.records, TASK)
            for batch in reader.read(source.name, start, min(start + TASK, source.records))
        )

    return read


def csv(path):
    options = pacsv.ReadOptions(use_threads=False)
    return sum(batch.num_rows for batch in pacsv.open_csv(path, options))


def parquet(path):
    batches = pq.ParquetFile(path, memory_map=True).iter_batches(use_threads=False)
    return sum(batch.num_rows for batch in batches)


def json_lines(path):
    return pajson.read_json(path, pajson.ReadOptions(use_threads=False)).num_rows


def tfrecord(path):
    dataset = tf.data.TFRecordDataset(str(path)).batch(1024)
    return sum(len(batch) for batch in dataset.as_numpy_iterator())


def text(path):
    dataset = tf.data.TextLineDataset(str(path)).batch(1024)
    return sum(len(batch) for batch in dataset.as_numpy_iterator())


def sql(path):
    engine = sqlalchemy.create_engine(f"sqlite:///{path}")
    table = sqlalchemy.Table("a", sqlalchemy.MetaData(), autoload_with=engine)
    with engine.connect() as connection:
        rows = connection.execute(sqlalchemy.select(table)).all()
    engine.dispose()
    return len(rows)


LIBRARIES = {
    "a.csv": ("pyarrow.csv", csv),
    "a.parquet": ("pyarrow.parquet", parquet),
    "a.jsonl": ("pyarrow.json", json_lines),
    "a.tfrecord": ("tf.data.TFRecordDataset", tfrecord),
    "a.txt": ("tf.data.TextLineDataset", text),
    "a.db": ("sqlalchemy, rows", sql),
}


def seconds(function):
    """Seconds that passed, and those of CPU time."""
    gc.collect()
    began = time.perf_counter(), time.process_time()
    assert function() == RECORDS
    return time.perf_counter() - began[0], time.process_time() - began[1]


def measure(folder, names):
    results = []
    for name, (library, theirs) in LIBRARIES.items():
        if names and name not in names:
            continue
        path = folder / name
        read = ours(path)
        rounds = [(seconds(read), seconds(lambda: theirs(path))) for _ in range(ROUNDS)]  # noqa: B023
        results.append(
            {
                "file": name,
                "library": library,
                "records_per_second": RECORDS / statistics.median(mine[0] for mine, _ in rounds),
                "ratio": statistics.median(other[0] / mine[0] for mine, other in rounds),
                "cpu_ratio": statistics.median(other[1] / mine[1] for mine, other in rounds),
            }
        )
    return results


def main(output, *names):
    """names: of the files to be read, a.jsonl for example; all where there are none."""
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        results = measure(Path(folder), names)
    output = Path(output)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(results, indent=2) + "\n")
    print("| file | against | thousand records/s | ratio | of CPU time |")
    print("| --- | --- | --- | --- | --- |")
    for each in results:
        rate = each["records_per_second"] / 1000
        print(
            f"| {each['file']} | {each['library']} | {rate:,.0f} | {each['ratio']:.2f} "
            f"| {each['cpu_ratio']:.2f} |"
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
