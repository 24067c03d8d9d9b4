"""The time of workers in training by stage, and the part of a step for which the others wait.

A worker's stages run in threads of their own (worker/training/pipeline.py), so the time of the
slowest of them is that of a step, and the others wait. All shares here are of the workers' time in
training.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

DOMINANT = 0.5
"""Of the time: a stage that takes less is idle for longer than it works, and bounds nothing."""

APART = 1.2
"""By which the slowest stage is slower than the next: else a faster one would gain little."""

SLOW_WORKER = 2.0
"""By which a straggler's step takes longer than that of the others; two machines of one kind that
are busy with other work differ by less."""

SLOW_STEP_SECONDS = 0.002
"""A straggler's step takes at least so long: for shorter ones, what others wait may be all of their
time as it is measured, and anything is many times their own."""

COMPARABLE = 0.2
"""Of the usual time in training: a worker that came late has mostly compiled."""

FEEDS = ("feed", "feed_batch")
"""Stages that are the user's function of that name: a module has one of them."""

WAITING = ("wait for workers", "wait for update")
"""Stages in which a worker waits for other workers."""


@dataclass(frozen=True)
class WorkerTime:
    """Times of one worker. stages: seconds by stage, and `training`, which is all of them.

    steps: done in it, each with one push.
    """

    name: str
    stages: Mapping[str, float]
    steps: int

    @property
    def seconds(self) -> float:
        """In training."""
        return self.stages.get("training", 0.0)

    @property
    def step_seconds(self) -> float:
        """That one push takes, without waiting for other workers."""
        waited = sum(self.stages.get(name, 0.0) for name in WAITING)
        return max(0.0, self.seconds - waited) / self.steps if self.steps else math.inf

    def share(self, *stages: str) -> float:
        """The share of stages in its time."""
        return sum(self.stages.get(name, 0.0) for name in stages) / self.seconds


@dataclass(frozen=True)
class Loads:
    """The shares of a step's parts that are done by one thread each; input is always ahead."""

    input: float
    pull: float
    step: float
    push: float
    pipelined: bool

    @classmethod
    def of(cls, total: WorkerTime, *, pipelined: bool) -> Loads:
        """The loads in a worker's time."""
        return cls(
            total.share("read", *FEEDS),
            total.share("ids", "pull"),
            total.share("step"),
            total.share("push"),
            pipelined,
        )

    def named(self) -> list[tuple[str, float]]:
        """The parts, the largest first."""
        parts = {
            "reading and feed": self.input,
            "pulls": self.pull,
            "the model's step": self.step,
            "pushes": self.push,
        }
        return sorted(parts.items(), key=lambda each: -each[1])

    @property
    def calls(self) -> float:
        """To servers: in a pipeline pulls and pushes have a thread each."""
        return max(self.pull, self.push) if self.pipelined else self.pull + self.push

    def besides(self, part: float) -> float:
        """The time of a step, as a share of the present one, if `part` took no time."""
        if not self.pipelined:
            serial = self.pull + self.step + self.push
            return serial if part == self.input else max(self.input, serial - part)
        parts = [self.input, self.pull, self.step, self.push]
        return max((each for each in parts if each != part), default=0.0)

    def dominates(self, part: float) -> bool:
        """True if a step waits for this part."""
        return part >= DOMINANT and part >= APART * self.besides(part)


def together(workers: Sequence[WorkerTime]) -> WorkerTime:
    """Times of all workers as those of one."""
    stages: dict[str, float] = {}
    for worker in workers:
        for name, seconds in worker.stages.items():
            stages[name] = stages.get(name, 0.0) + seconds
    return WorkerTime("all workers", stages, sum(worker.steps for worker in workers))


def slowest(workers: Sequence[WorkerTime]) -> tuple[WorkerTime, list[WorkerTime]] | None:
    """A worker that is far slower than the others by its own time for a step, and the others.

    None if there is none, or too little is known. Those that trained for a short time count for
    neither.
    """
    if len(workers) < 2:
        return None
    usual = statistics.median(each.seconds for each in workers)
    known = [each for each in workers if each.seconds >= COMPARABLE * usual and each.steps]
    if len(known) < 2:
        return None
    slow = max(known, key=lambda each: each.step_seconds)
    others = [each for each in known if each is not slow]
    least = max(SLOW_WORKER * usual_step_seconds(others), SLOW_STEP_SECONDS)
    return None if slow.steps < 2 or slow.step_seconds < least else (slow, others)


def usual_step_seconds(workers: Sequence[WorkerTime]) -> float:
    """The median of their own times for a step."""
    return statistics.median(each.step_seconds for each in workers)


def time_in_words(seconds: float) -> str:
    """The time of a step, in words."""
    if seconds < 0.0005:
        return "less than 1 ms"
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
