"""Data of many files, and files behind URLs: the second part of `make bench-readers`.

    first step      a job on FILES Parquet files of 100 columns and 20 row groups: seconds to its
                    first step, and how much memory a worker has more than in a job on one file
    row group       bytes read by bytes used, of one row group of a million rows behind a URL
    columns         bytes read for 3 of 100 columns, by those that pyarrow reads for them
    faults          seconds of reading behind a URL while each 50th request fails or some stall,
                    by those without

The files of the job are links to 100 different ones: their number is measured, not the disk.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from fsspec.implementations.local import LocalFileSystem

from shoal.base.disk.job_folder import JobFolder
from shoal.data import open_reader, ranges
from shoal.master.job.events import TaskReported
from shoal.master.journal.reading import read
from shoal.master.work.outcomes import Done

MODULE = """
import keras
from shoal.layers import Embedding

def custom_model():
    user = keras.Input([], dtype="int64", name="user")
    return keras.Model({"user": user}, keras.layers.Dense(1)(Embedding(8, name="users")(user)))

def feed_batch(columns, mode, metadata):
    return {"user": columns["c3"]}, columns["c4"] % 2

loss = "mse"

def optimizer():
    return keras.optimizers.SGD(0.01)
"""

TASK = 4000
DIFFERENT = 100


class Served(LocalFileSystem):
    """Files of this machine behind served://PATH: bytes are counted, some requests fail or stall.

    every: which requests fail. stall: share of those that stall, for so many seconds each.
    """

    protocol = "served"
    cachable = False
    bytes_read = 0
    requests = 0
    every = 0
    stall = (0.0, 0.0)
    delay = 0.0
    draw = random.Random(0)

    @classmethod
    def _strip_protocol(cls, path):
        return LocalFileSystem._strip_protocol(str(path).removeprefix("served://"))

    def unstrip_protocol(self, name):
        return f"served://{self._strip_protocol(name)}"

    def cat_file(self, path, start=None, end=None, **kwargs):
        Served.requests += 1
        number = Served.requests
        time.sleep(Served.delay)
        if Served.every and number % Served.every == 0:
            raise OSError("the storage fails, as it was told")
        if Served.stall[0] and Served.draw.random() < Served.stall[0]:
            time.sleep(Served.stall[1])
        data = super().cat_file(path, start, end, **kwargs)
        Served.bytes_read += len(data)
        return data


def write_many(folder, count):
    different = folder / "different"
    different.mkdir()
    draw = np.random.default_rng(0)
    for number in range(DIFFERENT):
        table = pa.table({f"c{i}": draw.integers(0, 1000, 100) for i in range(100)})
        pq.write_table(table, different / f"{number}.parquet", row_group_size=5)
    data = folder / "data"
    for number in range(count):
        place = data / f"{number // 1000:03}"
        place.mkdir(parents=True, exist_ok=True)
        os.link(different / f"{number % DIFFERENT}.parquet", place / f"{number:06}.parquet")
    return data


def job(folder, name, data, **flags):
    """Seconds to the first training task of a job, and MB that its workers had at most by then."""
    (folder / "module.py").write_text(MODULE)
    line = [sys.executable, "-m", "shoal", "train", "--model-def", "module.custom_model"]
    flags = {"training_data": data, "job_name": name, "job_dir": folder / name} | flags
    for flag, value in flags.items():
        line += [f"--{flag.replace('_', '-')}", str(value)]
    began = time.perf_counter()
    process = subprocess.Popen(line, cwd=folder, stdout=subprocess.DEVNULL)
    try:
        job_folder = JobFolder(folder / name)
        while True:
            assert process.poll() is None, "the job has ended"
            time.sleep(0.2)
            memory = [rss(pid) for pid in workers(job_folder)]
            if job_folder.journal.is_dir() and trained(job_folder):
                seconds = time.perf_counter() - began
                time.sleep(15)  # what they hold as they go on
                memory = [rss(pid) for pid in workers(job_folder)]
                return seconds, max(memory)
    finally:
        process.terminate()
        process.wait()


def trained(folder):
    """True if a training task was reported."""
    try:
        events = [entry.event for entry in read(folder.journal)[1]]
    except Exception:
        return False  # it is being written
    return any(
        isinstance(event, TaskReported) and isinstance(event.outcome, Done) for event in events
    )


def workers(folder):
    for entry in Path("/proc").iterdir():
        try:
            line = (entry / "cmdline").read_text()
        except (OSError, ValueError):
            continue
        if "shoal.worker" in line and str(folder.config) in line:
            yield int(entry.name)


def rss(pid):
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    found = [row for row in text.splitlines() if row.startswith("VmRSS")]
    return int(found[0].split()[1]) / 1024 if found else 0.0


def first_step(folder, count, workers_count):
    data = write_many(folder, count)
    flags = {"workers": str(workers_count), "batch_size": 50}
    one, least = job(folder, "one", data / "000" / "000000.parquet", epochs=10**6, **flags)
    index = folder / "index"
    seconds, most = job(folder, "many", data, index_dir=index, **flags)
    return {
        "files": count,
        "workers": workers_count,
        "seconds to the first step": round(seconds, 1),
        "seconds of a job of one file": round(one, 1),
        "MB a worker": round(most),
        "MB a worker of one file": round(least),
    }


def large(folder):
    path = folder / "large.parquet"
    draw = np.random.default_rng(0)
    table = pa.table({f"c{i}": draw.integers(0, 10**6, 1_000_000) for i in range(20)})
    pq.write_table(table, path, row_group_size=1_000_000)
    return path


def used_bytes(path, names):
    footer = pq.read_metadata(path)
    return sum(
        chunk.total_compressed_size
        for group in range(footer.num_row_groups)
        for chunk in map(footer.row_group(group).column, range(footer.num_columns))
        if chunk.path_in_schema in names
    )


def read_tasks(path, names):
    Served.bytes_read = Served.requests = 0
    reader = open_reader(f"served://{path}", "--training-data")
    reader.narrow(names)
    (source,) = reader.sources()
    rows = 0
    for start in range(0, source.records, TASK):
        end = min(start + TASK, source.records)
        rows += sum(batch.num_rows for batch in reader.read(source.name, start, end))
    assert rows == source.records
    return Served.bytes_read


def row_group(folder):
    path = large(folder)
    names = {"c1", "c2", "c3"}
    return {"bytes read by used": round(read_tasks(path, names) / used_bytes(path, names), 3)}


def columns(folder):
    path = folder / "wide.parquet"
    draw = np.random.default_rng(0)
    table = pa.table({f"c{i}": draw.integers(0, 10**6, 200_000) for i in range(100)})
    pq.write_table(table, path, row_group_size=20_000)
    names = ["c10", "c50", "c90"]

    class File:
        closed = False
        count = 0

        def __init__(self):
            self.file = path.open("rb")
            self.seek, self.tell, self.close = self.file.seek, self.file.tell, lambda: None

        def read(self, size=-1):
            data = self.file.read(size)
            File.count += len(data)
            return data

    pq.read_table(pa.PythonFile(File(), "r"), columns=names, pre_buffer=False, use_threads=False)
    return {"bytes by pyarrow's": round(read_tasks(path, set(names)) / File.count, 3)}


def faults(folder, rounds):
    path = folder / "rows.parquet"
    draw = np.random.default_rng(0)
    table = pa.table({f"c{i}": draw.integers(0, 10**6, 1_000_000) for i in range(20)})
    pq.write_table(table, path, row_group_size=10_000)
    names = {f"c{i}" for i in range(0, 20, 3)}

    def seconds(every, stall):
        Served.delay, Served.every, Served.stall = 0.02, every, stall
        began = time.perf_counter()
        read_tasks(path, names)
        return time.perf_counter() - began

    results = []
    for _ in range(rounds):
        plain = seconds(0, (0.0, 0.0))
        failing = seconds(50, (0.0, 0.0))
        stalling = seconds(0, (0.005, 5.0))
        results.append((failing / plain, stalling - plain, plain))
    Served.delay, Served.every, Served.stall = 0.0, 0, (0.0, 0.0)
    return {
        "failing by plain": round(statistics.median(each[0] for each in results), 3),
        "seconds more with stalls of 5 s": round(statistics.median(e[1] for e in results), 1),
        "seconds": round(statistics.median(each[2] for each in results), 1),
        "requests": Served.requests,
        "waited before a second request": ranges.PATIENCE_SECONDS,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    fsspec.register_implementation("served", Served, clobber=True)
    parts = {
        "row group": row_group,
        "columns": columns,
        "faults": lambda folder: faults(folder, options.rounds),
        "first step": lambda folder: first_step(folder, options.files, options.workers),
    }
    for name, part in parts.items():
        if options.only in ("", name):
            with tempfile.TemporaryDirectory() as folder:
                print(f"{name}: {json.dumps(part(Path(folder)))}", flush=True)


if __name__ == "__main__":
    main()
