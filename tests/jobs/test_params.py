"""--model-params belong to a job: its workers use them, and an export of its checkpoint does."""

import sys

import pyarrow.parquet as pq
import pytest

from tests.jobs.running import completed, run

pytestmark = pytest.mark.job


def width(output):
    table = pq.read_table(output / "tables" / "users.parquet")
    return {len(vector) for vector in table["vector"].to_pylist()}


def test_values_reach_the_workers_and_an_export(tmp_path, clicks):
    output, again = tmp_path / "out", tmp_path / "again"
    fields = {"model_def": "small.custom_model", "training_data": clicks, "export": "none"}
    run("train", tmp_path, "tuned", output=output, model_params="width=5", **fields).succeeded()
    assert width(output) == {5}
    done = completed(
        [sys.executable, "-m", "shoal", "export", str(tmp_path / "tuned"), "--output", str(again)]
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert width(again) == {5}
    wrong = run("train", tmp_path, "wrong", model_params="widht=5", **fields)
    assert wrong.code == 2
    assert "Error: --model-params: no function of small.py has a parameter widht" in wrong.err
    assert wrong.err.count("\n") == 1
