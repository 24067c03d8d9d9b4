"""What the journal tells of a job's course is what the job went through, event by event."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from shoal.master.journal.events import RecordedJob
from shoal.master.journal.journal import Journal
from shoal.master.journal.told_course import CourseTeller, events_from
from tests.master.random_jobs import RandomJob, plain
from tests.master.strategies import config


def told_by(configuration, events):
    lines = []
    teller = CourseTeller(RecordedJob(configuration, lambda _: None), lines.append)
    for number, event in enumerate(events):
        teller.follow(replace(event, wall=100.0 + number))
    return lines


@pytest.mark.parametrize("seed", [0, 2, 3])  # in which somebody dies
def test_a_course_ends_where_the_job_does(seed):
    configuration = config(workers="3", servers="2", epochs=2, relaunch_limit=20)
    world = RandomJob(configuration, seed)
    for _ in range(300):
        world.step()
    lines = told_by(configuration, world.events)
    assert [line["t"] for line in lines] == sorted(line["t"] for line in lines)
    processes = {line["process"]: line for line in lines if "process" in line}
    members = [*world.job.members.workers.values(), *world.job.members.servers.values()]
    assert {name: line["deaths"] for name, line in processes.items()} == {
        str(member.id): member.deaths for member in members
    }
    assert sum(member.deaths for member in members) > 0
    for member in world.job.members.workers.values():
        held = world.job.members.workers[member.id].held
        assert processes[str(member.id)]["task"] == (held.id if held else 0)
    told = [line["message"] for line in lines if "message" in line]
    assert len(told) == len(set(told))
    # The newest that the job still has were all told.
    assert set(world.job.record.messages) <= set(told)
    states = [line["state"] for line in lines if line.keys() == {"t", "state"}]
    assert states[-1] == world.job.phases.phase.state


@pytest.fixture
def journal(tmp_path):
    """The journal of a job in the folder, and the job that goes on with it."""
    configuration = config(workers="2")
    world = RandomJob(configuration, 3)
    journal = Journal(tmp_path / "journal", configuration)
    yield journal, world
    journal.close()


def write(journal, events):
    for event in events:
        journal.add(event)
    journal.commit()


def test_events_are_read_once_while_the_journal_grows(journal):
    file, world = journal
    new = events_from(file.path)
    found = []
    for _ in range(6):
        known = len(world.events)
        for _ in range(30):
            world.step()
        write(file, world.events[known:])
        found += new()
        assert found == list(map(plain, world.events))
        assert list(new()) == []


def test_the_command_prints_lines_and_an_empty_one_at_the_end(journal, tmp_path):
    file, world = journal
    for _ in range(60):
        world.step()
    write(file, world.events)
    command = [sys.executable, "-m", "shoal.master.journal.told_course", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    *lines, end = map(json.loads, done.stdout.splitlines())
    assert end == {}
    assert lines == told_by(config(workers="2"), world.events)


def test_a_folder_without_a_journal_is_refused(tmp_path):
    command = [sys.executable, "-m", "shoal.master.journal.told_course", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "there is no journal" in done.stderr
    assert "Traceback" not in done.stderr
