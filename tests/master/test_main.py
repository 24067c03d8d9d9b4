"""`python -m shoal.master` as the command line meets it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.base.disk import temporary
from shoal.base.disk.job_folder import JobFolder
from shoal.base.disk.wholefile import write_json
from shoal.client.found.claim import reclaimed
from shoal.errors import (
    EXIT_INTERRUPTED,
    EXIT_JOB_FAILED,
    EXIT_SUCCESS,
    EXIT_USER_ERROR,
    UserError,
)
from shoal.master.__main__ import exit_code_of
from shoal.master.job.events import JobFailed, JobStopped
from shoal.master.job.job import Job
from shoal.master.work.failures import Failure
from shoal.master.work.outcomes import DataDescribed
from shoal.master.work.units import Source
from shoal.proto import shoal_pb2 as pb
from tests.master.job.whole_jobs import kinds_until_end
from tests.master.strategies import begun, config

pytestmark = pytest.mark.slow


def master(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "shoal.master", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_missing_configuration_is_one_message(tmp_path):
    done = master("--config", str(tmp_path / "job.json"))
    assert done.returncode == EXIT_USER_ERROR
    assert f"Error: --config: there is no file {tmp_path / 'job.json'}" in done.stderr


def test_two_jobs_of_one_folder_are_refused(tmp_path):
    (tmp_path / "job.json").write_text(config().to_json())
    with (tmp_path / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        done = master("--config", str(tmp_path / "job.json"))
    assert done.returncode == EXIT_USER_ERROR
    assert f"Error: job test is already running in {tmp_path}" in done.stderr
    assert not (tmp_path / "result.json").exists()


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (pb.USER_ERROR, EXIT_USER_ERROR),
        (pb.USER_CODE, EXIT_JOB_FAILED),
        (pb.INTERNAL, EXIT_JOB_FAILED),
    ],
)
def test_exit_codes_of_failures(kind, code):
    job = Job(config())
    job.on(JobFailed(Failure(kind, "so it is")), 1.0)
    assert exit_code_of(job) == code


def test_exit_codes_of_other_ends():
    stopped = begun(DataDescribed(training=(Source("t", 1),)))
    stopped.on(JobStopped("SIGINT"), 1.0)
    assert exit_code_of(stopped) == EXIT_INTERRUPTED
    succeeded = begun()
    kinds_until_end(succeeded)
    assert exit_code_of(succeeded) == EXIT_SUCCESS


WITH_PEERS = """
import shoal.master.__main__ as master
from tests.master import peers
master.shoal_command = peers.command
master.main()
"""


@pytest.fixture
def started(tmp_path):
    """Starts a master whose processes are tests/master/peers.py's."""
    with contextlib.ExitStack() as stack:

        def start(plan=None, program=WITH_PEERS, **changes):
            (tmp_path / "job.json").write_text(config(**changes).to_json())
            (tmp_path / "plan.json").write_text(json.dumps(plan or {}))
            process = subprocess.Popen(
                [sys.executable, "-c", program, "--config", str(tmp_path / "job.json")]
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        yield start


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_job_and_leaves_nothing_behind(started, stalled, tmp_path, number):
    port, wait = stalled
    plan = {"worker": 0, "incarnation": 0, "pushes": 3, "port": port, "then": "stall"}
    process = started(plan, servers="2")
    wait()
    assert json.loads((tmp_path / "master.json").read_text())["pid"] == process.pid
    found = [
        int(pid)
        for children in Path(f"/proc/{process.pid}/task").glob("*/children")
        for pid in children.read_text().split()
    ]
    assert len(found) == 3
    process.send_signal(number)
    assert process.wait(60) == EXIT_INTERRUPTED
    assert json.loads((tmp_path / "result.json").read_text())["state"] == "stopped"
    assert not (tmp_path / "master.json").exists()
    assert not any(Path(f"/proc/{pid}").exists() for pid in found)


def test_a_job_that_succeeds(started, tmp_path):
    (tmp_path / "result.json").write_text("of an earlier job")
    assert started(workers="2", servers="2").wait(60) == EXIT_SUCCESS
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["state"], result["ledger"]["trained_once"]) == ("succeeded", 100)
    assert not (tmp_path / "master.json").exists()


def test_a_result_that_a_master_was_killed_before_is_written_by_a_resumption(started, tmp_path):
    """Between the journal's last event and the result: it is written then, and no more is done."""
    assert started(job_dir=str(tmp_path)).wait(60) == EXIT_SUCCESS
    result, folder = tmp_path / "result.json", JobFolder(tmp_path)
    before = json.loads(result.read_text())
    with pytest.raises(UserError, match="has succeeded: nothing is left to do"), resumable(folder):
        pass
    result.write_text('{"state": "succ')
    with resumable(folder) as (_, config):
        assert config.job_dir == str(tmp_path)
    program = WITH_PEERS.replace("main()", "main([*__import__('sys').argv[1:], '--resume', 'x'])")
    assert started(program=program, job_dir=str(tmp_path)).wait(60) == EXIT_SUCCESS
    after = json.loads(result.read_text())
    for name in ("state", "ledger", "workers"):
        assert after[name] == before[name]


def resumable(folder):
    return reclaimed(folder, {}, lambda config: config)


WITH_A_LOOK = """
from shoal.client.found.claim import is_locked
remove = master.temporary.remove

def looked(folder):
    (folder.path / "locked").write_text(str(is_locked(folder.lock)))
    remove(folder)

master.temporary.remove = looked
master.main()
"""


def test_the_temporary_folder_is_removed_before_another_master_may_run(started, tmp_path):
    """With the lock free a resumed job may have made its own already, which would be removed."""
    folder = JobFolder(tmp_path)
    temporary.make(folder)
    made = temporary.path_of(folder)
    assert (
        started(program=WITH_PEERS.replace("master.main()", WITH_A_LOOK)).wait(60) == EXIT_SUCCESS
    )
    assert (tmp_path / "locked").read_text() == "True"
    assert not made.exists()


def test_json_is_replaced_whole(tmp_path):
    path = tmp_path / "result.json"
    write_json(path, {"a": 1})
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(path, {"a": float("nan")})
    assert json.loads(path.read_text()) == {"a": 1}


def test_a_master_that_gets_no_thread_ends_and_says_why(tmp_path):
    (tmp_path / "job.json").write_text(config().to_json())
    # The system refuses threads with such stacks, as it does every thread under a limit.
    code = (
        "import threading; threading.stack_size(1 << 47); "
        "from shoal.master.__main__ import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "--config", str(tmp_path / "job.json")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == EXIT_JOB_FAILED
    assert "Error: cannot start a thread" in done.stderr
    assert "ulimit -u" in done.stderr
