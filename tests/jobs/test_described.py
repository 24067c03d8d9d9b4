"""Jobs of many files: some are described while others are trained, and none is left out."""

import os
import re
import shutil
import signal
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shoal.proto import faults
from tests.jobs.results import SERIAL, applied
from tests.jobs.running import RunningJob, audited, resume, run, until

pytestmark = pytest.mark.job

FILES, RECORDS = 60, 20


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """A folder of files with the ids 0 to 1199, none twice."""
    folder = tmp_path_factory.mktemp("many")
    for number in range(FILES):
        ids = range(number * RECORDS, (number + 1) * RECORDS)
        pq.write_table(pa.table({"id": ids}), folder / f"{number:03}.parquet", row_group_size=7)
    return folder


def test_a_worker_and_the_master_die_while_files_are_described(many, tmp_path):
    """Each record is trained once, over two epochs; the next job finds all files described."""
    flags = {
        "training_data": many,
        "workers": "2",
        "epochs": 2,
        "index_dir": tmp_path / "index",
        **SERIAL,
    }
    planted = tmp_path / "faults"
    planted.mkdir()
    (planted / "sources-described").touch()
    environment = {faults.VARIABLE: str(planted), "GATES": "step-3"}
    with RunningJob(
        "train", tmp_path, "first", environment=environment, output=tmp_path / "out", **flags
    ) as job:
        job.at_gate("step-3")
        job.kill("master")
        job.open("step-3")
        ended = job.ended().succeeded()
    assert not list(planted.iterdir())  # a worker died there
    assert ended.ledger["total"] == 2 * FILES * RECORDS
    report = audited(job.folder)
    assert report["records"]["never"] == 0
    _, counts = applied(tmp_path / "out")
    assert set(counts) == set(range(FILES * RECORDS))
    assert sum(counts.values()) - 2 * FILES * RECORDS <= ended.ledger["repeated"]
    assert min(counts.values()) == 2

    again = run("train", tmp_path, "second", output=tmp_path / "again", **flags).succeeded()
    assert again.ledger["trained_once"] == 2 * FILES * RECORDS
    assert Counter(applied(tmp_path / "again")[1].values()) == {2: FILES * RECORDS}


def test_files_that_change_under_a_job_are_told_and_new_ones_are_left_out(many, tmp_path):
    folder = tmp_path / "data"
    shutil.copytree(many, folder)
    with RunningJob(
        "train",
        tmp_path,
        "changed",
        environment={"GATES": "step-2"},
        training_data=folder,
        output=tmp_path / "out",
        checkpoint_steps=1,
        **SERIAL,
    ) as job:
        job.at_gate("step-2")
        # Whichever is still to be read: one file alone is being read.
        for path in sorted(folder.iterdir())[:40]:
            pq.write_table(pa.table({"id": range(9)}), path)
        job.open("step-2")
        ended = job.ended()
    assert ended.code != 0
    assert re.search(
        r"\d\d\d\.parquet: the file was changed after .*9 records, and 20 th", ended.err
    )
    assert "Traceback" not in ended.err

    shutil.rmtree(folder)
    shutil.copytree(many, folder)
    pq.write_table(pa.table({"id": range(2000, 2020)}), folder / "new.parquet")
    done = resume(job.folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "new.parquet is new, and not read by this job" in done.stdout + done.stderr
    _, counts = applied(tmp_path / "out")
    assert Counter(counts.values()) == {1: FILES * RECORDS}


def test_a_file_that_is_removed_before_the_job_is_resumed_is_named(many, tmp_path):
    folder = tmp_path / "data"
    shutil.copytree(many, folder)
    with RunningJob(
        "train",
        tmp_path,
        "removed",
        environment={"GATES": "step-2"},
        training_data=folder,
        **SERIAL,
    ) as job:
        job.at_gate("step-2")
        until("the description of all", lambda: job.call_status() is not None)
        os.kill(job.process.pid, signal.SIGINT)
        job.open("step-2")
        job.ended()
    (folder / "031.parquet").unlink()
    done = resume(job.folder)
    assert done.returncode != 0
    assert "has changed since the job began" in done.stderr
    assert "031.parquet is not there any more" in done.stderr
