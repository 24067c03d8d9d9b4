"""A worker that is far slower than the others is replaced, once, in a job that scales itself."""

import pytest

from shoal.master.journal.events import RecordedJob
from tests.master.job.scaling.test_autoscaling import Played
from tests.master.strategies import w

FIXED = {"workers": "3:3"}


def replacements(played):
    return [each for each in played.job.record.messages if "replaced" in each]


def with_slow_one(index=1, factor=4, **changes):
    """A job of three workers, of which one is slower than the others."""
    return Played(
        lambda count: 50.0 * count,
        slow=lambda each, _: factor if each == w(index) else 1,
        **FIXED | changes,
    )


def incarnation(played, index):
    return played.job.members.workers[w(index)].incarnation


@pytest.mark.parametrize(("factor", "replaced"), [(4, 1), (1.5, 0)])
def test_a_worker_of_less_than_half_the_speed_is_replaced(factor, replaced):
    played = with_slow_one(factor=factor)
    played.seconds(25)
    assert replacements(played) == []
    played.seconds(300)
    # Its machine is slow still: it is replaced once.
    assert [incarnation(played, each) for each in range(3)] == [0, replaced, 0]
    assert len(replacements(played)) == replaced
    for message in replacements(played):
        assert "worker-1 is replaced: its step takes 80 ms, that of the others 20 ms, " in message
        assert "for 3 times 10 s" in message
    assert played.job.members.workers[w(1)].deaths == 0


def test_one_that_is_slow_now_and_then_stays():
    played = None

    def slow(worker, _):
        # In two windows of three.
        return 4 if worker == w(1) and played is not None and played.now % 40 < 25 else 1

    played = Played(lambda count: 50.0 * count, slow=slow, **FIXED)
    played.seconds(600)
    assert replacements(played) == []


def test_dry_says_so_once():
    played = with_slow_one(autoscale="dry")
    played.seconds(300)
    (message,) = replacements(played)
    assert "worker-1 would be replaced" in message
    assert incarnation(played, 1) == 0


def test_nobody_is_replaced_of_a_fixed_number_or_alone():
    for fields in ({"workers": "3"}, {"workers": "1:1"}):
        played = with_slow_one(0, **fields)
        played.seconds(300)
        assert replacements(played) == []


def test_another_master_knows_who_was_replaced():
    played = with_slow_one()
    played.seconds(60)
    assert incarnation(played, 1) == 1
    again = RecordedJob(played.config, lambda _: None)
    again.replay(played.events)
    assert incarnation(played, 1) == again.members.workers[w(1)].incarnation
    played.job = again
    played.seconds(300)
    assert incarnation(played, 1) == 1
