"""`shoal profile` beside a real job whose feed computes."""

import os
import subprocess
import sys

import pytest

from shoal.client import profile
from shoal.client.profile import record
from shoal.errors import UserError
from tests.jobs.running import RunningJob
from tests.waiting import until

pytestmark = [pytest.mark.job, pytest.mark.slow]


@pytest.fixture
def spinning(session_folder, tmp_path):
    path = session_folder / "spun.csv"
    path.write_text("id\n" + "".join(f"{i}\n" for i in range(5000)))
    with RunningJob(
        "train",
        tmp_path,
        "spinning",
        environment={"BOUND": "spin"},
        model_def="bound.custom_model",
        training_data=path,
        batch_size=50,
        epochs=1000,  # far more than there is time for
        checkpoint_seconds=0,
    ) as job:
        job.wait_status("records", lambda status: status.ledger.trained_once)
        yield job


def profiled(job, folder, *which, path=""):
    """py-spy is beside the Python that runs the tests."""
    path = path or f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
    line = [sys.executable, "-m", "shoal", "profile", str(job.folder.path), *map(str, which)]
    return subprocess.run(
        line,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PATH": path},
    )


@pytest.fixture
def allowed():
    """Skips where the kernel lets no process look at another one, as root or not."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        program = os.path.join(os.path.dirname(sys.executable), "py-spy")
        line = [program, "dump", "--pid", str(process.pid)]
        done = until("Python", lambda: looked(line, process.pid))
        process.communicate(b"\n")
    if done.returncode:
        pytest.skip(f"py-spy may not look at processes here: {done.stderr}")


def looked(line, process):
    """What py-spy says, once the process runs Python."""
    with open(f"/proc/{process}/maps") as file:
        if "libpython" not in (text := file.read()) and "/python3" not in text:
            return None
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    return None if "Failed to find" in done.stderr else done


def test_a_process_tells_where_its_time_goes(allowed, spinning, tmp_path):
    done = profiled(spinning, tmp_path, "worker", "--seconds", 2)
    assert (done.returncode, done.stdout) == (0, "wrote spinning-worker-0.svg\n"), done.stderr
    assert "spin (bound.py" in (tmp_path / "spinning-worker-0.svg").read_text()
    for which, why in (
        (("worker", 1), "no worker-1: it has 1 worker"),
        (("master", 1), "a job has one master: master 0"),
    ):
        done = profiled(spinning, tmp_path, *which)
        assert (done.returncode, why in done.stderr) == (2, True), done.stderr
    done = profiled(spinning, tmp_path, "ps", path="/nowhere")
    assert "py-spy, which looks at the process, is missing: pip install py-spy" in done.stderr


def test_a_py_spy_that_hangs_or_fails_is_told(tmp_path, monkeypatch):
    program = tmp_path / "py-spy"
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(profile, "SPY_SECONDS", 0.1)
    for text, told in (
        ("exec sleep 600", "py-spy has not ended 0.1 s after its time"),
        ("echo no right >&2; exit 1", "py-spy cannot look at process 1: no right. If it may not"),
    ):
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
        with pytest.raises(UserError, match=told):
            record(1, 0.0, tmp_path / "x.svg")
