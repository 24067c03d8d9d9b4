"""News that a job hears between its events, told apart from the state that events set. No I/O.

A journal has the events of a job and no more. So whatever an event leads to may follow from what
events have set, and from what each event carries of what was heard before it, as journal/events.py
has it. A class names its other fields by `hears`. The tests let no event read one, but in a method
that is marked by `uses_heard`: it sums up or orders, and no other event follows from that.
"""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import Any, TypeVar

Class = TypeVar("Class", bound=type)
Method = TypeVar("Method", bound=Callable[..., Any])

HEARD: dict[type, frozenset[str]] = {}
"""By class, the names of the fields that calls set which are no events."""

USERS: set[CodeType] = set()
"""The methods that may read them as part of an event."""


def hears(*names: str) -> Callable[[Class], Class]:
    """Name the fields of a class that no event sets, or that one only puts back."""

    def named(of: Class) -> Class:
        HEARD[of] = frozenset(names)
        return of

    return named


def uses_heard(method: Method) -> Method:
    """Let a method read such fields as part of an event."""
    USERS.add(method.__code__)
    return method
