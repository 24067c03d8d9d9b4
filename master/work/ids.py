"""Identities of a job's processes.

A worker's id and a server's id are different types, so that one cannot pass for
the other. An incarnation counts the starts of one id, from 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

FIRST_INCARNATION = 0


@dataclass(frozen=True, order=True, slots=True)
class WorkerId:
    """A worker, by its dense index from 0."""

    index: int
    role: ClassVar[str] = "worker"

    def __str__(self) -> str:
        return f"{self.role}-{self.index}"


@dataclass(frozen=True, order=True, slots=True)
class ServerId:
    """A parameter server, by its dense index from 0."""

    index: int
    role: ClassVar[str] = "ps"

    def __str__(self) -> str:
        return f"{self.role}-{self.index}"


ProcessId = WorkerId | ServerId


@dataclass(frozen=True)
class Start:
    """One start of a process."""

    process: ProcessId
    incarnation: int

    def __str__(self) -> str:
        return f"{self.process}.{self.incarnation}"
