"""A worker that needs more memory than its limit, killed by a real kernel."""

import shutil

from tests.jobs.conftest import movielens as movielens
from tests.kubernetes.jobs import result_in


def test_a_worker_that_runs_out_of_memory_is_given_more(shoal, movielens):
    shutil.copy(movielens / "validation.parquet", shoal.path / "train.parquet")
    flags = shoal.movielens(
        "hungry",
        worker_resources="cpu=0.02,memory=200Mi:200Mi",
        relaunch_limit="0",
        oom_memory_factor="3",
    )
    done = shoal("train", *flags)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "it ran out of memory (OOMKilled), and is given more" in done.stdout
    result = result_in(shoal, "hungry")
    assert result["ledger"]["trained_once"] == result["ledger"]["total"] == 19_633
