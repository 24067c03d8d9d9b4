"""Clocks that are set while a job runs: no decision depends on the time of day."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from shoal.master import __main__ as master

ROOT = Path(__file__).parents[2]
FOLDERS = ("master", "ps", "proto", "worker", "shoal/checkpoints")
WALL = {
    "time": {"time", "time_ns", "localtime", "gmtime", "ctime", "strftime"},
    "datetime": {"now", "utcnow", "today"},
    "date": {"today"},
}
STAMPS = {
    # When an event was written, for people, and for how long no master was there.
    ("master/journal/journal.py", "time.time"),
    ("master/__main__.py", "time.time"),
    # In metrics.csv and the files for TensorBoard, for people.
    ("master/figures/recorder.py", "time.time"),
    ("master/figures/tensorboard.py", "time.time"),
    # The first number of a question for stacks, other than those of a master before this one.
    ("master/calls/stacks.py", "time.time_ns"),
    # In the Lease of a job on Kubernetes, for people: masters judge by their own monotonic clock.
    ("master/cluster/lease_keeper.py", "datetime.now"),
    # In the Events of a job on Kubernetes, for people.
    ("master/cluster/job_events.py", "datetime.now"),
    # In the status of a TrainJob of Kubeflow, for people.
    ("master/figures/kubeflow.py", "datetime.now"),
    # How long a Job has run, which Kubernetes counts from its own time of day: a failed Job is
    # given seconds more than that, and nothing of it but its end depends on them.
    ("master/cluster/masters_job.py", "datetime.now"),
    # When masters of a Job have started, in its annotations: no clock of one process knows that.
    ("master/cluster/job_end.py", "datetime.now"),
    # Whether a certificate has expired, to say so after it was refused.
    ("proto/wire/handshakes.py", "datetime.now"),
    # In the manifest of a checkpoint, for people.
    ("shoal/checkpoints/folders.py", "time.time"),
    # In the manifest of a delta, by which followers say its age, and in that of its model.
    ("master/calls/publish.py", "time.time"),
    ("worker/outputs/live_model.py", "time.time"),
}
"""What may read the time of day, each with a reason above."""


def wall_clocks(path):
    """The calls in a file that read the time of day."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module in WALL:
            names = {each.name for each in node.names}
            assert not names & WALL["time"], f"{path} imports {names} from {node.module}"
        if isinstance(node, ast.Attribute):
            base = node.value
            owner = base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", None)
            if node.attr in WALL.get(owner, ()):
                yield f"{owner}.{node.attr}"


def test_nothing_that_decides_reads_the_time_of_day():
    found = {
        (str(path.relative_to(ROOT)), call)
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*.py")
        for call in wall_clocks(path)
    }
    assert found == STAMPS


@pytest.fixture
def clocks(monkeypatch):
    """The time of day and the time since the machine's start, to be set."""

    class Clocks:
        wall, steady = 1_000_000.0, 500.0

    monkeypatch.setattr(master.time, "time", lambda: Clocks.wall)
    monkeypatch.setattr(master.time, "monotonic", lambda: Clocks.steady)
    return Clocks


def test_a_running_master_does_not_notice(clocks):
    clock = master.job_clock(None)
    assert clock() == 0.0
    clocks.steady += 10
    clocks.wall -= 1e6
    assert clock() == 10.0
    clocks.wall += 5e7
    assert clock() == 10.0


@pytest.mark.parametrize(("jump", "passed"), [(7.0, 7.0), (-3600.0, 0.0)])
def test_a_new_master_s_time_goes_on_and_never_backwards(clocks, jump, passed):
    last = clocks.wall, 30.0
    clocks.wall += jump
    clock = master.job_clock(last)
    assert clock() == 30.0 + passed
    clocks.steady += 1
    assert clock() == 31.0 + passed
