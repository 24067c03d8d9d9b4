"""`shoal chaos --count`: every row of a disturbed job is what its audit says."""

import json
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shoal.base.disk.job_folder import JobFolder
from shoal.tools.chaos.count import Part, compare
from shoal.tools.chaos.count_job import INPUT, read_input
from tests.jobs.running import arguments_of, audited, completed

pytestmark = [pytest.mark.job, pytest.mark.usefixtures("hidden_libraries")]

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "chaos.md"


def documented():
    """The flags of the command in the guide, as fields of a RunningJob."""
    (command,) = re.findall(r"\$ shoal chaos --count(?: \\\n|[^\n])*", PAGE.read_text())
    words = command.replace("\\\n", " ").split()[4:]
    fields = {}
    for flag, value in zip(words[::2], words[1::2], strict=True):
        fields.setdefault(flag.removeprefix("--").replace("-", "_"), []).append(value)
    return fields


SMALL = {"batch_size": 8}
"""Four times as many steps: more are left than a fault may be late, also on a fast machine."""


def assert_every_row_exact(done):
    for table in ("records", "users", "groups"):
        assert re.search(rf"  {table} +([\d,]+) rows checked, +\1 exact; sum", done.stdout)


@pytest.mark.skipif(not PAGE.parent.is_dir(), reason="the docs are not beside the tests")
def test_the_command_of_the_guide_counts_every_row_exactly(tmp_path):
    fields = {"count": True, "job_dir": tmp_path / "job", **documented()}
    line = arguments_of("chaos", **fields)
    done = completed(line, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PROBLEM" not in done.stdout
    assert_every_row_exact(done)


def test_a_job_killed_whole_goes_on_with_other_numbers_of_servers_and_a_full_disk(tmp_path):
    """Two servers, then one, then three; the log in files is whole, so nothing is lost.

    Records are admitted by their second push, some before the servers change and some after.
    """
    fields = {
        "table": "records.admit_after=2",
        "count": True,
        "job_dir": tmp_path / "job",
        "servers": "2",
        "durability": "file",
        "kill": ["job@step=120,servers=1", "job@step=280,servers=3,workers=2"],
        "fill": "master@step=60,seconds=0.5",
        **SMALL,
    }
    line = arguments_of("chaos", **fields)
    done = completed(line)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "done to the job: 3" in done.stdout
    assert "PROBLEM" not in done.stdout
    assert " and 0 lost, by the audit" in done.stdout
    assert_every_row_exact(done)


def test_a_log_that_was_removed_while_the_job_was_down_costs_training_only(tmp_path):
    fields = {
        "count": True,
        "job_dir": tmp_path / "job",
        "epochs": 1,
        "durability": "log",
        "kill": "job@step=120,remove=log",
        **SMALL,
    }
    line = arguments_of("chaos", **fields)
    done = completed(line)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"kill job, remove log: removed log/ps-0000\S+$", done.stdout, re.MULTILINE)
    assert re.search(r"lost and trained again +[1-9]", done.stdout)
    assert re.search(r"  records +7,680 rows checked, +7,680 exact; sum 7,680", done.stdout)


def test_storage_hangs_half_sent_requests_and_no_room_cost_time_only(tmp_path):
    """Issue 14: each is what an ordinary day brings, and none is a failure of the job."""
    fields = {
        "count": True,
        "job_dir": tmp_path / "job",
        "servers": "2",
        "workers": "2",
        "checkpoint_steps": 20,
        "storage": [
            "data@step=40,hang=2,seconds=1",
            "data@step=200,fail=2,seconds=0.5",
            "checkpoints@step=320,fail=2,seconds=0.5",
        ],
        "hang": [
            "ps:1@step=60,seconds=1",
            "worker:0@point=feeding,step=100,seconds=1",
            "ps:1@point=before-checkpoint-read,step=250,seconds=2",
        ],
        "half_sent": "ps:0@step=150,seconds=1",
        "no_room": "ps:1@step=260,seconds=3",
    }
    done = completed(arguments_of("chaos", **fields))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "done to the job: 8" in done.stdout
    assert "PROBLEM" not in done.stdout
    assert "count: 0 repeated and 0 lost" in done.stdout
    assert_every_row_exact(done)
    # Nobody takes what hangs for dead: the one death is that of whom there was no room for.
    assert "deaths: 1\n" in done.stdout
    assert "ps-1 waits: there is no room for it" in done.stdout


def test_a_worker_whose_step_stands_still_is_named_with_its_stacks_and_replaced(tmp_path):
    """Issue 14: the first one, which computes a step, never goes on."""
    job = tmp_path / "job"
    fields = {
        "count": True,
        "job_dir": job,
        "servers": "2",
        "hang": "worker:0@point=computing,step=100,seconds=inf",
        "step_timeout_seconds": 10,
        "relaunch_limit": 10,
    }
    done = completed(arguments_of("chaos", **fields))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PROBLEM" not in done.stdout
    assert_every_row_exact(done)
    told = json.loads(JobFolder(job).result.read_text())["messages"]
    assert any("worker-0 died (it is stuck for" in text and "the step" in text for text in told)
    log = (JobFolder(job).logs / "worker-0.0.log").read_text()
    assert "the step of records" in log
    assert "All threads:" in log
    assert "in reached" in log


@pytest.mark.parametrize(
    ("damage", "seed", "durability"),
    [
        ("flip", 1, "log"),
        ("flip", 2, "log"),
        ("remove", 1, "log"),
        ("remove", 1, "checkpoint"),
    ],
)
def test_damage_to_the_journal_is_refused_by_name_or_trains_nothing_twice(
    tmp_path, damage, seed, durability
):
    """X2: a job once went back silently, and trained again what it had forgotten."""
    fields = {
        "count": True,
        "job_dir": tmp_path / "job",
        "epochs": 1,
        "durability": durability,
        "chaos_seed": seed,
        "kill": f"job@step=120,{damage}=journal",
        **SMALL,
    }
    line = arguments_of("chaos", **fields)
    done = completed(line)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(rf"kill job, {damage} journal: \w+ .*journal", done.stdout)
    if damage == "remove":
        # Where later segments hold the job's state, only the audit needs the removed one.
        assert re.search("(refused|the audit refuses it) by name, undone", done.stdout)
    assert re.search(r"  records +7,680 rows checked, +7,680 exact; sum 7,680", done.stdout)


def test_a_row_that_was_changed_behind_the_job_is_named(tmp_path):
    fields = {"epochs": 1, "pause": "ps:0@step=20,seconds=0.2"}
    fields |= {"count": True, "job_dir": tmp_path / "job"}
    line = arguments_of("chaos", **fields)
    done = completed(line)
    assert done.returncode == 0, done.stdout + done.stderr
    folder = tmp_path / "job" / "export"
    table = folder / "tables" / "records.parquet"
    rows = pq.read_table(table).to_pydict()
    rows["vector"][rows["id"].index(17)][0] -= 1
    pq.write_table(pa.table(rows), table)
    sources = read_input(tmp_path / ("job" + INPUT))
    comparison = compare(folder, [Part(sources, 1, audited(JobFolder(tmp_path / "job")))], 1)
    assert comparison.differs
    assert "DIFFERENCE: records: 17 of ps-0: expected 1, found 2" in comparison.lines()


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"model_def": "m.m"}, "--model-def cannot be given with --count: it has its own"),
        ({"sync": True}, "--sync cannot be given with --count"),
        ({"tolerance": 1}, "--tolerance cannot be given with --count: rows are compared"),
    ],
)
def test_flags_by_which_a_row_is_no_count_are_refused(tmp_path, fields, told):
    line = arguments_of("chaos", count=True, kill="ps:0@step=1", job_dir=tmp_path / "j", **fields)
    done = completed(line)
    assert done.returncode == 2
    assert done.stderr.startswith(f"Error: {told}")
    assert list(tmp_path.iterdir()) == []


KILLS = {
    "X1, a worker that ended and a server": ["worker:0@step=120", "ps:0@step=168"],
    "K1, a server before any checkpoint": ["ps:0@step=100"],
}


@pytest.mark.parametrize("kill", KILLS.values(), ids=KILLS)
@pytest.mark.parametrize("flags", [{}, {"durability": "checkpoint"}], ids=["default", "retrain"])
def test_a_server_that_dies_before_a_checkpoint_loses_nothing_for_good(tmp_path, kill, flags):
    fields = {"count": True, "job_dir": tmp_path / "job", "epochs": 1, "kill": kill, **flags}
    done = completed(arguments_of("chaos", **fields))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PROBLEM" not in done.stdout
    assert re.search(r"  records +7,680 rows checked, +7,680 exact; sum", done.stdout)
    assert re.search(r"  groups +12 rows checked, +12 exact; sum", done.stdout)
    assert re.search(r"trained exactly once +7,680$", done.stdout, re.MULTILINE)


@pytest.mark.parametrize("kill", KILLS.values(), ids=KILLS)
@pytest.mark.parametrize("steps", [400, 0], ids=["checkpoints", "none"])
def test_what_stays_lost_is_in_the_audit_row_by_row_and_no_success(tmp_path, kill, steps):
    # A server dies in the midst of pushes: while the worker starts again, a checkpoint has all.
    kill = [each.replace("step=168", "step=2000") for each in kill]
    fields = {"count": True, "job_dir": tmp_path / "job", "epochs": 1, "kill": kill}
    fields |= {"durability": "checkpoint", "on_loss": "accept", "checkpoint_steps": steps}
    fields["batch_size"] = 2  # steps for longer than a fault may be late
    done = completed(arguments_of("chaos", **fields))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "PROBLEM: the job has degraded" in done.stdout
    assert "DIFFERENCE" not in done.stdout
    assert re.search(r"  records +7,680 rows checked, +7,680 exact; sum", done.stdout)
    lost = re.search(r"count: 0 repeated and ([\d,]+) lost", done.stdout)
    assert int(lost[1].replace(",", "")) > 0


@pytest.mark.parametrize("durability", ["log", "checkpoint"])
def test_a_server_that_dies_while_workers_are_fenced_makes_no_count_wrong(tmp_path, durability):
    """F19: two workers and a server are killed at one step. No server is called while it is away;
    what it has of the workers is asked once it is back."""
    fields = {
        "count": True,
        "job_dir": tmp_path / "job",
        "servers": "2",
        "workers": "3",
        "durability": durability,
        "checkpoint_steps": 60,
        "kill": ["ps:0@step=100", "worker:0@step=100", "worker:1@step=100"],
    }
    done = completed(arguments_of("chaos", **fields))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "done to the job: 3" in done.stdout
    assert "PROBLEM" not in done.stdout
    assert_every_row_exact(done)
    assert re.search(r"trained exactly once +[1-9]", done.stdout)
