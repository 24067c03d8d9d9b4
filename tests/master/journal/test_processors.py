"""Jobs decide the same, and their journals are replayed to the same, on every processor."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.master.journal.events import RecordedJob
from shoal.master.journal.records import entry_of, payload_of
from tests.master.journal.test_journal import of_a_random_job
from tests.master.random_jobs import RandomJob, differences, state
from tests.processors import LEVELS, switches

SEEDS = range(16)
STEPS = 250

PROGRAM = """
import pickle, sys
import tests.master.journal.test_processors as here

journals = pickle.load(sys.stdin.buffer) or [here.events_of(seed) for seed in here.SEEDS]
pickle.dump([here.seen(*each) for each in enumerate(journals)], sys.stdout.buffer)
"""


def configuration(seed):
    return of_a_random_job(seed, sync=bool(seed % 2), evaluation_steps=7)


def events_of(seed):
    """What happens to the job of this seed."""
    world = RandomJob(configuration(seed), seed)
    for _ in range(STEPS):
        world.step()
    return [payload_of(event) for event in world.events]


def seen(seed, events):
    """What happens to the job of this seed here, and the state that a journal gives."""
    job = RecordedJob(configuration(seed), lambda event: None)
    job.replay(map(entry_of, events))
    return events_of(seed), state(job)


def asked(journals, **variables):
    """`seen` in another process; without journals by its own."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=pickle.dumps(journals),
        env=os.environ | variables,
        cwd=Path(__file__).parents[3],
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr.decode()
    return pickle.loads(done.stdout)


@pytest.fixture(scope="module")
def here():
    return asked([])


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
def test_another_processor_gives_the_same_job(level, here):
    journals = [events for events, _ in here]
    assert sum(map(len, journals)) > 50 * len(SEEDS)
    there = asked(journals, **switches(level))
    assert [events for events, _ in there] == journals
    for (_, found), (_, expected) in zip(there, here, strict=True):
        assert differences(found, expected) == []
