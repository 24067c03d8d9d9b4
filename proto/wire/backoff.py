"""The pauses before something that failed is tried again. Imports nothing of ours."""

from __future__ import annotations

import random

BACKOFF_FIRST = 0.05
BACKOFF_LIMIT = 2.0

STORAGE_FIRST = 0.2
STORAGE_LIMIT = 30.0
"""Seconds: a read or write of storage takes longer than a call, and so does its recovery."""

_DOUBLINGS = 16
"""More would change nothing, and 1,024 of them do not fit a float."""


def doubled_seconds(attempt: int, first: float, limit: float) -> float:
    """The pause before attempt number `attempt` (from 1): `first` doubled each time, to `limit`."""
    pause: float = min(limit, first * 2 ** min(attempt - 1, _DOUBLINGS))
    return pause


def backoff_seconds(
    attempt: int, first: float = BACKOFF_FIRST, limit: float = BACKOFF_LIMIT
) -> float:
    """Seconds to wait before attempt number `attempt` (from 1), with jitter.

    first, limit: of the pauses, in seconds, without the jitter.
    Exponential, so that many callers do not return to a struggling peer at once
    (M. Brooker, "Exponential Backoff And Jitter", 2015).
    """
    return random.uniform(0.5, 1.0) * doubled_seconds(attempt, first, limit)


def storage_seconds(attempt: int) -> float:
    """The pause before storage that has failed is tried again; otherwise as `backoff_seconds`."""
    return backoff_seconds(attempt, STORAGE_FIRST, STORAGE_LIMIT)
