"""`shoal profile` beside a real job whose feed computes."""

import os
import shutil
import subprocess
import sys

import pytest

from tests.cli.test_flame import boxes
from tests.jobs.running import RunningJob

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
        heartbeat_seconds=0.2,
        checkpoint_seconds=0,
    ) as job:
        job.wait_status("records", lambda status: status.ledger.trained_once)
        yield job


def profile(job, folder, *which, path=os.environ["PATH"]):
    line = [sys.executable, "-m", "shoal", "profile", str(job.folder.path), *map(str, which)]
    done = subprocess.run(
        line,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PATH": path},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def share(text, begin, kind):
    """The width of all calls of a kind whose names begin so, in pixels."""
    drawn = boxes(text).items()
    return sum(each[2] for name, each in drawn if name.startswith(begin) and each[3] == kind)


def assert_spins(text):
    """`feed` spends its time in spin; its share of the process depends on the machine."""
    assert share(text, "spin (bound.py)", "own") > 0.5 * share(text, "wait (bound.py)", "own") > 0


def test_a_process_tells_where_its_time_goes(spinning, tmp_path):
    # Without py-spy.
    said = profile(spinning, tmp_path, "worker", 0, "--seconds", 2, path="/nowhere")
    assert "wrote spinning-worker-0.svg: " in said
    assert "looks of the process at its own threads" in said
    text = (tmp_path / "spinning-worker-0.svg").read_text()
    assert "spinning, worker-0: 2 s" in text
    assert_spins(text)
    for role in ("ps", "master"):
        profile(spinning, tmp_path, role, "--seconds", 0.2, "--output", "x.svg", path="/nowhere")
        assert "spinning, " in (tmp_path / "x.svg").read_text()


@pytest.mark.skipif(shutil.which("py-spy") is None, reason="py-spy is not installed")
def test_py_spy_looks_where_it_may(spinning, tmp_path):
    said = profile(spinning, tmp_path, "worker", "--seconds", 2)
    text = (tmp_path / "spinning-worker-0.svg").read_text()
    # Where it may not look at other processes, the process looks itself.
    assert "(py-spy, 100 looks" in said or "looks of the process" in said
    assert_spins(text)
