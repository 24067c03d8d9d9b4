"""State machines as tables: which states may follow each state.

Owns the check of a step. The owner of a machine keeps its state, an enum, and checks each step
before it takes it.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import Generic, TypeVar

from shoal.errors import Error

State = TypeVar("State", bound=enum.Enum)


class InvalidTransitionError(Error):
    """Something was asked to go where it cannot go from here: a bug of ours."""

    def __init__(self, subject: str, source: enum.Enum, target: enum.Enum) -> None:
        super().__init__(subject, source, target)
        self.subject = subject
        self.source = source
        self.target = target

    def __str__(self) -> str:
        return f"{self.subject} cannot go from {self.source.name} to {self.target.name}"


class Transitions(Generic[State]):
    """The table of one state machine.

    subject: what has the states, in words, for errors. following: state -> the states that may
    follow it; a state that is not named has none.
    """

    def __init__(self, subject: str, following: Mapping[State, Iterable[State]]) -> None:
        self._subject = subject
        self._following = {source: frozenset(targets) for source, targets in following.items()}

    def after(self, source: State) -> frozenset[State]:
        """The states that may follow `source`."""
        return self._following.get(source, frozenset())

    def step(self, source: State, target: State) -> State:
        """Return `target`. Raises InvalidTransitionError unless it may follow `source`."""
        if target not in self.after(source):
            raise InvalidTransitionError(self._subject, source, target)
        return target
