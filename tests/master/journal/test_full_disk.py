"""A disk without room: nothing is answered that is not written, nothing good is lost."""

import subprocess
import sys


def run(what, folder):
    done = subprocess.run(
        [sys.executable, "-m", "tests.master.journal.full_disk", what, str(folder)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines(), done.stderr


def test_the_journal_waits_for_room_and_then_has_everything(tmp_path):
    (events,), told = run("journal", tmp_path)
    assert events == "['JobBegun', 'JobStopped']"
    assert "cannot be written" in told
    assert "the job waits for it" in told


def test_a_checkpoint_without_room_is_refused_and_the_one_before_stays(tmp_path):
    (refused, newest, later), _ = run("checkpoint", tmp_path)
    assert refused.startswith(f"CHECKPOINT_FAILED {tmp_path}")
    assert "File too large" in refused
    assert newest == "the newest good one is 1"
    assert later == "written"
