"""The network cut between the master and others, while everybody lives, and its return."""

from collections import Counter

import pytest

from shoal.proto import faults
from shoal.tools.chaos.relay import Relay
from tests.jobs.results import SERIAL, applied
from tests.jobs.running import RunningJob, audited, until

pytestmark = pytest.mark.job


@pytest.fixture
def cuttable(numbered, tmp_path):
    """Start a job of zoo/counting.py whose connections to and from the master are cut at will."""
    folder = tmp_path / "relays"
    folder.mkdir()
    pairs = [("worker-0", "master-0"), ("master-0", "ps-1"), ("ps-1", "master-0")]
    relays = {pair: Relay(folder, *pair) for pair in pairs}

    def start(gates, **fields):
        job = RunningJob(
            "train",
            tmp_path,
            "cut",
            environment={"GATES": gates, faults.VARIABLE: str(folder)},
            training_data=numbered[0],
            output=tmp_path / "out",
            servers="2",
            num_minibatches_per_task=4,
            **SERIAL,
            **fields,
        )
        return job, relays

    yield start
    for relay in relays.values():
        relay.close()


def test_cuts_from_the_master_and_their_return_cost_time_only(cuttable, tmp_path):
    job, relays = cuttable("step-10 step-12 step-20 step-24", checkpoint_steps=15)
    with job:
        job.at_gate("step-10")
        relays["worker-0", "master-0"].cut()
        job.open("step-10")
        # The rest of its task it trains without a master; for the next one it waits.
        job.at_gate("step-12")
        job.open("step-12")
        until("the task's end", lambda: job.server_status(0).version == 12)
        relays["worker-0", "master-0"].mend()
        job.at_gate("step-20")
        job.wait_taken()
        for pair in (("master-0", "ps-1"), ("ps-1", "master-0")):
            relays[pair].cut()
        job.open("step-20")
        # Workers and servers do not need the master for each other.
        job.at_gate("step-24")
        for pair in (("master-0", "ps-1"), ("ps-1", "master-0")):
            relays[pair].mend()
        job.open("step-24")
        ended = job.ended().succeeded()
    assert ended.result["workers"] == {"starts": 1, "deaths": 0}
    assert ended.result["servers"] == {
        "starts": 2,
        "deaths": 0,
        "lost_pushes": 0,
        "lost_records": 0,
    }
    assert ended.ledger["trained_once"] == 480
    # By steps, and at the end: the one that was due in the cut was taken after it.
    assert ended.result["checkpoints"]["taken"] >= 3
    total, counts = applied(tmp_path / "out")
    assert total == [480, 480]
    assert set(counts.values()) == {1}
    assert audited(job.folder)["deaths"] == []


def test_whoever_is_cut_from_the_master_for_too_long_is_replaced(cuttable, tmp_path):
    job, relays = cuttable(
        "step-10",
        durability="peer",
        checkpoint_steps=1000,
        timeout_seconds=5,
        relaunch_limit=20,
    )
    with job:
        job.at_gate("step-10")
        cut = [relays["worker-0", "master-0"], relays["master-0", "ps-1"]]
        for relay in cut:
            relay.cut()
        for said in ("worker-0 died", "ps-1 has not answered for 10 s, and is killed"):
            job.wait_status(said, lambda status, said=said: any(said in m for m in status.messages))
        for relay in cut:
            relay.mend()
        job.open("step-10")
        ended = job.ended().succeeded()
    assert ended.result["workers"]["deaths"] >= 1
    assert ended.result["servers"]["deaths"] >= 1
    assert ended.result["servers"]["lost_pushes"] == 0
    deaths = Counter(death["who"] for death in audited(job.folder)["deaths"])
    assert set(deaths) >= {"worker-0", "ps-1"}
    assert ended.ledger["trained_once"] == 480
    total, counts = applied(tmp_path / "out")
    assert total == [480, 480]
    assert set(counts.values()) == {1}
    assert len(counts) == 480
