"""MovieLens on a real cluster by `shoal train --image`, as on one machine."""

import json
import shutil

import pyarrow.parquet as pq

from tests.jobs.conftest import movielens as movielens
from tests.kubernetes.conftest import kubectl


def test_movielens_as_pods(shoal, movielens, namespace):
    for name in ("train.parquet", "validation.parquet"):
        shutil.copy(movielens / name, shoal.path)
    done = shoal(
        "train",
        *shoal.movielens("deepfm", validation_data="/work/validation.parquet"),
        *("--output", "/work/model", "--num-ps", "2", "--num-workers", "3", "--num-epochs", "2"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((shoal.path / "shoal-jobs" / "deepfm" / "result.json").read_text())
    assert result["state"] == "succeeded"
    ledger = result["ledger"]
    assert (ledger["trained_once"], ledger["failed"]) == (ledger["total"], 0)
    assert result["workers"]["deaths"] == 0
    # Locally three epochs give 0.790, with a deviation of 0.001 from seed to seed.
    assert result["metrics"]["auc"] > 0.77
    assert (shoal.path / "model" / "model.keras").exists()
    tables = list((shoal.path / "model" / "tables").glob("*.parquet"))
    assert sum(pq.read_metadata(table).num_rows for table in tables) > 1000
    # The display was fed through the API server, and nothing of the job is left.
    assert "training: tasks" in done.stdout
    logs = shoal.path / "shoal-jobs" / "deepfm" / "logs"
    assert {path.name for path in logs.iterdir()} >= {"master.log", "ps-1.log", "worker-2.log"}
    left = kubectl(
        "get", "all,configmaps", "-l", "shoal/job=deepfm", "-o", "name", namespace=namespace
    )
    assert left == ""
