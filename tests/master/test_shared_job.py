"""When what has changed a job is written down."""

import pytest

from shoal.master.job.events import JobStopped, Noted
from shoal.master.shared_job import SharedJob
from tests.master.strategies import begun


@pytest.fixture
def shared():
    """A job, and how often it was written and its runner woken."""
    made = SharedJob(begun(), clock=lambda: 1.0, commit=lambda _: did.append("written"))
    did = []
    made.listen(lambda: did.append("woken"))
    made.look(lambda job, _: job.take_instructions())
    did.clear()
    return made, did


def test_what_is_noted_is_written_with_the_next_event(shared):
    job, did = shared
    job.note(Noted("seen"))
    assert did == []
    assert "seen" in job.look(lambda job, _: job.record.messages)[-1]
    job.apply(lambda *_: None)
    assert did == ["written"]


def test_what_is_noted_is_written_before_anything_is_done_because_of_it(shared):
    job, did = shared
    job.note(JobStopped("by the user"))
    assert did == ["written", "woken"]
