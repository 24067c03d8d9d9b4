"""Faults: what is to be done to which process of a job, and when. No I/O.

Owns drawing what is random. Reading them from text is parsing.py's.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from shoal.config.flags import flag

PHASES = ("starting", "training", "saving", "evaluating", "exporting")
"""States of a training job, in their order."""

KILL, PAUSE, CUT, FILL = "kill", "pause", "cut", "fill"
HANG, STORAGE, HALF_SENT, NO_ROOM = "hang", "storage", "half-sent", "no-room"

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
    """When a fault is due; with none of the first four, at once.

    step: model version (pushes per server; with --sync, updates). random: at a step that is
    to be drawn. fraction: of the job's steps, drawn. phase: one of `PHASES`.
    point: of `POINTS`, that is to be come to from then on; "" for none.
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
    """One thing to be done. targets: one, or the two ends of a cut.

    seconds: it lasts; inf: until its process is killed.

    Of the job, while all its processes are down: damage, (flip or remove, what of
    damage.FILES) each; changes, (field, value) of the configuration to resume with.

    Of storage: how, FAIL or HANG, and every, each call of this number. count: half-sent requests.
    """

    kind: str
    targets: tuple[Target, ...]
    when: When
    seconds: float = 0.0
    damage: tuple[tuple[str, str], ...] = ()
    changes: tuple[tuple[str, int], ...] = ()
    how: str = ""
    every: int = 1
    count: int = HALF_SENT_COUNT

    def __str__(self) -> str:
        lasts = f" for {self.seconds:g} s" if self.seconds else ""
        lasts = " for ever" if self.seconds == math.inf else lasts
        down = [f"{verb} {what}" for verb, what in self.damage]
        down += [f"{flag(name)} {value}" for name, value in self.changes]
        down += [f"{self.how} every {self.every}"] * bool(self.how)
        down += [f"{self.count} requests"] * (self.kind == HALF_SENT)
        return ", ".join([f"{self.kind} {'-'.join(map(str, self.targets))}{lasts}", *down])


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
        faults.append(Fault(KILL, (target,), when))
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
