"""One worker: the same seed gives the same model, however many servers hold it.

With --pipeline-depth 0: a pull that overlaps a push may or may not see its values.
"""

import csv
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.jobs.results import model
from tests.jobs.running import run

pytestmark = pytest.mark.job


def curve(folder):
    """The loss of each step, in order, as it was written."""
    with (folder / "losses.csv").open(newline="") as file:
        return [row["loss"] for row in csv.DictReader(file)]


def test_weights_and_losses_are_the_same_bit_for_bit(trained, session_folder, clicks, tmp_path):
    def one(name, servers, seed):
        return run(
            "train",
            tmp_path,
            name,
            model_def="small.custom_model",
            training_data=clicks,
            validation_data=clicks,
            output=tmp_path / f"{name}-out",
            batch_size=25,
            servers=str(servers),
            seed=seed,
            pipeline_depth=0,
            step_losses=True,
        ).succeeded()

    jobs = {"one": (1, 7), "three": (3, 7), "other": (2, 8)}
    with ThreadPoolExecutor(2) as pool:
        ended = dict(zip(jobs, pool.map(lambda job: one(job, *jobs[job]), jobs), strict=True))

    expected = model(session_folder / "trained-out")
    assert len(expected["users.parquet"]["id"]) == 600
    losses = curve(session_folder / "trained")
    assert len(losses) == trained.result["versions"]["ps-0"] == 24
    for name in ("one", "three"):
        assert model(tmp_path / f"{name}-out") == expected, name
        assert curve(tmp_path / name) == losses
        assert ended[name].result["metrics"] == trained.result["metrics"]
    # What a seed does not change would pass for the same, too.
    assert curve(tmp_path / "other") != losses
    other = model(tmp_path / "other-out")
    assert other["dense.parquet"]["values"] != expected["dense.parquet"]["values"]
    assert other["users.parquet"]["vector"] != expected["users.parquet"]["vector"]
