"""metrics.csv has a row for every moment and evaluation once, whatever happens to its writers."""

import csv
import io
import itertools
from dataclasses import asdict
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest

from shoal.base.thinned import TEXT_BYTES, ThinnedFile
from shoal.errors import UserError
from shoal.master.figures.metrics_file import (
    TYPES,
    MetricsFile,
    write_parquet,
)
from shoal.master.job.view.sample import evaluations_from, sample_of
from shoal.master.job.view.status import tables
from shoal.master.work.evaluation.evaluation import EvaluationResult
from shoal.master.work.outcomes import (
    DataDescribed,
    Done,
    Heartbeat,
    MetricsComputed,
    StatesComputed,
)
from shoal.master.work.units import Source
from shoal.proto import shoal_pb2 as pb
from shoal.result import read_metrics
from tests.master.strategies import begun, finish_next, take, w

SAMPLE = {"seconds": 1.5, "state": "training", "epoch": 0, "version": 3, "loss": 0.25}


def evaluation(version, **metrics):
    return EvaluationResult(version, 0, metrics, 10)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "metrics.csv"


def rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_row_has_the_figures_of_its_moment(path):
    MetricsFile(path).add(1.25, SAMPLE)
    (row,) = rows(path)
    assert list(row) == list(TYPES)
    assert row["time"] == "1970-01-01T00:00:01.250Z"
    assert {name: row[name] for name in SAMPLE} == {
        "seconds": "1.500",
        "state": "training",
        "epoch": "0",
        "version": "3",
        "loss": "0.25",
    }
    assert row["rows"] == row["evaluated_version"] == ""


def test_evaluations_add_their_columns_to_all_rows(path):
    file = MetricsFile(path)
    file.add(1.0, SAMPLE)
    file.add(2.0, SAMPLE, evaluation(3, auc=0.5))
    file.add(3.0, SAMPLE, evaluation(9, **{"auc": 0.75, "hit, of\nten": 0.125}))
    file.add(4.0, SAMPLE)
    assert [row["val_auc"] for row in rows(path)] == ["", "0.5", "0.75", ""]
    assert [row["val_hit, of ten"] for row in rows(path)] == ["", "", "0.125", ""]
    assert [row["evaluated_version"] for row in rows(path)] == ["", "3", "9", ""]


def test_of_many_rows_every_part_of_the_job_and_every_evaluation_is_kept(path):
    thinned = ThinnedFile(path)
    assert thinned.text() == ""
    file = MetricsFile(path)
    for second in range(3000):
        evaluated = evaluation(second, auc=0.5) if second % 100 == 7 else None
        file.add(float(second), {"seconds": float(second), "state": "training"}, evaluated)
    assert path.stat().st_size > TEXT_BYTES
    text = thinned.text()
    assert len(text.encode()) <= TEXT_BYTES
    kept = list(csv.DictReader(io.StringIO(text)))
    seconds = [float(row["seconds"]) for row in kept]
    assert seconds[-1] == 2999
    assert max(after - before for before, after in itertools.pairwise(seconds)) < 20
    versions = [int(row["evaluated_version"]) for row in kept if row["val_auc"]]
    assert versions == list(range(7, 3000, 100))


def test_of_evaluations_alone_some_are_left_out_where_there_is_no_room(path):
    file = MetricsFile(path)
    for version in range(100):
        file.add(float(version), {}, evaluation(version, auc=0.5))
    whole = path.read_text()
    kept = ThinnedFile(path, 2000).text()
    assert len(kept) <= 2000
    assert kept.splitlines()[0] == whole.splitlines()[0]
    assert kept.splitlines()[-1] == whole.splitlines()[-1]
    assert ThinnedFile(path, len(whole) + 200).text() == whole


def test_what_goes_to_followers_is_read_once_and_held_in_few_rows(path, monkeypatch):
    """However long the job runs, and however often it is asked for."""
    file, thinned = MetricsFile(path), ThinnedFile(path, 2000)
    taken = []
    take = ThinnedFile._take
    monkeypatch.setattr(
        ThinnedFile, "_take", lambda self, line: taken.append(line) or take(self, line)
    )
    for second in range(500):
        file.add(float(second), {"seconds": float(second)})
        if second % 7 == 0:
            assert len(thinned.text()) <= 2000
            assert thinned.text().splitlines()[-1] == path.read_text().splitlines()[-1]
    assert len(taken) == 498
    held = thinned._rows.kept + thinned._evaluations.kept
    assert len(b"".join(line for _, line in held)) <= 2000
    file.add(500.0, {}, evaluation(3, auc=0.5))  # a column more: the file is another one
    rows = list(csv.DictReader(io.StringIO(thinned.text())))
    assert rows[-1]["val_auc"] == "0.5"
    seconds = [float(row["seconds"]) for row in rows[:-1]]
    assert seconds == sorted(seconds)
    assert max(b - a for a, b in itertools.pairwise(seconds)) <= 64


def test_a_master_that_goes_on_holds_no_file_of_months(path, monkeypatch):
    file = MetricsFile(path)
    for second in range(50):
        file.add(float(second), SAMPLE)
    monkeypatch.setattr(Path, "read_bytes", None)
    after = MetricsFile(path)
    after.add(50.0, SAMPLE, evaluation(3, auc=0.5))
    assert [row["val_auc"] for row in rows(path)] == [*[""] * 50, "0.5"]


@pytest.mark.parametrize("cut", [0, 1, 30])
def test_the_next_master_goes_on_even_where_a_row_was_cut(path, cut):
    before = MetricsFile(path)
    before.add(1.0, SAMPLE, evaluation(3, auc=0.5))
    before.add(2.0, SAMPLE)
    path.write_bytes(path.read_bytes()[: -cut or None])
    after = MetricsFile(path)
    after.add(3.0, SAMPLE, evaluation(3, auc=0.5))  # which has a row
    after.add(4.0, SAMPLE, evaluation(3, auc=0.25))  # of a resumed job, from other values
    after.add(5.0, SAMPLE)
    assert [row["time"][18] for row in rows(path)] == ["1", *["2"] * (cut == 0), "4", "5"]
    assert path.read_text().count("time") == 1


def test_a_row_that_a_full_disk_cut_is_written_over(path):
    file = MetricsFile(path)
    with path.open("a") as other:
        other.write("1970-01-01T00:0")
    file.add(2.0, SAMPLE)
    assert [row["time"] for row in rows(path)] == ["1970-01-01T00:00:02.000Z"]


def test_a_file_that_another_version_began_gets_the_columns_it_lacks(path):
    path.write_text("time,seconds,of_old\n1970-01-01T00:00:01.000Z,1.0,x\n")
    MetricsFile(path).add(2.0, SAMPLE)
    first, second = rows(path)
    assert (first["of_old"], first["state"]) == ("x", "")
    assert (second["of_old"], second["state"]) == ("", "training")


def test_pandas_and_parquet_read_the_same(path):
    file = MetricsFile(path)
    file.add(1.0, SAMPLE | {"loss": None})
    file.add(2.0, SAMPLE, evaluation(3, auc=float("nan"), sum=2.0))
    write_parquet(path, path.with_suffix(".parquet"))
    table = pq.read_table(path.with_suffix(".parquet"))
    assert table.schema.field("version").type == "int64"
    assert table.schema.field("val_sum").type == "double"
    frame = read_metrics(path.parent)
    assert frame["time"].tolist() == table["time"].to_pylist()
    assert frame["time"][1] == pd.Timestamp("1970-01-01T00:00:02Z")
    for name in ("seconds", "epoch", "version", "state"):
        assert frame[name].tolist() == table[name].to_pylist()
    assert frame["loss"].isna().tolist() == [True, False]
    assert frame["val_auc"].isna().all()
    assert frame["val_sum"].dropna().tolist() == [2.0]


def test_no_file_is_one_message(tmp_path):
    with pytest.raises(UserError, match=r"^there is no .*metrics\.csv: .*--metrics-seconds 0"):
        read_metrics(Path(tmp_path))


def test_a_sample_is_of_all_servers_and_the_evaluations_are_those_not_known():
    data = DataDescribed(training=(Source("t", 20),), validation=(Source("v", 10),))
    job = begun(data, validation_data="v", evaluation_steps=5, servers="2")
    for server, rows_there in zip(job.members.servers, (30, 12), strict=True):
        table = pb.TableStatus(
            name="users",
            rows=rows_there,
            memory_bytes=100 * rows_there,
            counting=7,
            removed=pb.RemovedIds(expired=5, evicted=6, counts=100),
        )
        status = pb.ServerStatus(
            version=6, tables=[table], staleness=pb.Distribution(count=2, sum=3)
        )
        job.servers.answered(server, status)
    task = take(job, w(0))
    beat = Heartbeat(task.id, 5, version=6, loss=0.5, loss_batches=1, learning_rate=0.25)
    job.heartbeat(w(0), 0, beat, 2.0)
    sample = sample_of(job, 2.0)
    assert sample | {"samples_per_second": None} == {
        "seconds": 2.0,
        "state": "training",
        "epoch": 0,
        "version": 6,
        "records": sample["records"],
        "samples_per_second": None,
        "loss": 0.5,
        "learning_rate": 0.25,
        "mean_staleness": 1.5,
        "workers": 1,
        "servers": 2,
        "worker_deaths": 0,
        "server_deaths": 0,
        "rows": 42,
        "table_bytes": 4200,
        "counted_ids": 14,
        "removed_rows": 22,
    }
    assert asdict(tables(job)["users"]) == {
        "rows": 42,
        "counting": 14,
        "memory_bytes": 4200,
        "expired": 10,
        "evicted": 12,
        "counts": 200,
    }
    assert list(sample) == [name for name in TYPES if name in sample]
    assert evaluations_from(job, 0) == []


def test_evaluations_are_told_once():
    data = DataDescribed(training=(Source("t", 10),), validation=(Source("v", 10),))
    job = begun(data, validation_data="v")
    finish_next(job, w(0), Done(), version=2)
    finish_next(job, w(0), StatesComputed(pb.MetricStates()))
    finish_next(job, w(0), MetricsComputed({"auc": 0.75}))
    assert [each.metrics for each in evaluations_from(job, 0)] == [{"auc": 0.75}]
    assert evaluations_from(job, 1) == []
