"""Jobs whose parts stand still, or leave by the back door: told, waited for, or replaced."""

import os
import re
import signal
import time

import pyarrow.parquet as pq
import pytest

from shoal.client.found.processes import limit_files
from shoal.config.job import JobConfig
from shoal.proto import faults
from shoal.tools.chaos import faulty
from shoal.tools.chaos.faults import FAIL, OUTPUT, DisturbStorage, Target, When
from tests.jobs.results import applied
from tests.jobs.running import RunningJob, run, until

pytestmark = pytest.mark.job


@pytest.mark.parametrize("model_def", ["storage", "storage_batches"])
def test_a_reader_that_calls_sys_exit_is_an_error_in_the_users_code(tmp_path, numbered, model_def):
    with RunningJob(
        "train",
        tmp_path,
        "leaving",
        model_def=f"{model_def}.custom_model",
        environment={"STORAGE": "exit-37"},
        training_data=numbered[0],
        batch_size=16,
        num_minibatches_per_task=4,
    ) as job:
        ended = job.ended()
    assert ended.code == 1, ended.out + ended.err
    failure = ended.result["failure"]
    assert failure["kind"] == "USER_CODE"
    assert "SystemExit" in failure["message"]
    assert "sys.exit(0)" in failure["traceback"]
    assert "storage.py" in ended.err
    assert "sys.exit(0)" in ended.err


def test_a_client_says_that_it_waits_for_a_master_which_does_not_start(tmp_path, numbered):
    with RunningJob(
        "train",
        tmp_path,
        "silent",
        environment={"GATES": "step-1"},  # it does not end before its master is stopped
        model_def="counting.custom_model",
        training_data=numbered[0],
        batch_size=48,
    ) as job:
        master = until("a master", lambda: job.folder.config.exists() and job.pid("master"))
        os.kill(master, signal.SIGSTOP)
        output = tmp_path / "silent.out"
        # It has answered already where this test was slow to stop it.
        told = re.compile(r"waiting for the master to start|the master has not answered")
        until("a word of the client", lambda: told.search(output.read_text()))
        os.kill(master, signal.SIGCONT)
        job.open("step-1")
        job.ended().succeeded()


HELD_SECONDS = 12.0
"""Longer than any patience of the jobs whose server is held back."""

IMPATIENT = {
    "timeout_seconds": 2.5,
    "relaunch_limit": 0,
}


@pytest.fixture
def held(tmp_path):
    """A file that is there while ps-1 cannot get on with its start, and the environment for it."""
    folder = tmp_path / "faults"
    folder.mkdir()
    path = faults.hold(folder, "before-restore-plan", "ps-1")
    yield path, {faults.VARIABLE: str(folder)}
    path.unlink(missing_ok=True)


def hold_back(job, path, what):
    """Stop the server ps-1 that is being started, for longer than anybody's patience."""
    pid = until(what, lambda: job.folder.config.exists() and job.pid("ps", 1))
    os.kill(pid, signal.SIGSTOP)
    path.unlink()
    status = job.wait_status("the wait for ps-1", lambda status: "ps-1" in status.waits_for)
    assert "to start" in status.waits_for
    since = time.monotonic()
    until("the end of all patience", lambda: time.monotonic() - since > HELD_SECONDS)
    os.kill(pid, signal.SIGCONT)


def test_workers_wait_for_a_server_that_starts_late_as_long_as_it_takes(tmp_path, numbered, held):
    path, environment = held
    with RunningJob(
        "train",
        tmp_path,
        "late",
        environment=environment,
        model_def="counting.custom_model",
        training_data=numbered[0],
        output=tmp_path / "out",
        batch_size=48,
        workers="2",
        servers="2",
        **IMPATIENT,
    ) as job:
        hold_back(job, path, "the first start of ps-1")
        ended = job.ended().succeeded()
    assert ended.result["workers"] == {"starts": 2, "deaths": 0}
    assert ended.ledger["trained_once"] == 480
    total, counts = applied(tmp_path / "out")
    assert (total, counts) == ([480, 480], dict.fromkeys(range(480), 1))


def test_workers_wait_for_a_server_that_is_started_again_as_long_as_it_takes(
    tmp_path, numbered, held
):
    path, environment = held
    path.unlink()
    with RunningJob(
        "train",
        tmp_path,
        "again",
        environment={"GATES": "record-100"} | environment,
        model_def="counting.custom_model",
        training_data=numbered[0],
        output=tmp_path / "out",
        batch_size=48,
        servers="2",
        **(IMPATIENT | {"relaunch_limit": 1}),
    ) as job:
        job.at_gate("record-100")
        faults.hold(path.parent, "before-restore-plan", "ps-1")
        job.kill("ps", 1)
        job.open("record-100")
        hold_back(job, path, "the second start of ps-1")
        ended = job.ended().succeeded()
    assert ended.result["workers"] == {"starts": 1, "deaths": 0}
    total, counts = applied(tmp_path / "out")
    assert (total, counts) == ([480, 480], dict.fromkeys(range(480), 1))


def storage(job_folder, name, numbered, where, **fields):
    """A job that trains zoo/storage.py, whose storage goes wrong at the places `where`."""
    return RunningJob(
        "train",
        job_folder,
        name,
        environment={"STORAGE": where},
        training_data=numbered[0],
        output=job_folder / "out",
        batch_size=16,
        num_minibatches_per_task=4,
        **({"model_def": "storage.custom_model"} | fields),
    )


@pytest.mark.parametrize("model_def", ["storage", "storage_batches"])
def test_storage_that_fails_for_a_while_costs_nothing_but_time(tmp_path, numbered, model_def):
    """1. storage fails at a record, which is told; 2. the patience ends, the task goes back whole;
    3. the storage is back; 4. each record is trained once, and none was held against anything."""
    with storage(
        tmp_path,
        "flaky",
        numbered,
        "oserror-100",
        model_def=f"{model_def}.custom_model",
        storage_patience_seconds=8,
        relaunch_limit=0,
    ) as job:
        told = job.wait_status("word of the storage", lambda status: "storage" in status.waits_for)
        assert "part-100" in told.waits_for
        job.wait_status(
            "the task's return", lambda status: any("goes back" in m for m in status.messages)
        )
        job.open("oserror-100")
        ended = job.ended().succeeded()
    messages = ended.result["messages"]
    assert any("worker-0 waits for storage" in m and "part-100" in m for m in messages)
    assert any("worker-0 goes on" in m for m in messages)
    assert ended.result["bad_records"] == []
    assert ended.result["workers"] == {"starts": 1, "deaths": 0}
    assert ended.ledger["repeated"] == 0
    total, counts = applied(tmp_path / "out")
    assert (total, counts) == ([480, 480], dict.fromkeys(range(480), 1))


def test_storage_that_stays_away_ends_the_job_as_something_to_be_mended(tmp_path, numbered):
    with storage(
        tmp_path, "away", numbered, "oserror-100", storage_patience_seconds=1, max_bad_records=9
    ) as job:
        ended = job.ended()
    assert ended.code == 2, ended.out + ended.err
    failure = ended.result["failure"]
    assert failure["kind"] == "USER_ERROR"
    assert "part-100" in failure["message"]
    assert "could not be read, 3 times" in failure["message"]
    assert ended.result["bad_records"] == []
    assert ended.result["workers"]["deaths"] == 0


def waits_for_output(job):
    """Wait until the job says that it waits for storage."""
    job.wait_status("word of the storage", lambda status: "storage" in status.waits_for)


def test_storage_that_fails_for_a_while_at_the_export_costs_nothing_but_time(tmp_path, numbered):
    """1. the metrics are known; 2. from then on nothing behind --output can be read or written;
    3. that is told; 4. it ends, and the export is whole."""
    points = tmp_path / "faults"
    points.mkdir()
    held = faults.hold(points, "metrics-computed")
    with RunningJob(
        "train",
        tmp_path,
        "exported",
        environment={faults.VARIABLE: str(points)},
        model_def="counting.custom_model",
        training_data=numbered[0],
        validation_data=numbered[1],
        output=f"{faulty.PREFIX}{tmp_path}/out",
        batch_size=48,
        relaunch_limit=0,
    ) as job:
        job.wait_status("the evaluation", lambda status: status.state == "evaluating")
        fault = DisturbStorage((Target(OUTPUT),), When(), how=FAIL)
        trouble = faulty.begin(points, fault, JobConfig.load(job.folder.config))
        held.unlink()
        waits_for_output(job)
        assert not (tmp_path / "out").exists() or not list((tmp_path / "out").glob("*.json"))
        trouble.unlink()
        ended = job.ended().succeeded()
    assert any("waits for storage" in text for text in ended.result["messages"])
    assert ended.result["workers"] == {"starts": 1, "deaths": 0}
    total, counts = applied(tmp_path / "out")
    assert (sum(total), counts) == (2 * 480, dict.fromkeys(range(480), 1))


def test_storage_that_fails_for_a_while_as_predictions_are_completed_costs_only_time(
    tmp_path, numbered
):
    """1. the last predictions are written; 2. from then on no file can be written; 3. that is
    told; 4. it ends, and the predictions are complete."""
    model = {"model_def": "counting.custom_model", "batch_size": 48}
    run(
        "train", tmp_path, "trained", training_data=numbered[0], output=tmp_path / "model", **model
    ).succeeded()
    points = tmp_path / "faults"
    points.mkdir()
    with RunningJob(
        "predict",
        tmp_path,
        "predicted",
        environment={faults.VARIABLE: str(points), "GATES": "predict-479"},
        prediction_data=numbered[0],
        restore_from=tmp_path / "model",
        output=tmp_path / "out",
        in_order=True,
        num_minibatches_per_task=20,
        relaunch_limit=0,
        **model,
    ) as job:
        worker = job.at_gate("predict-479")
        held = faults.hold(points, "task-done")
        job.open("predict-479")
        parts = tmp_path / ".out.shoal-partial" / "_parts"
        until("all predictions", lambda: list(parts.glob("part-*.parquet")))
        assert limit_files(worker, 0)
        held.unlink()
        waits_for_output(job)
        assert limit_files(worker, None)
        ended = job.ended().succeeded()
    assert ended.result["workers"] == {"starts": 1, "deaths": 0}
    assert pq.read_table(tmp_path / "out" / "predictions.parquet").num_rows == 480


def test_a_worker_whose_feed_stands_still_is_named_with_its_line_and_replaced(tmp_path, numbered):
    """1. feed stops at a record; 2. the display says so; 3. the worker is named, with the user's
    line, its stacks are in its log, and it is replaced; 4. its successor trains the rest."""
    with RunningJob(
        "train",
        tmp_path,
        "stuck",
        environment={"GATES": "feed-200"},
        model_def="stuck.custom_model",
        training_data=numbered[0],
        output=tmp_path / "out",
        batch_size=16,
        num_minibatches_per_task=4,
        step_timeout_seconds=15,
    ) as job:
        first = job.at_gate("feed-200")
        status = job.wait_status("word of it", lambda status: "to get on with" in status.waits_for)
        assert "worker-0 to get on with feed() of stuck.py" in status.waits_for
        told = job.wait_status(
            "the worker's name", lambda status: any("stuck for" in m for m in status.messages)
        )
        job.open("feed-200")
        ended = job.ended().succeeded()
    (message,) = (m for m in told.messages if "worker-0 died (it is stuck for" in m)
    assert "--step-timeout-seconds" in message
    assert "records 192 to 207" in message
    assert "gates.py, line" in message
    # It stands in one of the two lines of a loop.
    assert re.search(r"in pass_gate: (time\.sleep\(0\.01\)|while not )", message)
    log = (job.folder.logs / "worker-0.0.log").read_text()
    assert "All threads:" in log
    assert "in pass_gate" in log
    assert first not in job.left()
    assert ended.result["workers"] == {"starts": 2, "deaths": 1}
    total, counts = applied(tmp_path / "out")
    assert (total, counts) == ([480, 480], dict.fromkeys(range(480), 1))
