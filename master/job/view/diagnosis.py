"""The bound of a job's training, with the evidence and the next step: a pure function of facts.

All shares here are of the workers' time in training (stage_times.py). Each threshold says what it
is for; where nothing passes one, that is what is said.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from shoal.master.job.scaling.stage_times import (
    APART,
    DOMINANT,
    FEEDS,
    WAITING,
    Loads,
    WorkerTime,
    slowest,
    time_in_words,
    together,
    usual_step_seconds,
)

LEAST_STEPS, LEAST_SECONDS = 20, 2.0
"""Of one worker's training, before anything is said: its first step compiles the model."""

SMALL_MINIBATCH, SMALL_SECONDS, FIXED_SECONDS = 64, 0.05, 0.01
"""Calls to servers and into TensorFlow cost milliseconds for any number of records. So much of a
step that is short, and of so few records, is this fixed cost that larger minibatches pay. Input
that takes longer than FIXED_SECONDS for such a minibatch is slow by itself."""

BUSY_CORES = 0.7
"""Of a core, which a server uses on average: then it has queues at its busiest moments."""

FULL = 1.2
"""Times the cores in use that a machine has: with less, the others are used at busy moments, and
more processes would take turns with those there are."""

WAITS = 0.1
"""Of the time: waiting that is worth a word."""


class Bound(Enum):
    """Bounds of training."""

    DATA = "data"  # reading it
    FEED = "feed"  # the user's feed
    SERVERS = "servers"  # their processors
    CALLS = "calls"  # pulls and pushes, though servers are not busy
    MINIBATCHES = "minibatches"  # too small ones
    STRAGGLER = "straggler"  # one worker
    STEP = "step"  # of the model
    WORKERS = "workers"  # they wait for one another, and none is slower
    NOTHING = "nothing"  # no part dominates
    UNKNOWN = "unknown"  # too little was trained


@dataclass(frozen=True)
class Facts:
    """Facts of a job's training. cores: that each server uses; empty if not known.

    machine_cores: of the machine on which all processes run; 0 if they have several, or it is not
    known. cores_in_use: of these, on average, by the job and by others.
    """

    workers: Sequence[WorkerTime]
    cores: Sequence[float]
    servers: int
    batch_size: int
    accumulated: int = 1
    pipelined: bool = True
    machine_cores: int = 0
    cores_in_use: float = 0.0

    @property
    def room(self) -> float:
        """The machine's cores as a multiple of those in use; infinite where that is not known."""
        if not self.machine_cores or not self.cores_in_use:
            return math.inf
        return self.machine_cores / self.cores_in_use


@dataclass(frozen=True)
class Diagnosis:
    """evidence: what was seen, in words. advice: the next step; "" if there is none."""

    bound_by: Bound
    evidence: str
    advice: str = ""


def diagnose(facts: Facts) -> Diagnosis:
    """The bound of training, as far as the facts tell."""
    workers = [each for each in facts.workers if each.seconds > 0]
    if not any(w.steps >= LEAST_STEPS and w.seconds >= LEAST_SECONDS for w in workers):
        return Diagnosis(Bound.UNKNOWN, "too little was trained to tell what bounds it")
    if (found := _straggler(workers)) is not None:
        return found
    total = together(workers)
    loads = Loads.of(total, pipelined=facts.pipelined)
    for look in (_minibatches, _input, _servers, _step, _others):
        if (found := look(facts, total, loads)) is not None:
            return found
    shown = ", ".join(f"{name} {share:.0%}" for name, share in loads.named())
    return Diagnosis(
        Bound.NOTHING,
        f"no part of a step dominates: {shown} of the workers' time",
        _no_room(facts, "workers")
        or "more workers share the work, if the machines have free cores",
    )


def _gain(ratio: float) -> str:
    """The gain that training may have, in words."""
    if ratio >= 3:
        return "several times as fast"
    return f"up to about +{round(ratio * 20 - 20) * 5}%" if ratio >= 1.05 else "a little"


def _no_room(facts: Facts, more: str) -> str:
    """That the machine has no cores for more of some processes; empty if it may."""
    if facts.room >= FULL:
        return ""
    return f"more {more} need more cores or machines: the {facts.machine_cores} here are in use"


def _straggler(workers: Sequence[WorkerTime]) -> Diagnosis | None:
    """One worker is far slower than the others, by its own time for a step."""
    found = slowest(workers)
    if found is None:
        return None
    slow, others = found
    normal = usual_step_seconds(others)
    busy = max(("read", *FEEDS, "ids", "pull", "step", "push"), key=lambda name: slow.share(name))
    evidence = (
        f"a step of {slow.name} takes {time_in_words(slow.step_seconds)}, of the others "
        f"{time_in_words(normal)}; it is busy with {busy} for {slow.share(busy):.0%} of its time"
    )
    waited = statistics.mean(each.share(*WAITING) for each in others)
    if waited >= WAITS:
        evidence += f", and the others wait for it for {waited:.0%} of theirs"
    role, _, index = slow.name.rpartition("-")
    return Diagnosis(
        Bound.STRAGGLER,
        evidence,
        f"look at its machine and its log, and at shoal stacks JOB {role} {index}"
        + ("; --grads-to-wait leaves the slowest out" if slow.share("wait for update") else "")
        + ("; a larger --staleness-bound lets the others go on" if _bounded(others) else ""),
    )


def _bounded(workers: Sequence[WorkerTime]) -> bool:
    return any(each.stages.get("wait for workers", 0.0) > 0 for each in workers)


def _minibatches(facts: Facts, total: WorkerTime, loads: Loads) -> Diagnosis | None:
    """A step is short and of few records, so most of it is the cost that each step has."""
    steps = total.steps * facts.accumulated
    each = total.step_seconds / facts.accumulated
    slow_input = loads.dominates(loads.input) and (
        sum(total.stages.get(name, 0.0) for name in ("read", *FEEDS)) > FIXED_SECONDS * steps
    )
    if facts.batch_size > SMALL_MINIBATCH or each > SMALL_SECONDS or slow_input:
        return None
    larger = max(4 * facts.batch_size, 2 * SMALL_MINIBATCH)
    return Diagnosis(
        Bound.MINIBATCHES,
        f"a step has {facts.batch_size} records and takes {time_in_words(each)}, most of which "
        "it takes for any number of records",
        f"--batch-size {larger}, and with it a larger learning rate",
    )


def _input(facts: Facts, total: WorkerTime, loads: Loads) -> Diagnosis | None:
    if not loads.dominates(loads.input):
        return None
    waits = total.share("wait for data")
    gain = _gain(min(loads.input / max(loads.besides(loads.input), 0.01), facts.room))
    more = f"--workers {2 * len(facts.workers)} ({gain})"
    full = _no_room(facts, "workers")
    feed = max(FEEDS, key=total.share)
    if total.share("read") >= total.share(feed):
        return Diagnosis(
            Bound.DATA,
            f"a step waits for data for {waits:.0%} of the time: reading takes "
            f"{total.share('read'):.0%} of it, {feed} {total.share(feed):.0%}",
            "read faster: Parquet instead of CSV, smaller row groups, storage nearby, less work in "
            "a custom reader; " + (full or f"or read in more workers: {more}"),
        )
    return Diagnosis(
        Bound.FEED,
        f"a step waits for data for {waits:.0%} of the time: {feed} takes "
        f"{total.share(feed):.0%} of it, reading {total.share('read'):.0%}",
        (
            "do less in feed, or write feed_batch; "
            if feed == "feed"
            else "fewer or cheaper operations in feed_batch, or a larger --batch-size; "
        )
        + (full or f"or feed in more workers: {more}"),
    )


def _servers(facts: Facts, total: WorkerTime, loads: Loads) -> Diagnosis | None:
    calls = loads.calls
    others = max(loads.step, loads.input)
    beside = others if loads.pipelined else loads.step
    if calls < DOMINANT or calls < APART * beside:
        return None
    what = f"pulls and pushes take {calls:.0%} of the workers' time"
    stage = max(("wait for pull", "wait for push"), key=total.share)
    if loads.pipelined and total.share(stage) >= WAITS:
        waits_for = {"wait for pull": "pulls", "wait for push": "pushes"}[stage]
        what = f"a step waits for {waits_for} for {total.share(stage):.0%} of the time"
    busiest = max(facts.cores, default=None)
    if busiest is None or busiest < BUSY_CORES:
        seen = "" if busiest is None else f", and the busiest server uses {busiest:.0%} of a core"
        return Diagnosis(
            Bound.CALLS,
            f"{what}{seen}",
            "look for what keeps the answers: a network or machine that is busy with other work, "
            "a limit on the servers' processors; a larger --pipeline-depth hides a long way",
        )
    number = min(2 * facts.servers, math.ceil(facts.servers * calls / max(beside, calls / 2)))
    number = max(number, facts.servers + 1)
    if loads.pipelined:
        ratio = min(number / facts.servers, calls / max(beside, 0.01))
    else:
        ratio = 1 / (1 - calls * (1 - facts.servers / number))
    who = "the server uses" if facts.servers == 1 else "the busiest server uses"
    return Diagnosis(
        Bound.SERVERS,
        f"{what} while {who} {busiest:.0%} of a core",
        _no_room(facts, "servers")
        or f"--servers {number}, if there is a core for each ({_gain(min(ratio, facts.room))})",
    )


def _step(facts: Facts, total: WorkerTime, loads: Loads) -> Diagnosis | None:
    del total
    if not loads.dominates(loads.step):
        return None
    return Diagnosis(
        Bound.STEP,
        f"the model's step takes {loads.step:.0%} of the workers' time",
        (
            _no_room(facts, "workers")
            or "more workers, on cores or machines of their own: "
            f"--workers {2 * len(facts.workers)}"
        )
        + "; or a smaller model",
    )


def _others(facts: Facts, total: WorkerTime, loads: Loads) -> Diagnosis | None:
    del facts, loads
    update, workers = (total.share(name) for name in ("wait for update", "wait for workers"))
    if max(update, workers) < DOMINANT:
        return None
    if update >= workers:
        return Diagnosis(
            Bound.WORKERS,
            f"workers wait for an update of the others for {update:.0%} of their time, and none is "
            "much slower",
            "--grads-to-wait below the number of workers waits for fewer of them",
        )
    return Diagnosis(
        Bound.WORKERS,
        f"workers wait for the slowest one for {workers:.0%} of their time, and none is much "
        "slower",
        "a larger --staleness-bound",
    )
