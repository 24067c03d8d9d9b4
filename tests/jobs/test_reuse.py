"""A trained model evaluated and used for predictions, on other numbers of servers."""

import csv
import itertools
import json
import os
import signal
import sqlite3
import subprocess
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest

import shoal
from shoal.client.show.display import LineDisplay
from shoal.proto import faults
from tests.jobs.running import ZOO, RunningJob

pytestmark = pytest.mark.job

SERVE = """
import glob, sys
sys.modules["shoal"] = None  # importing shoal would fail
import numpy as np, pyarrow, pyarrow.csv, tensorflow as tf
folder, data, output = sys.argv[1:]
table = pyarrow.concat_tables(pyarrow.csv.read_csv(path) for path in sorted(glob.glob(data)))
served = tf.saved_model.load(folder + "/saved_model").signatures["serving_default"]
inputs = {name: tf.constant(table[name].to_numpy(), tf.int64) for name in ("user", "item")}
np.save(output, served(**inputs)["output"].numpy())
"""


@pytest.fixture(scope="module")
def unseen(session_folder):
    """Two files of one name; some of their users and items were not trained."""
    lines = [f"{i * 7},{i % 50}\n" for i in range(230)]
    for day, part in (("monday", lines[:90]), ("tuesday", lines[90:])):
        (session_folder / day).mkdir()
        (session_folder / day / "part.csv").write_text("user,item\n" + "".join(part))
    return session_folder / "*day" / "part.csv"


def test_evaluate_a_table_named_by_a_variable_gives_the_same_metrics_whoever_is_killed(
    trained, session_folder, clicks, monkeypatch, tmp_path
):
    with sqlite3.connect(tmp_path / "hunter2.db") as database:
        database.execute("CREATE TABLE clicks (user INTEGER PRIMARY KEY, item INT, label REAL)")
        rows = list(csv.reader(clicks.read_text().splitlines()))[1:]
        database.executemany("INSERT INTO clicks VALUES (?, ?, ?)", rows)
    database.close()
    monkeypatch.chdir(tmp_path)
    kills = tmp_path / "kills"
    kills.mkdir()
    # Whoever comes there first: within a task, which another gets, and with the metrics.
    armed = [faults.arm(kills, name) for name in ("batch-evaluated", "metrics-computed")]
    monkeypatch.setenv(faults.VARIABLE, str(kills))
    monkeypatch.setenv("NAME_OF_DATABASE", "hunter2")
    with (tmp_path / "shown").open("w") as stream:
        result = shoal.evaluate(
            model_zoo=ZOO,
            model_def="small.custom_model",
            validation_data=f"sqlite:///{tmp_path}/${{NAME_OF_DATABASE}}.db#clicks",
            restore_from=session_folder / "trained-out",
            batch_size=64,
            num_minibatches_per_task=2,
            servers="3",
            workers="2",
            display=LineDisplay(stream),
        )
    assert not any(file.exists() for file in armed)
    assert (result.state, result.records) == ("succeeded", 600)
    assert result.workers["deaths"] == 2
    assert result.job_dir == tmp_path / "shoal-jobs" / "small-evaluate"
    assert result.metrics == pytest.approx(trained.result["metrics"], rel=1e-6)
    assert set(result.metrics) == {"auc", "loss"}
    written = [file for file in result.job_dir.rglob("*") if file.is_file()]
    assert result.job_dir / "job.json" in written
    for file in [*written, tmp_path / "shown"]:
        assert b"hunter2" not in file.read_bytes(), file


def test_predictions_in_order_each_once_whenever_workers_are_killed(
    trained, session_folder, unseen, tmp_path
):
    export = session_folder / "trained-out"
    output, sink = tmp_path / "predictions", tmp_path / "sink.sqlite"
    # Within a task, at a batch and at its processor; before a part has its name, and after;
    # when the processor has committed; and when the parts have become one file, but are there
    # still.
    rounds = [
        ("process-20", "before-part-000000000000040.parquet"),
        ("after-part-000000000000080.parquet", "committed-90"),
        ("after-predictions.parquet",),
    ]
    kills = tmp_path / "kills"
    kills.mkdir()
    armed = faults.arm(kills, "batch-predicted")
    environment = {"GATES": " ".join(itertools.chain(*rounds)), "SINK": str(sink)}
    with RunningJob(
        "predict",
        tmp_path,
        "predict",
        environment=environment | {faults.VARIABLE: str(kills)},
        model_def="predicting.custom_model",
        prediction_data=unseen,
        restore_from=session_folder / "trained" / "checkpoints",
        output=output,
        in_order=True,
        batch_size=20,
        num_minibatches_per_task=2,
        servers="1",
        workers="2",
        relaunch_limit=6,  # all of them may meet the same worker
    ) as job:
        for gates in rounds:
            standing = {job.at_gate(gate) for gate in gates}
            assert len(standing) == len(gates)
            for pid in standing:
                os.kill(pid, signal.SIGKILL)
            job.open(*gates)
        ended = job.ended()
    assert ended.code == 0, ended.out + ended.err
    assert not armed.exists()
    assert ended.result["workers"]["deaths"] == 6
    assert ended.result["records"] == 230

    assert sorted(os.listdir(output)) == ["_manifest.json", "predictions.parquet"]
    manifest = json.loads((output / "_manifest.json").read_text())
    assert (manifest["complete"], manifest["records"]) == (True, 230)
    table = pq.read_table(output)
    assert table["record"].to_pylist() == [*range(90), *range(140)]
    sources = [str(session_folder / day / "part.csv") for day in ("monday", "tuesday")]
    assert table["source"].to_pylist() == [sources[0]] * 90 + [sources[1]] * 140

    subprocess.run(
        [sys.executable, "-c", SERVE, str(export), str(unseen), str(tmp_path / "served.npy")],
        check=True,
        capture_output=True,
    )
    served = np.load(tmp_path / "served.npy")
    np.testing.assert_allclose(table["prediction"].to_numpy(), served, rtol=1e-6)
    assert np.unique(served).size > 100

    with sqlite3.connect(sink) as database:
        rows = database.execute("SELECT * FROM predictions ORDER BY position").fetchall()
        times = dict(database.execute("SELECT * FROM tasks").fetchall())
    assert [position for position, _ in rows] == list(range(230))
    np.testing.assert_allclose([value for _, value in rows], served, rtol=1e-6)
    # Only the commit that its worker could not report came twice, and was told apart.
    assert times.pop(90) == 2
    assert set(times.values()) == {1}
