"""`shoal explain` of a job that runs, of its checkpoint and of its export."""

import json

import pytest
from click.testing import CliRunner

from shoal.cli.main import main
from tests.jobs.results import SERIAL
from tests.jobs.running import RunningJob, until

pytestmark = pytest.mark.job


@pytest.fixture(scope="module")
def timed(tmp_path_factory):
    """480 records, none with an id that came before, a second apart."""
    path = tmp_path_factory.mktemp("timed") / "timed.csv"
    path.write_text("id,at\n" + "".join(f"{i},{i}\n" for i in range(480)))
    return path


def explain(*arguments, code=0):
    done = CliRunner().invoke(main, ["explain", *map(str, arguments)], prog_name="shoal")
    assert done.exit_code == code, done.output
    return done.output


def told(*arguments):
    return json.loads(explain(*arguments, "--json"))


def test_ids_that_are_there_have_expired_and_never_came(timed, tmp_path):
    with RunningJob(
        "train",
        tmp_path,
        "living",
        environment={"GATES": "step-40"},
        training_data=timed,
        event_time="at:s",
        table="counts.expire_after=64s",
        output=tmp_path / "out",
        num_minibatches_per_task=48,
        servers="2",
        durability="log",
        **SERIAL,
    ) as job:
        job.at_gate("step-40")
        for server in range(2):
            until("its pushes", lambda server=server: job.server_status(server).pushes == 39)
        folder = job.folder.path
        there = told(folder, "counts", 385)
        assert (there["state"], there["uses"], there["removed"]) == ("row", 1, None)
        assert there["last_step"] >= 39
        assert (there["clock"], there["last_time"]) == (384, 384)
        assert there["norm"] == 1.0
        gone = told(folder, "counts", 5)
        assert (gone["state"], gone["uses"], gone["norm"]) == ("nothing", 0, None)
        assert gone["removed"]["reason"] == "expired"
        assert 5 + 64 <= gone["removed"]["time"] < 384
        assert told(folder, "counts", -7)["state"] == "nothing"
        text = explain(folder, "counts", 385)
        assert text.startswith("id 385 of table 'counts', by job living, which runs:\n")
        assert "of event time, unless it is pushed again (expire_after=1min)" in text
        assert "it had expired" in explain(folder, "counts", 5)
        assert "no table 'count' (did you mean counts?)" in explain(folder, "count", 5, code=2)
        job.open("step-40")
        job.ended().succeeded()
    # Its end is in a checkpoint, and without that in its export.
    there = told(folder, "counts", 475)
    assert there["where"].startswith("checkpoint ")
    assert (there["state"], there["uses"], there["norm"]) == ("row", 1, 1.0)
    assert told(folder / "checkpoints", "counts", 475) == there
    assert told(folder, "counts", 100)["state"] == "nothing"
    assert "has no table 'count'" in explain(folder, "count", 5, code=2)
    exported = told(tmp_path / "out", "counts", 475)
    assert exported["where"].startswith("export ")
    assert (exported["state"], exported["norm"], exported["uses"]) == ("row", 1.0, None)
    text = explain(tmp_path / "out", "counts", 100)
    assert text.splitlines()[1] == "  state  has no row in the export"


def test_an_id_that_is_counted_says_how_often_and_gets_its_row(timed, tmp_path):
    with RunningJob(
        "train",
        tmp_path,
        "admitting",
        environment={"GATES": "step-50"},
        training_data=timed,
        table="counts.admit_after=2",
        epochs=2,
        num_minibatches_per_task=48,
        **SERIAL,
    ) as job:
        job.at_gate("step-50")
        until("its pushes", lambda: job.server_status(0).pushes == 49)
        folder = job.folder.path
        assert told(folder, "counts", 3)["state"] == "row"
        counted = told(folder, "counts", 20)
        assert (counted["state"], counted["uses"], counted["admit_after"]) == ("counted", 1, 2)
        assert "1 of 2 pushes (admit_after)" in explain(folder, "counts", 20)
        job.open("step-50")
        job.ended().succeeded()
    row = told(folder, "counts", 20)
    assert (row["state"], row["uses"]) == ("row", 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere", "counts", "1"], "Error: there is no job nowhere on this machine"),
        (["nowhere", "counts", "one"], "Error: ID must be an integer, not 'one'"),
        (["nowhere", "counts", str(2**63)], "Error: ID must be an int64 number, from -92"),
    ],
)
def test_what_is_not_there_is_said_in_a_line(arguments, message):
    text = explain(*arguments, code=2)
    assert text.startswith(message)
    assert "Traceback" not in text
