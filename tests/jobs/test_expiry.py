"""Rows that expire and caps in whole jobs: killed servers, resumed jobs, --sync, bad input."""

import json

import pytest

from shoal.checkpoints.contents import page_rows, removed_pages
from shoal.checkpoints.folders import Checkpoint
from shoal.files.storage import open_storage
from tests.jobs.results import SERIAL, applied
from tests.jobs.running import RunningJob, audited, resume, run
from tests.waiting import until

pytestmark = pytest.mark.job

SPAN = 64


@pytest.fixture(scope="session")
def timed(session_folder):
    """480 records, none with an id that came before, a second apart."""
    path = session_folder / "timed.csv"
    path.write_text("id,at\n" + "".join(f"{i},{i}\n" for i in range(480)))
    return path


def fields_of(timed, output, **more):
    """One task, so that records come in the order of the file."""
    return {
        "training_data": timed,
        "event_time": "at:s",
        "table": f"counts.expire_after={SPAN}s",
        "output": output,
        "num_minibatches_per_task": 48,
        **SERIAL,
        **more,
    }


def left(rows, span=SPAN):
    """The ids that are there when the push of the last minibatch was the end."""
    times = range(4, 480, 10)  # of minibatches: their lower medians
    old = sum(time <= times[-1] - span for time in times)
    return set(range(10 * old, rows))


def test_killed_servers_remove_what_others_would_have(timed, tmp_path):
    """Bit for bit, to the end."""
    more = {"servers": "2", "durability": "log", "checkpoint_steps": 9}
    plain = run("train", tmp_path, "plain", **fields_of(timed, tmp_path / "whole", **more))
    plain.succeeded()
    gates = [f"step-{step}" for step in (12, 25, 40)]
    with RunningJob(
        "train",
        tmp_path,
        "killed",
        environment={"GATES": " ".join(gates)},
        **fields_of(timed, tmp_path / "out", **more),
    ) as job:
        for number, gate in enumerate(gates):
            job.at_gate(gate)
            job.kill("ps", number % 2)
            if number == 2:
                job.kill("ps", 1)
            job.open(gate)
        ended = job.ended().succeeded()
    assert ended.result["servers"] == plain.result["servers"] | {"starts": 6, "deaths": 4}
    assert ended.result["servers"]["lost_pushes"] == 0
    assert applied(tmp_path / "out") == applied(tmp_path / "whole")
    total, counts = applied(tmp_path / "out")
    assert total == [480.0, 480.0]
    assert counts == dict.fromkeys(left(480), 1)
    removed = ended.result["tables"]["counts"]
    assert removed == plain.result["tables"]["counts"] | {"memory_bytes": removed["memory_bytes"]}
    assert (removed["rows"], removed["expired"]) == (len(counts), 480 - len(counts))
    audited(job.folder)


def test_servers_killed_in_the_middle_of_a_sweep_remove_the_same(timed, tmp_path):
    """One before its part is in the log, the other one behind that."""
    deaths = tmp_path / "deaths"
    deaths.mkdir()
    for name in ("sweep-half-done@ps-0", "sweep-logged@ps-1"):
        (deaths / name).touch()
    more = {"servers": "2", "durability": "log", "checkpoint_steps": 9}
    fields = fields_of(timed, tmp_path / "out", **more)
    environment = {"SHOAL_FAULTS": str(deaths)}
    with RunningJob("train", tmp_path, "swept", environment=environment, **fields) as job:
        ended = job.ended().succeeded()
    assert list(deaths.iterdir()) == []
    assert ended.result["servers"]["deaths"] == 2
    assert ended.result["servers"]["lost_pushes"] == 0
    total, counts = applied(tmp_path / "out")
    assert total == [480.0, 480.0]
    assert counts == dict.fromkeys(left(480), 1)
    assert ended.result["tables"]["counts"]["expired"] == 480 - len(counts)
    audited(job.folder)


def removed_ids(job):
    """Those that any checkpoint has: one has what was removed since the complete one before."""
    root = open_storage(str(job.folder.path / "checkpoints"))
    told = set()
    for taken in job.taken():
        checkpoint = Checkpoint(root, taken.number, taken.nonce)
        for page in (p for server in range(2) for p in removed_pages(checkpoint, server, 0)):
            rows = page_rows(checkpoint, page)
            told |= set() if rows is None else {int(key) for key in rows["id"]}
    return told


def test_a_resumed_job_goes_on_with_its_clock_on_other_servers(timed, tmp_path):
    with RunningJob(
        "train",
        tmp_path,
        "resumed",
        environment={"GATES": "step-30"},
        **fields_of(timed, tmp_path / "out", servers="2", checkpoint_steps=10),
    ) as job:
        job.at_gate("step-30")
        told = until("a checkpoint with removed rows", lambda: removed_ids(job))
        job.kill_whole()
        done = resume(job.folder, servers="1")
        assert done.returncode == 0, done.stdout + done.stderr
        result = json.loads(job.folder.result.read_text())
    assert told < set(range(300))
    _, counts = applied(tmp_path / "out")
    # Each server's clock is at its last push, and the pushes of one of them may be fewer.
    assert set(counts) == left(480)
    assert result["tables"]["counts"]["expired"] == 480 - len(counts)
    records = audited(job.folder)["records"]
    assert records["once"] + records["more"] == 480


def test_synchronous_training_sweeps_between_updates(timed, tmp_path):
    fields = fields_of(timed, tmp_path / "out", servers="2") | {"sync": True}
    del fields["pipeline_depth"]
    ended = run("train", tmp_path, "sync", **fields).succeeded()
    _, counts = applied(tmp_path / "out")
    assert set(counts) == left(480)
    assert ended.result["tables"]["counts"]["expired"] == 480 - len(counts)


def test_a_cap_holds_for_the_job_whatever_its_servers(timed, tmp_path):
    """Rows of a single use go by age: the youngest of all that came are left."""
    fields = fields_of(timed, tmp_path / "out", servers="2") | {"table": "counts.max_rows=200"}
    del fields["event_time"]  # which a cap needs not
    ended = run("train", tmp_path, "capped", **fields).succeeded()
    _, counts = applied(tmp_path / "out")
    assert 150 < len(counts) <= 200
    assert set(counts) >= set(range(340, 480))
    assert ended.result["tables"]["counts"]["evicted"] == 480 - len(counts)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"event_time": "att:s"}, "--event-time: there is no column 'att' (did you mean at?)"),
        ({"event_time": "at"}, "--event-time at: the column is of type int64, which does not tell"),
        ({"event_time": ""}, "--table counts.expire_after=64s: nothing tells the time of a record"),
        ({"table": "count.expire_after=7d"}, "--table names the table 'count' (did you mean count"),
        (
            {"table": "counts.max_rows=99", "servers": "2"},
            "'counts' has max_rows=99, which leaves 49",
        ),
        ({"table": "counts.expire_after=7"}, "expire_after must be a number with a unit: 2w, 14d"),
    ],
)
def test_what_cannot_be_is_one_message(timed, tmp_path, more, why):
    ended = run("train", tmp_path, "refused", **fields_of(timed, tmp_path / "out") | more)
    assert ended.code == 2
    assert why in ended.err
    assert "Traceback" not in ended.err
