"""Pauses between attempts."""

from hypothesis import given
from hypothesis import strategies as st

from shoal.proto.wire.backoff import BACKOFF_FIRST, BACKOFF_LIMIT, backoff_seconds, doubled_seconds


@given(st.integers(1, 10**9))
def test_a_pause_is_bounded_at_any_attempt(attempt):
    """A server that is away for half an hour is tried more than a thousand times."""
    assert BACKOFF_FIRST / 2 <= backoff_seconds(attempt) <= BACKOFF_LIMIT


def test_pauses_grow():
    assert backoff_seconds(1) <= BACKOFF_FIRST
    assert backoff_seconds(20) >= BACKOFF_LIMIT / 2


def test_a_pause_without_jitter_doubles_to_its_limit():
    assert [doubled_seconds(attempt, 0.5, 3.0) for attempt in range(1, 6)] == [0.5, 1, 2, 3, 3]
    assert doubled_seconds(5_000, 1.0, 30.0) == 30.0
