"""Jobs that publish, whose processes are really killed: a reader has what the export has."""

import numpy as np
import pyarrow.parquet as pq
import pytest

from shoal.deltas import chain
from shoal.files.storage import open_storage
from shoal.proto import faults
from tests.deltas.reader import Reader
from tests.jobs.results import COUNTING, PIPELINED, applied
from tests.jobs.running import RunningJob, resume, run, until

pytestmark = pytest.mark.job

PUBLISHING = {"publish_seconds": 0.2, "num_minibatches_per_task": 4, "servers": "2"}


def assert_exported(live, output):
    """A reader of the folder `live` has the rows and dense values of an export, bit for bit."""
    reader = Reader(open_storage(str(live)))
    reader.catch_up()
    assert reader.number == chain.newest(reader.root).number
    table = pq.read_table(output / "tables" / "counts.parquet").to_pydict()
    wanted = zip(table["id"], table["vector"], strict=True)
    rows = {key: np.array(row, np.float32).tobytes() for key, row in wanted}
    assert reader.rows == {0: rows}
    assert list(reader.dense["trainable"].values()) == applied(output)[0]
    return reader.number


def published(live, count):
    """Wait until there are so many deltas."""
    root = open_storage(str(live))
    until(f"delta {count}", lambda: live.exists() and len(chain.numbers(root)) >= count)


def test_kills_of_all_that_publish_leave_nothing_untold(numbered, tmp_path):
    """At each point of a share and of a manifest; some of the servers' logs are done again."""
    live, kills = tmp_path / "live", tmp_path / "kills"
    kills.mkdir()
    gates = [f"step-{number}" for number in (5, 14, 23, 32, 41)]
    with RunningJob(
        "train",
        tmp_path,
        "killed",
        environment={"GATES": " ".join(gates), faults.VARIABLE: str(kills)},
        training_data=numbered[0],
        output=tmp_path / "out",
        publish=live,
        relaunch_limit=20,
        **PUBLISHING,
        **PIPELINED,
    ) as job:
        points = [
            ("publish-cut", "before-manifest"),
            ("share-half-written",),
            ("share-written", "delta-published"),
            ("share-half-written@ps-1", "share-written@ps-0"),
        ]
        for gate, armed in zip(gates, [*points, ()], strict=True):
            job.at_gate(gate)
            until("deaths at all points", lambda: not any(kills.iterdir()))
            for each in armed:
                (kills / each).touch()
            job.open(gate)
        ended = job.ended().succeeded()
    assert ended.result["servers"]["deaths"] == 5
    assert ended.result["published"]["newest"] == assert_exported(live, tmp_path / "out")
    assert applied(tmp_path / "out")[0] == [480, 480]


def test_a_job_goes_on_in_the_folder_of_the_job_that_it_continues(numbered, tmp_path):
    live = tmp_path / "live"
    fields = {"training_data": numbered[0], "publish": live} | COUNTING | PUBLISHING
    run("train", tmp_path, "first", output=tmp_path / "one", **fields).succeeded()
    newest = assert_exported(live, tmp_path / "one")

    strange = run("train", tmp_path, "strange", **fields)
    more = {"continue_from": tmp_path / "first", "servers": "1", "output": tmp_path / "two"}
    run("train", tmp_path, "second", **(fields | more)).succeeded()

    assert strange.code == 2
    assert f"--publish {live}: it has deltas of job first, which this job" in strange.err
    assert "name that job with --continue-from" in strange.err
    assert strange.result["ledger"]["trained_once"] == 0
    assert assert_exported(live, tmp_path / "two") > newest
    assert applied(tmp_path / "two")[0] == [960, 960]
    first = chain.read_delta(open_storage(str(live)), newest + 1).manifest
    assert first["base"]
    assert first["job_name"] == "second"


def test_a_job_that_is_resumed_tells_what_is_no_more(numbered, tmp_path):
    """Rows that were trained after the checkpoint, without a log, are trained again."""
    live = tmp_path / "live"
    fields = {"training_data": numbered[0], "publish": live} | COUNTING | PUBLISHING
    gates = {"GATES": "step-25 step-40"}
    more = {"durability": "checkpoint", "checkpoint_steps": 9, "output": tmp_path / "out"}
    with RunningJob("train", tmp_path, "again", environment=gates, **(fields | more)) as job:
        job.at_gate("step-25")
        published(live, 2)
        job.open("step-25")
        job.at_gate("step-40")
        published(live, 4)
        job.kill_whole()
    assert resume(job.folder).returncode == 0

    assert_exported(live, tmp_path / "out")
    assert applied(tmp_path / "out")[0] == [480, 480]
