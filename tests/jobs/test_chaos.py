"""`shoal chaos` on whole jobs: at least 12 kills, and each record's gradient applied once."""

import re
import subprocess

import pytest

from tests.jobs.running import RunningJob, arguments_of, audited
from tests.jobs.test_exactly_once import COUNTING, applied

pytestmark = pytest.mark.job

RECORDS = 6000
STEPS = RECORDS // COUNTING["minibatch_size"]


@pytest.fixture(scope="module")
def ids(tmp_path_factory):
    """(training, validation) files of ids, none twice."""
    folder = tmp_path_factory.mktemp("ids")

    def write(name, numbers):
        path = folder / name
        path.write_text("id\n" + "".join(f"{i}\n" for i in numbers))
        return path

    return write("training.csv", range(RECORDS)), write("more.csv", range(RECORDS, RECORDS + 160))


def disturbed(ids, tmp_path, name, **fields):
    """A job of zoo/counting.py under faults, checked: all were done, nothing unaccounted for."""
    training, validation = ids
    given = {
        "training_data": training,
        "validation_data": validation,
        "output": tmp_path / "out",
        "num_minibatches_per_task": 5,
        "num_workers": 2,
        "num_ps": 2,
        "undisturbed": f"seen=160,ids={sum(range(RECORDS, RECORDS + 160))}",
        "tolerance": 0,
        **COUNTING,
    }
    with RunningJob("chaos", tmp_path, name, **(given | fields)) as job:
        ended = job.ended().succeeded()
    assert "PROBLEM" not in ended.out
    assert "everything is accounted for" in ended.out
    assert re.search(r"seen: 160\.0000 disturbed, 160\.0000 undisturbed", ended.out)
    assert f"done to the job: {sum(len(fields[kind]) for kind in ('kill',))}" in ended.out
    report = audited(job.folder)
    assert report["records"]["total"] == RECORDS
    return ended, report


def test_kills_of_workers_and_master_leave_every_record_trained_once(ids, tmp_path):
    kills = [
        # Two at once, and the master as it is about to write what became of them.
        "worker:0@point=between-acknowledgements,step=60",
        "worker:1@point=task-done,step=60",
        "master@point=before-journal,step=70",
        "master@point=after-journal,step=250",
        "master@phase=evaluating",
    ]
    ended, report = disturbed(ids, tmp_path, "workers", kill=kills)
    assert ended.result["workers"] == {"starts": 4, "deaths": 2}
    assert ended.result["servers"]["deaths"] == 0
    assert report["records"]["once"] + report["records"]["more"] == RECORDS
    assert sum(death["who"] == "master" for death in report["deaths"]) == 3
    total, counts = applied(tmp_path / "out")
    # What one server had of a push when its worker died, the successor's push brings again.
    repeated = ended.ledger["repeated"]
    assert repeated in (0, 10)
    assert min(counts.values()) == 1
    assert set(counts) == set(range(RECORDS))
    assert sum(total) == 2 * RECORDS + repeated
    assert min(total) >= RECORDS


def test_kills_of_servers_and_master_are_accounted_for(ids, tmp_path):
    kills = [
        "ps:0@point=share-half-written",
        "ps:1@point=push-applied,step=150",
        "master@point=checkpoint-begun,step=250",
        # Two at once.
        "ps:0@step=350",
        "master@step=350",
        "ps:1@point=push-received,step=450",
        "worker:0@step=500",
    ]
    ended, report = disturbed(ids, tmp_path, "servers", kill=kills, checkpoint_steps=40)
    servers = ended.result["servers"]
    # One more if the master died while it was starting one.
    assert servers["deaths"] in (4, 5)
    assert report["updates"]["lost"] == servers["lost_pushes"]
    assert report["recoveries"]["ps"]["replaced"] == servers["deaths"]
    assert ended.ledger["trained_once"] + ended.ledger["repeated"] == RECORDS
    total, _ = applied(tmp_path / "out")
    lost = COUNTING["minibatch_size"] * servers["lost_pushes"]
    # Where there was no checkpoint yet, a worker brought back most of the dense values.
    there = 2 * RECORDS + ended.ledger["repeated"]
    assert there - lost <= sum(total) <= there


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({}, "nothing is to be done: give --kill, --pause, --cut or --random-kills"),
        ({"kill": "ps:7@step=1"}, "--kill ps:7@step=1: the job has no ps:7: --num-ps is 1"),
        (
            {"pause": "ps:0@step=1,seconds=1", "undisturbed": "nowhere"},
            "--undisturbed nowhere: neither run nor none",
        ),
    ],
)
def test_what_cannot_be_done_is_refused_before_the_job(ids, tmp_path, fields, told):
    line = arguments_of(
        "chaos",
        model_def="counting.custom_model",
        training_data=ids[0],
        job_dir=tmp_path / "job",
        **fields,
    )
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(f"Error: {told}")
    assert not (tmp_path / "job").exists()
