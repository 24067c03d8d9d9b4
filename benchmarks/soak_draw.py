"""Draw the jobs of the soak from a seed: a series of jobs that count, and the faults of each.

Draws only: soak.py carries it out.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from shoal.config.job import JobConfig
from shoal.proto.faults import POINTS
from shoal.tools.chaos.count_job import INPUT, count_values, write_input
from shoal.tools.chaos.damage import FILES, FLIP, REMOVE
from shoal.tools.chaos.faults import (
    CHECKPOINTS,
    CUT,
    DATA,
    FAIL,
    FILL,
    FIRST,
    HALF_SENT,
    HANG,
    JOB,
    KILL,
    LAST,
    LEAVE,
    NO_ROOM,
    PAUSE,
    SCALE,
    STORAGE,
    TOGETHER,
    Cut,
    DisturbStorage,
    Fault,
    Fill,
    Hang,
    Kill,
    Leave,
    LeaveNoRoom,
    Pause,
    Scale,
    SendHalves,
    Target,
    When,
)

KINDS = {"kill": 6, "point": 6, PAUSE: 2, CUT: 1, FILL: 1, JOB: 3, SCALE: 5, LEAVE: 1}
"""What dies, stands still, is cut off or moves -> how often, against the others."""

FEED, RESTORE, CALLS = "feed", "restore", "calls"
"""What hangs: a worker's `feed`, a server that restores, all calls of a server or the master."""

STUCK = "stuck"
"""A worker's `feed` or step never goes on: it is to be found, named and replaced."""

LONG_STORAGE, LONG_NO_ROOM = "long-storage", "long-no-room"
"""As STORAGE and NO_ROOM, for longer than most limits of time."""

LONG_SECONDS = {LONG_STORAGE: 60.0, LONG_NO_ROOM: 600.0}

PATIENCE: dict[str, float] = {
    STORAGE: 3,
    FEED: 2,
    RESTORE: 2,
    CALLS: 2,
    HALF_SENT: 2,
    NO_ROOM: 2,
    STUCK: 2,
}
"""What is slow, fails, stands still or is not there yet, and costs time only -> how often."""

LONG = {LONG_STORAGE: 2, LONG_NO_ROOM: 1}
"""What takes minutes, and is done only where --kinds names it."""

STUCK_PER_JOB = 2
"""A third one at the same records would be held against these, as it should."""

STEP_TIMEOUT_SECONDS = 7.0

NAMED = "it is stuck for "
"""How the cause of death begins of a worker that was found to be stuck."""

POINTS_OF = {
    FEED: ("feeding",),
    STUCK: ("feeding", "computing"),
    RESTORE: ("before-restore-plan", "before-checkpoint-read", "log-replaying"),
}

ELSEWHERE = ("metrics-computed", "batch-predicted", "rows-assigned")
"""Points that these jobs never come to."""

RECORDS, USERS = 3840, 400
"""Of all days of a series together."""

MOST_SERVERS = 4

DURABILITIES: tuple[dict[str, Any], ...] = (
    {"durability": "peer", "servers": "2"},
    {"durability": "peer", "servers": "3"},
    *({"durability": "file", "servers": str(servers)} for servers in (1, 2, 3)),
    *({"durability": "checkpoint", "servers": str(servers)} for servers in (1, 3)),
    *(
        {"durability": "checkpoint", "on_loss": on_loss, "servers": str(servers)}
        for on_loss, servers in (("accept", 1), ("accept", 3), ("fail", 2))
    ),
)

EXPIRES, ADMITS, STOPS, SYNC, EVALUATES = "expires", "admits", "stops", "sync", "evaluates"
PLAIN = "plain"
TRAITS = (PLAIN, EXPIRES, EXPIRES, ADMITS, STOPS, SYNC, EVALUATES)
"""What is particular to a job."""

STOPPING = Path(__file__).with_name("soak_zoo")


def days_of(seed: int) -> int:
    """The number of jobs in a seed's series: one, or more, each with new files of data."""
    return random.Random(f"days {seed}").choice((1, 1, 2, 3))


def configuration(seed: int, jobs: Path, day: int = 0) -> JobConfig:
    """The job of a day of a seed, which continues from the one of the day before."""
    draw = random.Random(f"job {seed}")
    names = [f"soak-{seed}-{each}" for each in (day - 1, day)]
    values = count_values(jobs / names[1]) | {
        "job_name": names[1],
        "job_dir": str(jobs / names[1]),
        "training_data": str(jobs / f"soak-{seed}{INPUT}"),
        "overwrite": True,
        "epochs": 2,
        "batch_size": 16,
        "workers": str(draw.choice((1, 2))),
        "num_minibatches_per_task": draw.choice((4, 16)),
        "pipeline_depth": draw.choice((-1, 0, 2)),
        "checkpoint_steps": draw.choice((0, 50, 150)),
        "relaunch_limit": 1000,
        "step_timeout_seconds": STEP_TIMEOUT_SECONDS,
    }
    values |= draw.choice(DURABILITIES) | {"model_params": "", **_particular(draw, jobs, seed)}
    # Without a log, a server's death ends a job with --sync, and has records trained out of order.
    if "sync" in values or values.get("shuffle") == "time":
        kept = values["durability"]
        values |= {"durability": "file" if kept == "checkpoint" else kept, "on_loss": "retrain"}
    if day:
        values |= {"continue_from": str(jobs / names[0]), "only_new": True}
    return JobConfig(command="train", **values).resolved()


def _particular(draw: random.Random, jobs: Path, seed: int) -> dict[str, Any]:
    """Fields of one of TRAITS."""
    validation = {
        "validation_data": str(jobs / f"soak-{seed}{INPUT}" / "day=0"),
        "evaluation_steps": draw.choice((40, 100)),
    }
    workers = draw.choice((1, 2))
    expires, capped = "users.expire_after=1200s", "records.max_rows=800"
    traits: dict[str, dict[str, Any]] = {
        PLAIN: {},
        # In the order of time, one worker: what is removed, the data says.
        EXPIRES: {
            "table": draw.choice((expires, capped, f"{expires},{capped}")),
            "event_time": "record:s",
            "shuffle": "time",
            "epochs": 1,
            "workers": "1",
        },
        ADMITS: {"table": "records.admit_after=2"},
        STOPS: validation | {"model_def": "stopping.custom_model", "model_zoo": str(STOPPING)},
        SYNC: {
            "sync": True,
            "grads_to_wait": draw.choice((1, 2)),
            "workers": "2",
            "pipeline_depth": 0,
        },
        EVALUATES: validation | {"evaluation_workers": 1, "workers": str(1 + workers)},
    }
    return traits[draw.choice(TRAITS)]


def write_days(seed: int, jobs: Path, day: int) -> None:
    """Write the data of a day, beside that of the days before."""
    records = RECORDS // days_of(seed)
    folder = jobs / f"soak-{seed}{INPUT}" / f"day={day}"
    write_input(folder, records=records, users=USERS, seed=seed, first=day * records)


def faults_of(
    seed: int, count: int, config: JobConfig, kinds: Mapping[str, float] = KINDS | PATIENCE
) -> list[Fault]:
    """Draw the faults of a seed's job; some come at the same moment as the one before.

    A server that restores slowly is also killed. Beside a move, its newest server may be killed, or
    a worker stand still: these are two faults for one. Beyond STUCK_PER_JOB, a STUCK fault is a
    hang for a while.
    """
    draw = random.Random(f"faults {seed} {config.job_name}")
    faults: list[Fault] = []
    more: list[Fault] = []
    stuck = 0
    for moment in sorted(draw.uniform(FIRST, LAST) for _ in range(count)):
        together = faults and faults[-1].when.fraction is not None and draw.random() < TOGETHER
        when = faults[-1].when if together else When(fraction=moment)
        (kind,) = draw.choices(list(kinds), list(kinds.values()))
        stuck += kind == STUCK
        if kind == STUCK and stuck > STUCK_PER_JOB:
            kind = FEED
        fault = _fault(draw, kind, dataclasses.replace(when, point=""), config)
        if isinstance(fault, DisturbStorage) and days_of(seed) > 1:
            # A file of data by a URL is another file to the jobs of a series.
            fault = dataclasses.replace(fault, targets=(Target(CHECKPOINTS),))
        faults.append(fault)
        if kind == RESTORE:
            killed = dataclasses.replace(fault.when, point="")
            faults.append(Kill(fault.targets, killed))
        if isinstance(fault, Scale):
            what = draw.choice((KILL, PAUSE, ""))
            newest, worker = Target("ps", fault.servers - 1), Target("worker")
            later = When(fraction=draw.uniform(fault.when.fraction or 0, LAST))
            more += [Kill((newest,), later)] * (what == KILL)
            more += [Pause((worker,), fault.when, 1.0)] * (what == PAUSE)
    # Those of one moment stay beside one another.
    return sorted([*faults, *more], key=lambda fault: fault.when.fraction or 0)


def _fault(draw: random.Random, kind: str, when: When, config: JobConfig) -> Fault:
    workers = [Target("worker", index) for index in range(config.num_workers)]
    # Some of these come by a move; whom there is not, nothing is done to.
    more = draw.random() < 0.2
    servers = [Target("ps", index) for index in range(MOST_SERVERS if more else config.num_servers)]
    master = Target("master")
    seconds = round(draw.uniform(0.2, 2.0), 1)
    anyone = draw.choice([draw.choice(workers), draw.choice(servers), master])
    if kind == JOB:
        damage = [(draw.choice((FLIP, FLIP, REMOVE)), draw.choice(list(FILES)))]
        changes = [("servers", str(draw.randint(1 + (config.durability == "peer"), 3)))]
        return Kill(
            (Target(JOB),),
            when,
            damage=tuple(damage * (draw.random() < 0.7)),
            changes=tuple(changes * (draw.random() < 0.4)),
        )
    if kind == "point":
        there = {name: point for name, point in POINTS.items() if name not in ELSEWHERE}
        named = draw.choice([name for name, point in there.items() if point.role == anyone.role])
        return Kill((anyone,), dataclasses.replace(when, point=named))
    if kind == CUT:
        ends = draw.choice([(draw.choice(workers), draw.choice([*servers, master]))])
        if draw.random() < 0.3:
            ends = draw.choice(servers), master
        return Cut(ends, when, seconds)
    if kind in PATIENCE or kind in LONG:
        return _slow(draw, kind, when, config)
    if kind == SCALE:
        least = 1 + (config.durability == "peer")
        return Scale((master,), when, servers=draw.randint(least, MOST_SERVERS))
    if kind == LEAVE:
        return Leave((draw.choice(servers),), when)
    if kind == FILL:
        return Fill((draw.choice([*servers, master]),), when, seconds)
    return Pause((anyone,), when, seconds) if kind == PAUSE else Kill((anyone,), when)


def _slow(draw: random.Random, kind: str, when: When, config: JobConfig) -> Fault:
    """A fault of PATIENCE."""
    worker = Target("worker", draw.randrange(config.num_workers))
    server = Target("ps", draw.randrange(config.num_servers))
    seconds = LONG_SECONDS.get(kind, round(draw.uniform(0.5, 4.0), 1))
    if kind in (STORAGE, LONG_STORAGE):
        what, how = draw.choice((DATA, CHECKPOINTS)), draw.choice((FAIL, HANG))
        return DisturbStorage((Target(what),), when, seconds, how=how, every=draw.randint(1, 4))
    if kind == HALF_SENT:
        return SendHalves((server,), when, seconds)
    if kind in (NO_ROOM, LONG_NO_ROOM):
        return LeaveNoRoom((draw.choice((worker, server)),), when, seconds)
    if kind == CALLS:
        return Hang((draw.choice((server, server, Target("master"))),), when, seconds)
    when = dataclasses.replace(when, point=draw.choice(POINTS_OF[kind]))
    seconds = math.inf if kind == STUCK else seconds
    return Hang((server if kind == RESTORE else worker,), when, seconds)


def kinds_of(text: str) -> Mapping[str, float]:
    """The kinds of --kinds, and how often each. Raises click.BadParameter."""
    known = KINDS | PATIENCE | LONG
    named = {"all": KINDS | PATIENCE, "patience": PATIENCE}
    if text in named:
        return named[text]
    given = text.split(",")
    if unknown := [kind for kind in given if kind not in known]:
        raise click.BadParameter(f"--kinds: {unknown[0]!r} is none of {', '.join(known)}")
    return {kind: known[kind] for kind in given}
