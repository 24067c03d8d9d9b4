"""A trained model evaluated and used for predictions, on other numbers of servers."""

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest

import shoal
from shoal.display import LineDisplay
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


def test_evaluate_on_three_servers_gives_the_same_metrics(
    trained, session_folder, clicks, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    with (tmp_path / "shown").open("w") as stream:
        result = shoal.evaluate(
            model_zoo=ZOO,
            model_def="small.custom_model",
            validation_data=clicks,
            restore_from=session_folder / "trained-out",
            minibatch_size=64,
            num_ps=3,
            num_workers=2,
            display=LineDisplay(stream),
        )
    assert (result.state, result.records) == ("succeeded", 600)
    assert result.job_dir == tmp_path / "shoal-jobs" / "small-evaluate"
    assert result.metrics == pytest.approx(trained.result["metrics"], rel=1e-6)
    assert set(result.metrics) == {"auc", "loss"}


def test_predictions_are_those_of_the_export_each_once(trained, session_folder, unseen, tmp_path):
    export = session_folder / "trained-out"
    with RunningJob(
        "predict",
        tmp_path,
        "predict",
        environment={"GATES": "predicted-3"},
        model_def="small.custom_model",
        prediction_data=unseen,
        restore_from=export,
        output=tmp_path / "predictions",
        minibatch_size=20,
        num_minibatches_per_task=2,
        num_ps=1,
    ) as job:
        # In its second task: a file of the first is there, none of the second.
        os.kill(job.at_gate("predicted-3"), signal.SIGKILL)
        job.open("predicted-3")
        ended = job.ended()
    assert ended.code == 0, ended.out + ended.err
    assert ended.result["workers"] == {"starts": 2, "deaths": 1}
    assert ended.result["records"] == 230

    assert json.loads((tmp_path / "predictions" / "_manifest.json").read_text())["format"]
    # A folder of Parquet for whoever reads it: hidden files are not of it.
    order = [("source", "ascending"), ("record", "ascending")]
    table = pq.read_table(tmp_path / "predictions").sort_by(order)
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
