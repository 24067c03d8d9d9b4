"""A journal that lost its end, or has another one, is refused by name; nothing is trained twice."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter

import pytest

from shoal.master.journal import records, segments
from shoal.master.journal.reading import read
from shoal.master.journal.segments import Segment
from tests.jobs.results import SERIAL, applied
from tests.jobs.running import RunningJob, audited, resume, until

pytestmark = pytest.mark.job


def job(numbered, tmp_path, gates, **changes):
    return RunningJob(
        "train",
        tmp_path,
        "told",
        environment={"GATES": gates},
        **{
            "training_data": numbered[0],
            "output": tmp_path / "out",
            "servers": "1",
            "workers": "1",
            "num_minibatches_per_task": 4,
            **SERIAL,
            **changes,
        },
    )


def newest(folder):
    return segments.segments(folder.journal)[-1]


def flip(path):
    """Bits of the last event."""
    content = bytearray(path.read_bytes())
    content[-20] ^= 8
    path.write_bytes(content)


def cut(path, events):
    """Take the last events out as if they had never been there."""
    segment = Segment(path)
    kept = segment.last.number - events - segment.header.before.number
    at = segment._begin
    for (_, length, *_), _ in list(segment._records())[:kept]:
        at += records.HEAD_BYTES + length
    path.write_bytes(path.read_bytes()[:at])
    assert Segment(path).last.number == segment.last.number - events


def remove(path):
    path.unlink()


def heard(job):
    """The number of the last event that the server has heard of."""
    return job.server_status(0).journal.number


def methods(folder):
    """How many events there are, by class; "leased": with a task."""
    events = list(read(folder.journal)[1])
    return Counter([*(type(e.event) for e in events), *("leased" for e in events if e.task)])


def the_model_has_each_record_once(folder, tmp_path):
    report = audited(folder)
    assert report["records"]["once"] == report["records"]["total"] == 480
    total, counts = applied(tmp_path / "out")
    assert set(total) == {480.0}
    assert set(counts) == set(range(480))
    assert set(counts.values()) == {1}


FORGOTTEN = "(ends with event .* has seen event|the journal's end is missing)"
"""Which of them goes by what the servers had heard when they were killed."""


@pytest.mark.parametrize(
    ("damage", "steps", "why"),
    [
        (flip, 8, r"000\d\d\d.journal is damaged at byte"),
        (remove, 8, r"journal is damaged: 000\d\d\d.journal is missing"),
        (lambda path: cut(path, 2), 8, FORGOTTEN),
        (lambda path: cut(path, 1), 1000, FORGOTTEN),
    ],
    ids=["flipped", "removed", "cut", "cut, without a checkpoint"],
)
def test_with_a_damaged_journal_nothing_is_resumed(numbered, tmp_path, damage, steps, why):
    """X2: half of the records were trained twice, and nobody said so."""
    fields = {"durability": "file", "checkpoint_steps": steps}
    # The last two stand in one task: nothing happens between them but pushes, of which the log has
    # what the server had heard.
    with job(numbered, tmp_path, "step-10 step-18 step-20", **fields) as running:
        for count, gate in enumerate(("step-10", "step-18"), 1):
            running.at_gate(gate)
            if steps < 20:
                running.wait_taken(count)
            written = Segment(newest(running.folder)).last.number
            until("ps-0", lambda written=written: heard(running) >= written)
            running.open(gate)
        running.at_gate("step-20")
        running.kill_whole()
        path = newest(running.folder)
        assert (path.name > "000001.journal") == (steps < 20)
        copy = tmp_path / "copy"
        shutil.copy(path, copy)
        damage(path)
        refused = resume(running.folder)
        assert refused.returncode == 1, refused.stdout + refused.stderr
        assert_matches(why, refused.stderr)
        shutil.copy(copy, path)
        done = resume(running.folder)
        assert done.returncode == 0, done.stdout + done.stderr
        the_model_has_each_record_once(running.folder, tmp_path)


def test_a_job_that_cannot_be_resumed_keeps_its_result(numbered, tmp_path):
    with job(numbered, tmp_path, "step-20", relaunch_limit=0) as running:
        running.at_gate("step-20")
        running.kill("worker")
        assert running.ended().result["state"] == "failed"
        before = running.folder.result.read_bytes()
        path = newest(running.folder)
        copy = tmp_path / "copy"
        shutil.copy(path, copy)
        flip(path)
        refused = resume(running.folder)
        assert refused.returncode == 1, refused.stdout + refused.stderr
        assert "journal is damaged" in refused.stderr
        assert running.folder.result.read_bytes() == before
        shutil.copy(copy, path)
        done = resume(running.folder)
        assert done.returncode == 0, done.stdout + done.stderr
        assert running.result()["state"] == "succeeded"
        the_model_has_each_record_once(running.folder, tmp_path)


def assert_matches(pattern, text):
    assert re.search(pattern, text), text


def start_master(folder):
    return subprocess.run(
        [sys.executable, "-m", "shoal.master", "--config", folder.config],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "SHOAL_TEST_GATE": f"{folder.path}.gate"},
    )


def test_a_master_alone_does_not_go_on_where_others_know_more(numbered, tmp_path):
    """It gives out no task; with the undamaged journal the next one does."""
    with job(numbered, tmp_path, "step-20") as running:
        running.at_gate("step-20")
        running.wait_told()
        os.kill(running.process.pid, signal.SIGKILL)
        running.process.wait()
        running.kill("master")
        path = newest(running.folder)
        copy = tmp_path / "copy"
        shutil.copy(path, copy)
        flip(path)
        damaged = start_master(running.folder)
        assert damaged.returncode == 2
        assert f"Error: {path} is damaged at byte" in damaged.stderr
        shutil.copy(copy, path)
        cut(path, 1)
        before = methods(running.folder)["leased"]
        refused = start_master(running.folder)
        assert refused.returncode == 2, refused.stderr
        assert methods(running.folder)["leased"] == before
        failure = running.result()["failure"]["message"]
        assert f"the journal {running.folder.journal} ends with event" in failure
        assert_matches(r"(ps|worker)-0 has seen event", failure)
        until("the end of all processes", lambda: not running.left())
