"""Where the time of workers in training went, and for which part of a step the others wait.

A worker's stages run in threads of their own (worker/training/pipeline.py), so the time of the
slowest of them is that of a step, and the others wait. All shares here are of the workers' time in
training.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

DOMINANT = 0.5
"""Of the time: a stage that takes less is idle for longer than it works, and bounds nothing."""

APART = 1.2
"""By which the slowest stage is slower than the next: else a faster one would gain little."""

WAITING = ("wait for workers", "wait for update")
"""Stages in which a worker waits for other workers."""


@dataclass(frozen=True)
class WorkerTime:
    """Of one worker. stages: seconds by stage, and `training`, which is all of them.

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
        """Of stages in its time."""
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
        """Those of a worker's time."""
        return cls(
            total.share("read", "feed"),
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
            "TensorFlow's step": self.step,
            "pushes": self.push,
        }
        return sorted(parts.items(), key=lambda each: -each[1])

    @property
    def calls(self) -> float:
        """To servers: in a pipeline pulls and pushes have a thread each."""
        return max(self.pull, self.push) if self.pipelined else self.pull + self.push

    def besides(self, part: float) -> float:
        """What a step would take, as a share of the present one, if `part` took no time."""
        if not self.pipelined:
            serial = self.pull + self.step + self.push
            return serial if part == self.input else max(self.input, serial - part)
        parts = [self.input, self.pull, self.step, self.push]
        return max((each for each in parts if each != part), default=0.0)

    def dominates(self, part: float) -> bool:
        """Whether it is this part that a step waits for."""
        return part >= DOMINANT and part >= APART * self.besides(part)


def together(workers: Sequence[WorkerTime]) -> WorkerTime:
    """Of all workers as of one."""
    stages: dict[str, float] = {}
    for worker in workers:
        for name, seconds in worker.stages.items():
            stages[name] = stages.get(name, 0.0) + seconds
    return WorkerTime("all workers", stages, sum(worker.steps for worker in workers))
