"""Events of a job are decided by events alone: what reads anything else while one is, fails."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

from shoal.master.job.events import Event
from shoal.master.job.heard import HEARD, USERS
from shoal.master.job.job import Job

FIELDS_HEARD = frozenset().union(*HEARD.values())
"""The names of the fields that a job may have otherwise than its events make it."""


class _Deciding(threading.local):
    depth = 0


_deciding = _Deciding()


def _may_read(frame: FrameType | None) -> bool:
    """Whether a method that may read what is heard is among the callers of this one."""
    while frame is not None and frame.f_code.co_name != "_deciding_method":
        if frame.f_code in USERS:
            return True
        frame = frame.f_back
    return False


def _guarded(names: frozenset[str]) -> Callable[[Any, str], Any]:
    def read(self: Any, name: str) -> Any:
        if name in names and _deciding.depth and not _may_read(sys._getframe(1)):
            raise AssertionError(f"an event reads {type(self).__name__}.{name}, which none sets")
        return object.__getattribute__(self, name)

    return read


@contextmanager
def by_events_alone() -> Iterator[None]:
    """Have each event of a job fail if it reads a field that no event sets."""
    on = Job.on

    def _deciding_method(job: Job, event: Event[Any], now: float) -> Any:
        _deciding.depth += 1
        try:
            return on(job, event, now)
        finally:
            _deciding.depth -= 1

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Job, "on", _deciding_method)
        for of, names in HEARD.items():
            patch.setattr(of, "__getattribute__", _guarded(names))
        yield
