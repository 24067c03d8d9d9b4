"""The record of a job's course for its status and result.

Owns throughput, loss, times and the messages; decides nothing. No clock of its own.
"""

from __future__ import annotations

import logging
import math
import statistics
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

WINDOW_SECONDS = 10.0
"""Over which throughput and loss are averaged: long enough to smooth tasks whose
records are acknowledged all at once, short enough to show a death."""

MESSAGES = 50
"""Kept of the warnings, and of all other messages; the master's log has them all."""

WARNING = "warning: "
"""In a message that is one."""

LOSSES = 128
"""Kept of the course of the loss at most: enough to tell a rise from noise."""

Part = tuple[float, int]
"""Of the course of the loss: the sum over its batches, and their number."""

logger = logging.getLogger(__name__)


class Throughput:
    """A rate over the last `WINDOW_SECONDS`, from a count that grows.

    If the count falls, as records are to be trained again, the rate begins anew from there.
    """

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()

    def sample(self, now: float, count: int) -> None:
        """The count is `count` now."""
        if self._samples and count < self._samples[-1][1]:
            self._samples.clear()
        self._samples.append((now, count))
        # The oldest sample kept is the newest one outside the window.
        while len(self._samples) > 2 and now - self._samples[1][0] >= WINDOW_SECONDS:
            self._samples.popleft()

    @property
    def per_second(self) -> float:
        """The rate; 0 before there are two samples."""
        if len(self._samples) < 2:
            return 0.0
        (first, before), (last, after) = self._samples[0], self._samples[-1]
        return (after - before) / (last - first) if last > first else 0.0


class TrainingLoss:
    """mean: of the batches of the last `WINDOW_SECONDS`, or the last known."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float, int]] = deque()
        self.mean: float | None = None
        self._parts: list[Part] = []
        self._part_batches = 1
        self._since: Part = (0.0, 0)

    def add(self, now: float, loss: float, batches: int) -> None:
        """`loss` is the mean over `batches` batches since the worker's last report."""
        self._samples.append((now, loss, batches))
        self._since = _sum([self._since, (loss * batches, batches)])
        while now - self._samples[0][0] > WINDOW_SECONDS:
            self._samples.popleft()
        weight = sum(count for _, _, count in self._samples)
        self.mean = sum(value * count for _, value, count in self._samples) / weight
        if self._parts and self._parts[-1][1] < self._part_batches:
            self._parts[-1] = _sum([self._parts[-1], (loss * batches, batches)])
        else:
            self._parts.append((loss * batches, batches))
        if len(self._parts) > LOSSES:
            self._part_batches = 2 * _sum(self._parts)[1] // LOSSES
            self._parts = _merged(self._parts, self._part_batches)

    def taken(self) -> float | None:
        """The mean of the batches since the last call; None if that is no number."""
        (total, batches), self._since = self._since, (0.0, 0)
        return total / batches if batches and math.isfinite(total) else None

    @property
    def course(self) -> list[float]:
        """Means over parts of the training since this master began, in their order.

        No part has much fewer batches than the others, so that each is about as noisy.
        """
        if not self._parts:
            return []
        usual = statistics.median_low(count for _, count in self._parts)
        *parts, last = _merged(self._parts, usual)
        if parts and last[1] < usual:
            parts[-1] = _sum([parts[-1], last])
        else:
            parts.append(last)
        return [total / count for total, count in parts]


def _sum(parts: Sequence[Part]) -> Part:
    return sum(total for total, _ in parts), sum(count for _, count in parts)


def _merged(parts: Iterable[Part], batches: int) -> list[Part]:
    """Parts of at least so many batches, but for the last, of the given ones in their order."""
    merged: list[Part] = []
    for part in parts:
        if merged and merged[-1][1] < batches:
            merged[-1] = _sum([merged[-1], part])
        else:
            merged.append(part)
    return merged


@dataclass(frozen=True)
class ProcessorTime:
    """The time of a machine's cores so far, summed over them, in ticks of its clock."""

    cores: int
    busy: int
    total: int


class CoresInUse:
    """The number of cores in use on a job's machine during training; cores: 0 if not known."""

    def __init__(self) -> None:
        self.cores = 0
        self._last: ProcessorTime | None = None
        self._busy = self._total = 0

    def add(self, told: ProcessorTime, *, training: bool) -> None:
        """Count the time since the one told before, if the job trained in it."""
        last, self._last = self._last, told
        if training and last is not None and last.cores == told.cores and told.total > last.total:
            self.cores = told.cores
            self._busy += told.busy - last.busy
            self._total += told.total - last.total

    @property
    def mean(self) -> float:
        """On average over the training; 0 if it is not known."""
        return self.cores * self._busy / self._total if self._total else 0.0


class JobRecord:
    """Times are in the master's own seconds, as passed to the methods.

    restarts: (role, reason) -> how often a process was started again. scalings: "up" or "down" ->
    how often the job changed its number of workers itself.
    """

    def __init__(self) -> None:
        self.started = self.run_began = 0.0
        self.ended: float | None = None
        self.training_started: float | None = None
        self.training_ended: float | None = None
        self.throughput = Throughput()
        self.loss = TrainingLoss()
        self.cores_in_use = CoresInUse()  # for advice alone; of this master's time
        self.learning_rate: float | None = None  # of some worker's last push
        # Apart, so that news never drive out a warning; each with its place among both.
        self._news: deque[tuple[int, str]] = deque(maxlen=MESSAGES)
        self._warnings: deque[tuple[int, str]] = deque(maxlen=MESSAGES)
        self._noted = 0
        self._stage_seconds: Counter[str] = Counter()
        self.restarts: Counter[tuple[str, str]] = Counter()
        self.scalings: Counter[str] = Counter()

    def note(self, now: float, text: str) -> None:
        """Keep a notable event, with the seconds since the job's start.

        Its first line only: whole texts are in the log and in the job's failure.
        """
        logger.info("%s", text)
        first, *more = text.splitlines() or [""]
        kept = self._warnings if WARNING in first else self._news
        self._noted += 1
        when = f"{now - self.started:.1f} s"
        kept.append((self._noted, f"{when}: {first}{' ...' if more else ''}"))

    @property
    def messages(self) -> list[str]:
        """The newest warnings and the newest other messages, in their order."""
        return [text for _, text in sorted([*self._warnings, *self._news])]

    def training_begins(self, now: float) -> None:
        """Training tasks are given out from now on; again, if some were before."""
        # Then the time between does not count.
        self.training_started = now - self.training_seconds(now)
        self.training_ended = None

    def resumed(self, now: float) -> None:
        """The job has not ended after all."""
        self.run_began = now
        self.ended = self.training_started = self.training_ended = None

    def seconds(self, now: float) -> float:
        """Length of the job, up to now or its end."""
        return (now if self.ended is None else self.ended) - self.started

    def seconds_of_run(self, now: float) -> float:
        """Time since the job began, or was resumed."""
        return now - self.run_began

    def training_seconds(self, now: float) -> float:
        """Time in which training tasks were given out; 0 if there was none."""
        if self.training_started is None:
            return 0.0
        return (now if self.training_ended is None else self.training_ended) - self.training_started

    def keep_stages(self, stage_seconds: dict[str, float]) -> None:
        """Keep the stage times of an incarnation that has ended."""
        self._stage_seconds.update(stage_seconds)

    def stage_seconds(self, living: list[dict[str, float]]) -> dict[str, float]:
        """Stage times summed over all workers there were."""
        total = Counter(self._stage_seconds)
        for seconds in living:
            total.update(seconds)
        return dict(total)
