"""`shoal stacks` beside a real job that stands still in the user's code."""

import re
import signal
import sys

import pytest

from tests.jobs.running import RunningJob, completed

pytestmark = pytest.mark.job


def stacks(job, *which):
    """What the command prints, and its exit code."""
    line = [sys.executable, "-m", "shoal", "stacks", str(job.folder.path), *map(str, which)]
    done = completed(line)
    assert "Traceback" not in done.stderr
    return done


def headings(text):
    return re.findall(r"^(\S.*?):", text, re.M)


def test_all_processes_tell_where_they_stand_and_a_stopped_one_is_named(numbered, tmp_path):
    with RunningJob(
        "train",
        tmp_path,
        "still",
        environment={"GATES": "feed-100"},
        model_def="stuck.custom_model",
        training_data=numbered[0],
        batch_size=10,
        servers="2",
    ) as job:
        job.at_gate("feed-100")
        done = stacks(job)
        assert done.returncode == 0, done.stdout + done.stderr
        assert headings(done.stdout) == ["master", "ps-0", "ps-1", "worker-0"]
        parts = dict(zip(headings(done.stdout), re.split(r"\n(?=\S)", done.stdout), strict=True))
        # The user's line, where it is, in the worker and nowhere else; the last call comes last.
        own = [line for line in parts["worker-0"].splitlines() if line.startswith("    > ")]
        # It stands in one of the two lines of a loop.
        assert re.search(r"in pass_gate: (time\.sleep\(0\.01\)|while not )", own[-1])
        assert "stuck.py, line" in own[-2]
        assert "in look: gates.pass_gate" in own[-2]
        assert not any("    > " in parts[each] for each in ("master", "ps-0", "ps-1"))
        assert "shoal.master.runner, line" in parts["master"]
        assert "shoal.ps.__main__, line" in parts["ps-0"]

        assert headings(stacks(job, "ps", 1).stdout) == ["ps-1"]
        done = stacks(job, "ps", 2)
        told = "Error: the job has no ps-2: it has 2 servers, from ps-0\n"
        assert (done.returncode, done.stderr) == (2, told)

        # One that does not answer is named, and the others are shown.
        job.kill("ps", 1, signal.SIGSTOP)
        done = stacks(job)
        job.kill("ps", 1, signal.SIGCONT)
        assert done.returncode == 1
        assert "worker-0: " in done.stdout
        assert "ps-1: no answer: " in done.stdout
        assert "Error: without an answer: ps-1: " in done.stderr
