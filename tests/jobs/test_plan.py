"""`shoal plan` before and after a job: what it predicts is compared with what the servers held."""

import json
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from shoal.cli.main import main
from tests.jobs.running import RunningJob
from tests.worker.inspect.test_check import GOOD

pytestmark = [pytest.mark.job, pytest.mark.usefixtures("hidden_libraries")]

RECORDS = 16_000


def planned(*flags):
    return CliRunner().invoke(main, ["plan", *map(str, flags)])


def write(folder):
    """Data whose users are by Zipf's law and whose items are uniform, and the model's file."""
    draw = np.random.default_rng(0)
    weights = np.cumsum(np.arange(1, 20_001) ** -1.05)
    table = pa.table(
        {
            "user": np.searchsorted(weights, draw.random(RECORDS) * weights[-1]),
            "item": draw.integers(0, 5000, RECORDS),
            "clicked": draw.integers(0, 2, RECORDS),
        }
    )
    pq.write_table(table, folder / "train.parquet", row_group_size=4096)
    (folder / "clicks.py").write_text(GOOD)
    return table


@pytest.mark.parametrize("admit_after", [1, 3])
def test_a_plan_holds_the_rows_of_its_job(tmp_path, admit_after):
    table = write(tmp_path)
    fields = {
        "model_zoo": tmp_path,
        "model_def": "clicks.custom_model",
        "training_data": tmp_path / "train.parquet",
        "embedding_threshold": 1000,
        "batch_size": 128,
        "epochs": 2,
        "table": f"users.admit_after={admit_after}",
    }
    with RunningJob("train", tmp_path, "job", **fields) as job:
        assert job.ended().code == 0
    done = planned("--job", tmp_path / "job", "--sample-records", RECORDS // 10, "--json")
    assert done.exit_code == 0, done.output
    plan = json.loads(done.output)
    assert plan["records"] == RECORDS
    compared = {each["name"]: each for each in plan["compared"]}
    assert set(compared) == {"users", "items"}
    for each in compared.values():
        assert each["rows_predicted"]["low"] <= each["rows"] <= each["rows_predicted"]["high"]
    # The comparison is with what the servers held: each epoch has the same pushes.
    pushes = [np.unique(table["user"][i : i + 128]) for i in range(0, RECORDS, 128)]
    times = 2 * np.unique(np.concatenate(pushes), return_counts=True)[1]
    assert compared["users"]["rows"] == (times >= admit_after).sum()
    whole = json.loads(planned("--job", tmp_path / "job", "--json").output)
    for each in whole["compared"]:
        assert each["rows_predicted"]["value"] == pytest.approx(each["rows"])
    if admit_after > 1:
        return  # the text of a plan is the same
    shown = planned("--job", tmp_path / "job").output
    assert re.search(r"--servers 1 --ps-resources cpu=0.5,memory=\d+Mi", shown)
    assert "Against checkpoint" in shown
    refused = planned("--job", tmp_path / "job", "--epochs", 3)
    assert refused.exit_code == 2
    assert "--epochs cannot be given with --job" in refused.output


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--job", "nowhere"], "--job: there is no job nowhere"),
        (["--model-def", "clicks.custom_model"], "--training-data is required by shoal plan"),
        (
            ["--model-def", "clicks.custom_model", "--training-data", "none.parquet"],
            "--training-data: .*none.parquet",
        ),
    ],
)
def test_wrong_input_is_one_error(tmp_path, monkeypatch, flags, message):
    write(tmp_path)
    monkeypatch.chdir(tmp_path)
    done = planned(*flags)
    assert done.exit_code == 2
    assert re.search(message, done.output)
    assert done.output.count("Error: ") == 1


def test_servers_follow_from_memory(tmp_path, monkeypatch):
    write(tmp_path)
    monkeypatch.chdir(tmp_path)
    flags = ["--model-def", "clicks.custom_model", "--training-data", "train.parquet"]
    small = planned(*flags, "--server-memory-gib", 0.1)
    assert small.exit_code == 2
    assert "--server-memory-gib 0.1 has no room" in small.output
