"""Signals to the command, to the master and to a server: what is told, and nothing left."""

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import threading
from pathlib import Path

import pytest

from shoal.base.disk import temporary
from shoal.client.found.processes import job_processes
from tests.jobs.running import PATIENCE, RunningJob, arguments_of, until

pytestmark = [pytest.mark.job, pytest.mark.usefixtures("own")]


@pytest.fixture
def counting(numbered, tmp_path):
    """Start a job that stops in its third step; `more` as RunningJob takes it."""

    def start(name, command="train", **more):
        return RunningJob(
            command,
            tmp_path,
            name,
            environment={"GATES": "step-3"},
            model_def="counting.custom_model",
            training_data=numbered[0],
            batch_size=10,
            epochs=1000,  # far more than there is time for
            servers="2",
            **more,
        )

    return start


def stopped(ended):
    assert ended.code == 130, ended.out + ended.err
    assert ended.result["state"] == "stopped"
    assert "Traceback" not in ended.out + ended.err
    ledger = dict(ended.ledger)
    assert ledger.pop("total") == sum(ledger.values())


def test_ctrl_c_in_a_terminal(counting, numbered, tmp_path):
    ours, theirs = pty.openpty()
    shown = bytearray()

    def read():
        with contextlib.suppress(OSError):  # the terminal's other end was closed
            while piece := os.read(ours, 4096):
                shown.extend(piece)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        with counting("ctrl-c", terminal=theirs, workers="2") as job:
            job.at_gate("step-3")
            # Two batches before the gate, which the next heartbeat tells.
            job.wait_status("records", lambda status: status.ledger.trained_once >= 20)
            until("the live display", lambda: b"training" in shown)
            os.write(ours, b"\x03")
            until("the word that it stops", lambda: b"stopping" in shown)
            job.open("step-3")
            ended = job.ended()
    finally:
        os.close(theirs)
        reader.join()
        os.close(ours)
    stopped(ended)
    assert ended.ledger["total"] == 480_000
    assert ended.ledger["trained_once"] >= 20
    text = shown.decode(errors="replace")
    assert "stopping; interrupt again to kill the job at once" in text
    assert "Traceback" not in text


@pytest.mark.parametrize("seen_by", ["terminal", "head"])
def test_a_job_whose_output_nobody_reads_any_more_is_stopped(counting, tmp_path, seen_by):
    """Its terminal is closed, or `head` has its lines."""
    ours, theirs = pty.openpty() if seen_by == "terminal" else os.pipe()
    with counting(seen_by, **{"terminal" if seen_by == "terminal" else "out": theirs}) as job:
        shown = b""
        while b"training" not in shown:
            shown += os.read(ours, 4096)
        os.close(ours)
        if seen_by == "terminal":
            os.close(theirs)
        job.open("step-3")
        stopped(job.ended())


def test_a_second_ctrl_c_kills_the_job_and_the_report_has_its_time(counting):
    with counting("twice") as job:
        job.at_gate("step-3")
        job.kill("master", number=signal.SIGSTOP)
        job.process.send_signal(signal.SIGINT)
        until("word of it", lambda: "stopping" in Path(f"{job.folder.path}.out").read_text())
        job.process.send_signal(signal.SIGINT)
        assert job.process.wait(PATIENCE) == 130
    assert not job.folder.result.exists()
    report = Path(f"{job.folder.path}.out").read_text()
    (seconds,) = re.findall(r"^  seconds +([\d.]+)$", report, re.MULTILINE)
    assert float(seconds) > 0


def test_sigterm_while_workers_start(counting):
    with counting("sigterm") as job:
        job.wait_status("servers", lambda status: status.servers_alive == 2)
        job.process.send_signal(signal.SIGTERM)
        stopped(job.ended())


def test_a_server_killed_too_often_fails_the_job(counting):
    with counting("server-lost", relaunch_limit=0) as job:
        job.at_gate("step-3")
        job.kill("ps", 1)
        job.open("step-3")
        ended = job.ended()
        assert ended.code == 1
        message = ended.err.strip()
        assert message.startswith("Error: parameter server ps-1 died (signal 9, SIGKILL)")
        assert "--relaunch-limit 0 allows no further start" in message
        assert str(job.folder.logs / "ps-1.0.log") in message
        assert "Traceback" not in message
        assert ended.result["state"] == "failed"


def test_a_master_killed_too_often_is_told_and_takes_all_with_it(counting):
    with counting("master-lost", relaunch_limit=0) as job:
        job.wait_status("servers", lambda status: status.servers_alive == 2)
        job.kill("master")
        ended = job.ended()
    assert ended.code == 1
    assert "the job's master was killed by signal 9 without a result" in ended.err
    assert ended.result is None


def test_a_job_without_client_and_master_ends_by_itself(counting):
    """Both killed at once: nobody is left who would end the servers and the worker."""
    with counting("orphans", timeout_seconds=4.0) as job:
        job.at_gate("step-3")
        job.process.kill()
        job.process.wait()
        job.kill("master")
        assert len(job.left()) == 3
        job.open("step-3")
        until("the end of servers and worker", lambda: job.left() == [])
        until("the end of the seeds", lambda: job_processes(job.folder.config) == [])
        logs = {path.name: path.read_text() for path in job.folder.logs.glob("*.0.log")}
    assert set(logs) == {"ps-0.0.log", "ps-1.0.log", "worker-0.0.log"}
    for text in logs.values():
        assert "leaving the job: " in text


def test_a_name_is_taken_while_its_job_runs_also_without_its_command(counting):
    """A killed command leaves its master at work; the message says how to stop that."""
    with counting("orphan", overwrite=True) as job:
        job.at_gate("step-3")
        master = job.pid("master")
        temporary_folder = temporary.path_of(job.folder)
        assert (job.gate / "step-3.folder").read_text() == str(temporary_folder)
        (temporary_folder / "left_by_a_killed_worker.py").touch()
        message = (
            f"Error: job orphan is already running in {job.folder.path}; choose another "
            f"--job-name, or stop it with: kill {master}\n"
        )

        def refused_again():
            config = json.loads(job.folder.config.read_text())
            names = ("model_zoo", "model_def", "training_data", "job_name", "job_dir")
            again = subprocess.run(
                arguments_of("train", overwrite=True, **{name: config[name] for name in names}),
                capture_output=True,
                text=True,
                check=False,
            )
            assert (again.returncode, again.stdout) == (2, "")
            return again.stderr

        assert refused_again() == message
        job.process.kill()
        job.process.wait()
        assert refused_again() == message
        assert job.pid("master") == master

        os.kill(master, signal.SIGTERM)
        job.open("step-3")
        until("the job's end", lambda: job.left() == [])
        assert json.loads(Path(job.folder.result).read_text())["state"] == "stopped"
        assert not job.folder.master.exists()
        assert not temporary_folder.exists()
