"""Whole jobs whose rows have 16 bits: what they learn, and what a kill and a checkpoint leave."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from shoal.checkpoints import contents
from shoal.checkpoints.newest import checkpoint_at
from shoal.proto import faults
from tests.jobs.results import model
from tests.jobs.running import RunningJob, run

pytestmark = pytest.mark.job

DTYPE = "bfloat16"


def rows_of(checkpoint):
    """id -> values, of each table of a checkpoint, by name."""
    found = {}
    for position, table in enumerate(checkpoint.model.tables):
        assert table.value_dtype == DTYPE
        rows = found[table.name] = {}
        for server in range(len(checkpoint.shards)):
            for piece in contents.table_pieces(checkpoint, server, position):
                rows.update(zip(piece["id"].tolist(), piece["values"].tolist(), strict=True))
    return found


def test_bfloat16_rows_learn_as_float32_ones_and_a_servers_death_changes_no_bit(
    trained, clicks, tmp_path
):
    def fields(name):
        return {
            "model_def": "small.custom_model",
            "model_params": f"dtype={DTYPE}",
            "training_data": clicks,
            "validation_data": clicks,
            "output": tmp_path / f"{name}-out",
            "batch_size": 25,
            "seed": 7,
            "pipeline_depth": 0,
            "durability": "log",
        }

    kills = tmp_path / "kills"
    kills.mkdir()
    (kills / "push-logged").touch()

    def undisturbed():
        return run("train", tmp_path, "one", servers="1", **fields("one")).succeeded()

    def disturbed():
        environment = {faults.VARIABLE: str(kills)}
        with RunningJob(
            "train", tmp_path, "two", environment=environment, servers="2", **fields("two")
        ) as job:
            return job.ended().succeeded()

    with ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(undisturbed), pool.submit(disturbed)]
        one, two = (each.result() for each in jobs)
    assert list(kills.iterdir()) == []
    assert two.result["log"]["replayed_pushes"] >= 1
    assert two.result["servers"]["lost_pushes"] == 0
    # What rounding draws is of the row and the step: neither the server nor its death counts.
    exported = model(tmp_path / "one-out")
    assert model(tmp_path / "two-out") == exported
    assert one.result["metrics"] == two.result["metrics"]
    # The export has the servers' rows, each a bfloat16.
    for name, rows in rows_of(checkpoint_at(str(tmp_path / "two" / "checkpoints"))).items():
        table = exported[f"{name}.parquet"]
        assert dict(zip(table["id"], table["vector"], strict=True)) == rows
        bits = np.array(table["vector"], np.float32).view(np.uint32)
        assert (bits & 0xFFFF == 0).all()
    # The data are chance: what is learnt of them is so much alike, and no more.
    for metric, value in trained.result["metrics"].items():
        assert one.result["metrics"][metric] == pytest.approx(value, abs=0.03)
