"""`shoal chaos` on a whole job: 13 kills, and each record's gradient applied once."""

from collections import Counter

import pytest

from tests.jobs.results import PIPELINED, applied
from tests.jobs.running import RunningJob, arguments_of, audited, completed

pytestmark = [pytest.mark.job, pytest.mark.usefixtures("hidden_libraries")]

RECORDS = 6000
VALIDATION = range(RECORDS, RECORDS + 160)


@pytest.fixture(scope="module")
def ids(tmp_path_factory):
    """(training, validation) files of ids, none twice."""
    folder = tmp_path_factory.mktemp("ids")

    def write(name, numbers):
        path = folder / name
        path.write_text("id\n" + "".join(f"{i}\n" for i in numbers))
        return path

    return write("training.csv", range(RECORDS)), write("more.csv", VALIDATION)


KILLS = [
    # Two at once, and the master as it is about to write what became of them.
    "worker:0@point=between-acknowledgements,step=60",
    "worker:1@point=task-done,step=60",
    "master@point=before-journal,step=70",
    "ps:0@point=push-logged,step=200",
    "master@point=after-journal,step=260",
    "ps:0@point=push-applied,step=300",
    # Two at once.
    "ps:0@step=380",
    "master@step=380",
    "ps:0@point=shard-half-written,step=430",
    "master@point=checkpoint-begun,step=470",
    "worker:0@step=500",
    # Two at once. Before, the other server keeps the log of this one's updates.
    "ps:1@phase=evaluating",
    "master@phase=evaluating",
]
PAUSES = ["ps:1@step=120,seconds=0.5"]
CUTS = ["worker:0-ps:1@step=140,seconds=0.5"]


def test_thirteen_kills_leave_every_record_trained_once_and_no_update_lost(ids, tmp_path):
    """Workers, servers and master, at named points and at steps, in one job."""
    training, validation = ids
    seen, total = len(VALIDATION), sum(VALIDATION)
    with RunningJob(
        "chaos",
        tmp_path,
        "disturbed",
        kill=KILLS,
        pause=PAUSES,
        cut=CUTS,
        training_data=training,
        validation_data=validation,
        output=tmp_path / "out",
        num_minibatches_per_task=5,
        workers="2",
        servers="2",
        durability="peer",
        checkpoint_steps=50,
        undisturbed=f"seen={seen},ids={total}",
        tolerance=0,
        **PIPELINED,
    ) as job:
        ended = job.ended().succeeded()
    assert "PROBLEM" not in ended.out
    assert "everything is accounted for" in ended.out
    assert f"seen: {seen}.0000 disturbed, {seen}.0000 undisturbed" in ended.out
    assert f"done to the job: {len(KILLS + PAUSES + CUTS)}" in ended.out

    report = audited(job.folder)
    records, repeated = report["records"], ended.ledger["repeated"]
    assert records["once"] + records["more"] == RECORDS
    assert records["more"] == repeated
    assert report["updates"]["lost"] == ended.result["servers"]["lost_pushes"] == 0
    deaths = Counter(death["who"] for death in report["deaths"])
    # One more if the master died while it was starting one.
    assert deaths["ps-0"] in (4, 5)
    assert deaths["worker-0"] + deaths["worker-1"] in (3, 4)
    assert deaths["master"] == 5
    assert report["recoveries"]["ps"]["replaced"] == deaths["ps-0"] + deaths["ps-1"]

    total, counts = applied(tmp_path / "out")
    # What one server had of a push when its worker died, the successor's push brings again.
    assert repeated in (0, 10, 20)
    assert min(total) >= RECORDS
    assert sum(total) == 2 * RECORDS + repeated
    assert set(counts) == set(range(RECORDS))
    assert min(counts.values()) == 1
    assert sum(counts.values()) <= RECORDS + repeated


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({}, "nothing is to be done: give --kill, --pause, --fill, --hang, --storage"),
        ({"kill": "ps:7@step=1"}, "--kill ps:7@step=1: the job has no ps:7: --servers is 1"),
        (
            {
                "kill": "job@step=1,servers=1",
                "servers": "2",
                "durability": "peer",
                "undisturbed": "none",
            },
            "--durability=peer needs a second server: use --servers 2",
        ),
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
    done = completed(line)
    assert done.returncode == 2
    assert done.stderr.startswith(f"Error: {told}")
    assert not (tmp_path / "job").exists()
