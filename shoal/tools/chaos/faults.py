"""Faults: what is done to which process of a job, and when. No I/O.

Owns the kinds of faults, and draws what is random. parsing.py reads faults from text, and
watcher.py carries them out.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from shoal.config.flags import flag

PHASES = ("starting", "training", "saving", "evaluating", "exporting")
"""States of a training job, in their order."""

KILL, PAUSE, CUT, FILL = "kill", "pause", "cut", "fill"
HANG, STORAGE, HALF_SENT, NO_ROOM = "hang", "storage", "half-sent", "no-room"
SCALE, LEAVE = "scale", "leave"

FAIL = "fail"
"""What storage may do beside HANG."""

DATA, CHECKPOINTS, OUTPUT = STORAGES = ("data", "checkpoints", "output")
"""Kinds of storage, in place of a process: what the job is trained and evaluated with, what it
keeps, and what it is there for."""

HALF_SENT_COUNT = 8
"""Requests that are sent by half: as many as a server has threads for pushes."""

FIRST, LAST = 0.02, 0.95
"""The part of a job's steps in which what is random happens."""

TOGETHER = 0.25
"""The share of random kills that come at the same moment as the one before."""

JOB = "job"
"""In place of a process: all of them at once, the client too. The job is then resumed."""


@dataclass(frozen=True, order=True)
class Target:
    """A process of a job, or all of them, or a kind of storage.

    role: worker, ps, master, job, data, checkpoints or output.
    """

    role: str
    index: int = 0

    def __str__(self) -> str:
        return f"{self.role}:{self.index}" if self.role in ("worker", "ps") else self.role

    @property
    def process(self) -> str:
        """Its name elsewhere: worker-0."""
        return f"{self.role}-{self.index}"


@dataclass(frozen=True)
class When:
    """The moment when a fault is due; with none of the first four, at once.

    step: model version (pushes per server; with --sync, updates). random: at a step that
    is drawn. fraction: of the job's steps, drawn. phase: one of `PHASES`.
    point: one of `POINTS`, which the process must then reach; "" for none.
    """

    step: int | None = None
    random: bool = False
    fraction: float | None = None
    phase: str = ""
    point: str = ""

    def __str__(self) -> str:
        parts = [f"step={self.step}"] * (self.step is not None)
        parts += ["random"] * self.random
        parts += [f"{self.fraction or 0:.0%} of the steps"] * (self.fraction is not None)
        parts += [f"phase={self.phase}"] * bool(self.phase)
        parts += [f"point={self.point}"] * bool(self.point)
        return ",".join(parts)


@dataclass(frozen=True)
class Fault:
    """One thing that is done to a job. The class says what it is; there is one for each kind.

    targets: one, or the two ends of a cut. seconds: how long it lasts; 0 for what is over at once,
    inf until the process is killed.
    """

    kind: ClassVar[str]

    targets: tuple[Target, ...]
    when: When
    seconds: float = 0.0

    @property
    def details(self) -> list[str]:
        """The details of this kind of fault, in words."""
        return []

    def __str__(self) -> str:
        lasts = f" for {self.seconds:g} s" if self.seconds else ""
        lasts = " for ever" if self.seconds == math.inf else lasts
        what = f"{self.kind} {'-'.join(map(str, self.targets))}{lasts}"
        return ", ".join([what, *self.details])


@dataclass(frozen=True)
class Kill(Fault):
    """A process is killed, or the whole job, which is then resumed.

    Of the job, while all its processes are down: damage: pairs of flip or remove and one of
    damage.FILES. changes: of the configuration to resume with, pairs of field and value.
    """

    kind = KILL

    damage: tuple[tuple[str, str], ...] = ()
    changes: tuple[tuple[str, str], ...] = ()

    @property
    def details(self) -> list[str]:
        """See Fault."""
        down = [f"{verb} {what}" for verb, what in self.damage]
        return down + [f"{flag(name)} {value}" for name, value in self.changes]


@dataclass(frozen=True)
class Pause(Fault):
    """A process is stopped (SIGSTOP), and goes on afterwards."""

    kind = PAUSE


@dataclass(frozen=True)
class Cut(Fault):
    """Two processes cannot reach each other."""

    kind = CUT


@dataclass(frozen=True)
class Fill(Fault):
    """A process finds its disk full."""

    kind = FILL


@dataclass(frozen=True)
class Hang(Fault):
    """A process hangs at a point, or, without one, handles no call."""

    kind = HANG


@dataclass(frozen=True)
class DisturbStorage(Fault):
    """Calls to a kind of storage go wrong. how: FAIL or HANG. every: each call of this number."""

    kind = STORAGE

    how: str = FAIL
    every: int = 1

    @property
    def details(self) -> list[str]:
        """See Fault."""
        return [f"{self.how} every {self.every}"]


@dataclass(frozen=True)
class SendHalves(Fault):
    """Requests are sent to a server by half. count: of the requests."""

    kind = HALF_SENT

    count: int = HALF_SENT_COUNT

    @property
    def details(self) -> list[str]:
        """See Fault."""
        return [f"{self.count} requests"]


@dataclass(frozen=True)
class LeaveNoRoom(Fault):
    """A process is killed, and there is no room to start it again."""

    kind = NO_ROOM


@dataclass(frozen=True)
class Scale(Fault):
    """The job is to have so many servers. Of the soak only: `shoal scale` is there for people."""

    kind = SCALE

    servers: int = 1

    @property
    def details(self) -> list[str]:
        """See Fault."""
        return [f"to {self.servers} servers"]


@dataclass(frozen=True)
class Leave(Fault):
    """A server is told to end (SIGTERM), as before its machine goes: it gives its rows away."""

    kind = LEAVE


def random_kills(count: int, seed: int, workers: int, servers: int) -> list[Fault]:
    """Kills at random moments; each role is as likely as the others.

    Some come at the same moment as the one before and meet another process.
    """
    draw = random.Random(f"kills {seed}")
    faults: list[Fault] = []
    for moment in sorted(draw.uniform(FIRST, LAST) for _ in range(count)):
        when = When(fraction=moment)
        target = _draw_target(draw, workers, servers)
        if faults and draw.random() < TOGETHER:
            when = faults[-1].when
            while target == faults[-1].targets[0]:
                target = _draw_target(draw, workers, servers)
        faults.append(Kill((target,), when))
    return faults


def _draw_target(draw: random.Random, workers: int, servers: int) -> Target:
    role = draw.choice(("worker", "ps", "master"))
    count = {"worker": workers, "ps": servers, "master": 1}[role]
    return Target(role, draw.randrange(count))


def drawn(faults: Sequence[Fault], seed: int) -> list[Fault]:
    """The faults, with a moment for each that is to be at random."""
    draw = random.Random(f"moments {seed}")
    return [
        replace(fault, when=replace(fault.when, random=False, fraction=draw.uniform(FIRST, LAST)))
        if fault.when.random
        else fault
        for fault in faults
    ]
