"""A job whose table grows beyond the memory of the servers that it begins with."""

import shutil

import numpy as np
import pandas as pd
import pyarrow.parquet

from tests.kubernetes.jobs import ZOO, result_in

RECORDS = 600_000


def test_a_job_whose_tables_outgrow_its_servers_gets_more_and_finishes(shoal):
    """One row a record, of 64 values and 64 of Adagrad: 360 MB, and two servers have 730.

    Each of them needs 90 MB as an empty process, about as much for checkpoints, and some for logs.
    """
    ids = np.random.default_rng(1).permutation(RECORDS).astype(np.int64)
    frame = pd.DataFrame({"id": ids, "label": (ids % 2).astype(np.float32)})
    frame.to_parquet(shoal.path / "train.parquet", row_group_size=20_000)
    shutil.copytree(ZOO, shoal.path / "zoo")
    flags = shoal.flags(
        "outgrown",
        model_zoo="/work/zoo",
        model_def="outgrown.custom_model",
        training_data="/work/train.parquet",
        output="/work/out",
        servers="2:6",
        workers="1:1",
        epochs="1",
        batch_size="256",
        log_mb="16",
        checkpoint_steps="500",
        checkpoint_dir="/work/checkpoints",
        relaunch_limit="0",
        ps_resources="cpu=0.02,memory=60Mi:350Mi",
    )
    done = shoal("train", *flags)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "warning: ps-" in done.stdout
    assert "of memory at the end of the first epoch, and 367.0 MB is there" in done.stdout
    assert "3 servers from now on: ps-" in done.stdout
    assert "slots have moved" in done.stdout
    result = result_in(shoal, "outgrown")
    assert result["ledger"]["trained_once"] == result["ledger"]["total"] == RECORDS, done.stdout
    exported = pyarrow.parquet.read_metadata(shoal.path / "out" / "tables" / "rows.parquet")
    assert exported.num_rows == RECORDS
