"""Data that cannot be trained on: one message that names file, row and field, and what to do."""

import gzip
import json
import re
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.jobs.results import SERIAL, applied
from tests.jobs.running import ZOO, RunningJob, arguments_of, completed, resume, run

pytestmark = pytest.mark.job

RECORDS = 400
ROWS = [{"user": i % 7, "item": i % 5, "label": float(i % 2)} for i in range(RECORDS)]
BAD = 200
"""The record that is bad, where one is."""


def _csv(path, rows=ROWS):
    lines = [",".join("" if each is None else str(each) for each in row.values()) for row in rows]
    path.write_text("\n".join([",".join(ROWS[0]), *lines, ""]))


def _json(path, bad):
    """JSON lines, of which one is `bad`."""
    lines = [json.dumps(row) for row in ROWS]
    path.write_text("\n".join([*lines[:BAD], bad, *lines[BAD + 1 :], ""]))


def _parquet(path, rows=ROWS):
    pq.write_table(pa.Table.from_pylist(rows), path)


def _cut(path, data, by):
    path.write_bytes(data[:-by])


def _with_null(value=None):
    return [*ROWS[:BAD], {**ROWS[BAD], "label": value}, *ROWS[BAD + 1 :]]


def partition(folder):
    for user in (1, 2):
        (folder / f"user={user}").mkdir()
        _parquet(folder / f"user={user}" / "a.parquet")
    return folder


def empty_folder(folder):
    return folder


def empty_csv(folder):
    (folder / "a.csv").touch()
    return folder


def empty_parquet(folder):
    (folder / "a.parquet").touch()
    return folder


def empty_json(folder):
    (folder / "a.jsonl").touch()
    return folder


def header_alone(folder):
    _csv(folder / "a.csv", [])
    return folder


def cut_parquet(folder):
    _parquet(folder / "a.parquet")
    _cut(folder / "a.parquet", (folder / "a.parquet").read_bytes(), 300)
    return folder


def second_of_other_columns(folder):
    _csv(folder / "a.csv")
    (folder / "b.csv").write_text("user,itme,label\n1,2,0.0\n")
    return folder


def cut_json(folder):
    _json(folder / "a.jsonl", '{"user": 1, "item": 2, "la')
    return folder


def nested_json(folder):
    _json(folder / "a.jsonl", '{"user": {"id": 1}, "item": 2, "label": 0.0}')
    return folder


def cut_gzip(folder):
    _csv(folder / "a.csv")
    _cut(folder / "b.csv.gz", gzip.compress((folder / "a.csv").read_bytes()), 30)
    return folder / "b.csv.gz"


def missing_of_list(folder):
    _csv(folder / "a.csv")
    (folder / "list.txt").write_text("a.csv\nb.csv\n")
    return f"@{folder}/list.txt"


EARLY = {
    partition: ["column 'user'", "names of their folders", "user=1/a.parquet", "Rename one"],
    empty_folder: ["empty_folder holds no file ending in .csv"],
    empty_csv: ["a.csv: the file is empty; a header line is expected"],
    empty_parquet: ["a.parquet: cannot be read as Parquet", "0 bytes", "write or copy it anew"],
    empty_json: ["empty_json holds no records: name data"],
    header_alone: ["header_alone holds no records: name data"],
    cut_parquet: ["a.parquet: cannot be read as Parquet", "damaged", "write or copy it anew"],
    second_of_other_columns: ["column 'item' is in", "a.csv, not in", "b.csv: give all files"],
    cut_json: ["a.jsonl: row 201: not a JSON object: ", "cut short", "mend the line, or remove it"],
    nested_json: ["a.jsonl: row 201: column 'user' is of type object here", "mend the line"],
    cut_gzip: ["b.csv.gz: the gzip'd file is damaged", "write or copy it anew"],
    missing_of_list: ["list.txt: line 2: there is no file", "b.csv: correct the list"],
}
"""Seen by `shoal check`, and by `shoal train` before training."""


@pytest.mark.parametrize("write", EARLY, ids=lambda write: write.__name__)
def test_data_that_cannot_be_read_are_refused_before_training(tmp_path, write):
    folder = tmp_path / write.__name__
    folder.mkdir()
    fields = {"model_zoo": ZOO, "model_def": "small.custom_model", "training_data": write(folder)}
    written = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    job = {"job_name": "bad", "job_dir": tmp_path / "job", "output": tmp_path / "out"}
    for command, more in (("check", {}), ("train", job)):
        done = completed(arguments_of(command, **fields, **more), tmp_path)
        assert done.returncode == 2, done.stdout + done.stderr
        assert "Traceback" not in done.stdout + done.stderr
        (line,) = done.stderr.splitlines()
        for word in ("Error: --training-data: ", *EARLY[write]):
            assert word in line
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == written
    assert not (tmp_path / "out").exists()


def null_in_csv(folder):
    _csv(folder / "a.csv", _with_null())
    return folder / "a.csv"


def null_in_parquet(folder):
    _parquet(folder / "a.parquet", _with_null())
    return folder / "a.parquet"


def null_of_integers(folder):
    rows = [row | {"label": None if i == BAD else i % 2} for i, row in enumerate(ROWS)]
    _parquet(folder / "a.parquet", rows)
    return folder / "a.parquet"


@pytest.mark.parametrize(
    "write", [null_in_csv, null_in_parquet, null_of_integers], ids=lambda write: write.__name__
)
def test_a_label_without_a_value_is_named(tmp_path, write):
    """Records before it are trained, those from it on are not lost: the ledger has them all."""
    ended = run(
        "train",
        tmp_path,
        "null",
        model_def="small.custom_model",
        training_data=write(tmp_path),
        batch_size=50,
        num_minibatches_per_task=2,
    )
    assert ended.code == 2, ended.out + ended.err
    (line,) = ended.err.splitlines()
    for word in ("a.", "row 201", "column 'label'", "--fill-missing"):
        assert word in line
    assert "Traceback" not in ended.out
    ledger = dict(ended.ledger)
    assert ledger.pop("total") == sum(ledger.values()) == RECORDS


IDS = 400


def _write_ids(path, ids):
    """In place, as a program does that opens a file to write it."""
    path.write_text("id\n" + "".join(f"{i}\n" for i in ids))


@pytest.mark.parametrize("way", ["removed", "shorter"])
def test_a_file_that_goes_away_under_its_tasks_ends_the_job_which_can_be_resumed(tmp_path, way):
    """Its first tasks were trained; put back as it was, the others are, and none twice."""
    folder = tmp_path / "data"
    folder.mkdir()
    path = folder / "a.csv"
    _write_ids(path, range(IDS))
    with RunningJob(
        "train",
        tmp_path,
        way,
        environment={"GATES": "step-3"},
        training_data=folder,
        output=tmp_path / "out",
        checkpoint_steps=1,
        storage_patience_seconds=1,
        **SERIAL,
    ) as job:
        job.at_gate("step-3")
        if way == "removed":
            path.unlink()
        else:
            _write_ids(path, range(IDS // 2))
        job.open("step-3")
        ended = job.ended()
    assert ended.code != 0
    assert "Traceback" not in ended.err
    words = {
        "removed": r"a\.csv: the file is gone; it must stay until its job has ended: put it back",
        "shorter": r"a\.csv: the file was changed after .*200 records, and 400 then.*Put the file",
    }
    assert re.search(words[way], ended.err), ended.err

    _write_ids(path, range(IDS))
    done = resume(job.folder)
    assert done.returncode == 0, done.stdout + done.stderr
    _, counts = applied(tmp_path / "out")
    assert Counter(counts.values()) == {1: IDS}


def test_a_file_that_is_added_while_a_job_runs_is_not_read(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    _write_ids(folder / "a.csv", range(IDS))
    with RunningJob(
        "train",
        tmp_path,
        "added",
        environment={"GATES": "step-2 step-5"},
        training_data=folder,
        output=tmp_path / "out",
        epochs=2,
        **SERIAL,
    ) as job:
        job.at_gate("step-2")
        _write_ids(folder / "b.csv", range(IDS, 2 * IDS))
        job.open("step-2")
        job.at_gate("step-5")
        job.interrupt()
        job.open("step-5")
        job.ended()
    done = resume(job.folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "b.csv is new, and not read by this job" in done.stdout + done.stderr
    _, counts = applied(tmp_path / "out")
    assert Counter(counts.values()) == {2: IDS}
