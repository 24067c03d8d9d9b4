"""The soak: random faults over jobs that count, until so many were survived.

`python benchmarks/soak.py --faults 300 --seed 1`; `make soak` and `tox -e soak` run it. A seed
makes one job (shoal.chaos): how many servers and workers, its durability, and what is done to it,
some of it at once. Its rows must be what input and audit say, exactly, and no job that has lost an
update may say that it succeeded. What was done is in build/soak.json, which a later run with
--continue adds to. Recovery times are the audit's: from a death until the successor was at work.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import platform
import random
import shutil
import statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from shoal.base.job_folder import JobFolder
from shoal.chaos.count_job import count_values, write_input
from shoal.chaos.damage import FILES, FLIP, REMOVE
from shoal.chaos.faults import (
    CHECKPOINTS,
    CUT,
    DATA,
    FAIL,
    FILL,
    FIRST,
    HALF_SENT,
    HANG,
    JOB,
    LAST,
    NO_ROOM,
    PAUSE,
    STORAGE,
    TOGETHER,
    Cut,
    DisturbStorage,
    Fault,
    Fill,
    Hang,
    Kill,
    LeaveNoRoom,
    Pause,
    SendHalves,
    Target,
    When,
)
from shoal.chaos.run import Outcome, counted, run_disturbed
from shoal.cli.chaos import lines_of
from shoal.client.display import LineDisplay
from shoal.config.job import JobConfig
from shoal.proto.faults import POINTS

ROOT = Path(__file__).parents[1]

KINDS = {"kill": 8, "point": 3, PAUSE: 2, CUT: 2, FILL: 1, JOB: 3}
"""What dies, stands still or is cut off -> how often, against the others."""

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
    LONG_STORAGE: 0.5,
    LONG_NO_ROOM: 0.25,
}
"""What is slow, fails, stands still or is not there yet, and costs time only -> how often."""

STUCK_PER_JOB = 2
"""A third one at the same records would be held against these, as it should."""

STEP_TIMEOUT_SECONDS = 15.0

NAMED = "it is stuck for "
"""How the cause of death begins of a worker that was found to be stuck."""

POINTS_OF = {
    FEED: ("feeding",),
    STUCK: ("feeding", "computing"),
    RESTORE: ("before-restore-plan", "before-checkpoint-read", "log-replaying"),
}

ELSEWHERE = ("batch-evaluated", "metrics-computed", "batch-predicted", "rows-assigned")
"""Points that these jobs never come to."""

DURABILITIES: tuple[dict[str, Any], ...] = (
    {"durability": "log", "log_place": "peer", "num_ps": 2},
    {"durability": "log", "log_place": "peer", "num_ps": 3},
    *({"durability": "log", "log_place": "file", "num_ps": servers} for servers in (1, 2, 3)),
    *({"durability": "checkpoint", "num_ps": servers} for servers in (1, 2, 3)),
    *(
        {"durability": "checkpoint", "on_loss": on_loss, "num_ps": servers}
        for on_loss, servers in (("accept", 1), ("accept", 3), ("fail", 2))
    ),
)


def configuration(seed: int, jobs: Path) -> JobConfig:
    """The job of a seed."""
    draw = random.Random(f"job {seed}")
    name = f"soak-{seed}"
    values = count_values(jobs / name) | {
        "job_name": name,
        "job_dir": str(jobs / name),
        "overwrite": True,
        "num_epochs": 3,
        "num_workers": draw.choice((1, 2)),
        "num_minibatches_per_task": draw.choice((4, 16)),
        "pipeline_depth": draw.choice((0, 2, 2)),
        "checkpoint_steps": draw.choice((0, 50, 150)),
        "relaunch_limit": 1000,
        "step_timeout_seconds": STEP_TIMEOUT_SECONDS,
    }
    return JobConfig(command="train", **(values | draw.choice(DURABILITIES))).resolved()


def faults_of(
    seed: int, count: int, config: JobConfig, kinds: Mapping[str, float] = KINDS | PATIENCE
) -> list[Fault]:
    """What is done to the job of a seed; some of it at the same moment as the one before.

    A server that is to restore slowly is killed, too: these are two faults for one. Beyond
    STUCK_PER_JOB, what would be STUCK hangs for a while.
    """
    draw = random.Random(f"faults {seed}")
    faults: list[Fault] = []
    stuck = 0
    for moment in sorted(draw.uniform(FIRST, LAST) for _ in range(count)):
        together = faults and faults[-1].when.fraction is not None and draw.random() < TOGETHER
        when = faults[-1].when if together else When(fraction=moment)
        (kind,) = draw.choices(list(kinds), list(kinds.values()))
        stuck += kind == STUCK
        if kind == STUCK and stuck > STUCK_PER_JOB:
            kind = FEED
        fault = _fault(draw, kind, dataclasses.replace(when, point=""), config)
        faults.append(fault)
        if kind == RESTORE:
            killed = dataclasses.replace(fault.when, point="")
            faults.append(Kill(fault.targets, killed))
    return faults


def _fault(draw: random.Random, kind: str, when: When, config: JobConfig) -> Fault:
    workers = [Target("worker", index) for index in range(config.num_workers)]
    servers = [Target("ps", index) for index in range(config.num_ps)]
    master = Target("master")
    seconds = round(draw.uniform(0.2, 2.0), 1)
    anyone = draw.choice([draw.choice(workers), draw.choice(servers), master])
    if kind == JOB:
        damage = [(draw.choice((FLIP, FLIP, REMOVE)), draw.choice(list(FILES)))]
        changes = [("num_ps", draw.randint(1 + (config.log_place == "peer"), 3))]
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
    if kind in PATIENCE:
        return _slow(draw, kind, when, config)
    if kind == FILL:
        return Fill((draw.choice([*servers, master]),), when, seconds)
    return Pause((anyone,), when, seconds) if kind == PAUSE else Kill((anyone,), when)


def _slow(draw: random.Random, kind: str, when: When, config: JobConfig) -> Fault:
    """A fault of PATIENCE."""
    worker = Target("worker", draw.randrange(config.num_workers))
    server = Target("ps", draw.randrange(config.num_ps))
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


def problems_of(outcome: Outcome, config: JobConfig) -> list[str]:
    """What is wrong with a job. A fault that the job did not live to see is not."""
    counted(config, outcome)
    comparison = outcome.comparison
    if outcome.state == "succeeded":
        late = tuple(f"{action.fault}@{action.fault.when} did not" for action in outcome.not_done)
        found = [each for each in outcome.problems if not each.startswith(late or "-")]
        return [*found, *unnamed(outcome, config)]
    if outcome.state == "degraded" and comparison is not None and comparison.lost:
        # It says so itself, and its audit is unclean for that.
        return ["the rows are not as the audit says"] * comparison.differs
    return [f"the job has {outcome.state}: {outcome.failure}", *outcome.problems]


def unnamed(outcome: Outcome, config: JobConfig) -> list[str]:
    """What is wrong with the ends of the workers that were stuck.

    Each is followed by a death: with its stacks in its log where it was named, or by something
    else that was done to the worker or the job. Two threads of one process have one death.
    """
    problems = []
    deaths = outcome.audit.get("deaths", ())
    logs = JobFolder(Path(config.job_dir)).logs
    for worker in (Target("worker", index) for index in range(config.num_workers)):
        own = [death for death in deaths if death["who"] in (worker.process, JOB)]
        causes = [death["cause"] for death in own]
        last = max((death["at"] for death in own), default=-math.inf)
        left = [
            action.fault
            for action in outcome.actions
            if action.at is not None
            and action.fault.seconds == math.inf
            and action.fault.targets == (worker,)
            and action.at > last
        ]
        named = sum(cause.startswith(NAMED) for cause in causes)
        texts = [path.read_text(errors="replace") for path in logs.glob(f"{worker.process}.*")]
        stacks = sum("All threads:" in text for text in texts)
        problems += [f"{fault}, and the worker did not die after it" for fault in left]
        if named > stacks:
            problems.append(
                f"{worker} was named as stuck {named} times, {stacks} times with stacks"
            )
    return problems


def entry_of(outcome: Outcome, config: JobConfig, seed: int, seconds: float) -> dict[str, Any]:
    """What build/soak.json has of one job."""
    done = [action for action in outcome.actions if action.at is not None]
    moments = Counter(action.fault.when for action in done)
    kinds = Counter(kind_of(action.fault) for action in done)
    kills = [action.fault for action in done if isinstance(action.fault, Kill)]
    kinds.update(verb for kill in kills for verb, _ in kill.damage)
    problems = problems_of(outcome, config)
    found = outcome.comparison
    shown = ("num_ps", "num_workers", "durability", "log_place", "on_loss", "checkpoint_steps")
    shown += ("pipeline_depth", "num_minibatches_per_task")
    causes = [death["cause"] for death in outcome.audit.get("deaths", ())]
    return {
        "seed": seed,
        "job": {name: getattr(config, name, None) for name in shown},
        "state": outcome.state,
        "faults": kinds.total(),
        "kinds": kinds,
        "roles": Counter(kill.targets[0].role for kill in kills),
        "at_once": sum(count > 1 for count in moments.values()),
        "not_done": len(outcome.not_done),
        "done": lines_of(outcome)[1:],
        "count": found.lines() if found else [],
        "lost": found.lost if found else None,
        "repeated": found.repeated if found else None,
        "exact": bool(found and not found.differs),
        "named_stuck": [cause for cause in causes if cause.startswith(NAMED)],
        "updates": outcome.audit.get("updates"),
        "recovered": recovered(outcome),
        "seconds": round(seconds, 1),
        "problems": problems,
    }


def kind_of(fault: Fault) -> str:
    """The kind of a fault that was done, in words."""
    if fault.seconds == math.inf:
        return f"stuck at {fault.when.point}"
    if fault.seconds in LONG_SECONDS.values():
        return f"{fault.kind} {fault.targets[0].role} for {fault.seconds:g} s"
    if fault.kind == HANG:
        return f"hang of {fault.when.point or 'calls'}"
    if isinstance(fault, DisturbStorage):
        return f"{fault.kind} {fault.targets[0]} {fault.how}"
    return fault.kind


def recovered(outcome: Outcome) -> dict[str, list[float]]:
    """Seconds until the successor was at work, of each death that had one, by role."""
    times = defaultdict(list)
    for death in outcome.audit.get("deaths", ()):
        if death["recovered"] is not None:
            times[death["who"].partition("-")[0]].append(round(death["recovered"], 3))
    return dict(times)


def table_of(entries: list[dict[str, Any]]) -> Table:
    """The one table: a row for each role, and what holds for all jobs beneath."""
    table = Table(title="soak: random faults survived")
    for title in ("role", "kills", "replaced", "median s", "p99 s", "longest s"):
        table.add_column(title, justify="left" if title == "role" else "right")
    for role in ("worker", "ps", "master", JOB):
        times = sorted(t for entry in entries for t in entry["recovered"].get(role, ()))
        kills = sum(entry["roles"].get(role, 0) for entry in entries)
        shown = ["", "", ""]
        if times:
            p99 = times[math.ceil(len(times) * 0.99) - 1]
            shown = [f"{each:.1f}" for each in (statistics.median(times), p99, times[-1])]
        table.add_row(role, str(kills), str(len(times)), *shown)
    kinds: Counter[str] = Counter()
    for entry in entries:
        kinds.update(entry["kinds"])
    bad = [entry["seed"] for entry in entries if entry["problems"]]
    table.caption = (
        f"{kinds.total()} faults in {len(entries)} jobs "
        f"({', '.join(f'{kind} {count}' for kind, count in sorted(kinds.items()))}), "
        f"{sum(entry['at_once'] for entry in entries)} times several at once; "
        f"every row exact in {sum(entry['exact'] for entry in entries)} jobs; "
        f"records repeated: {sum(entry['repeated'] or 0 for entry in entries)}, "
        f"lost: {sum(entry['lost'] or 0 for entry in entries)}; "
        f"named as stuck: {sum(len(entry.get('named_stuck', ())) for entry in entries)}; "
        + (f"BAD jobs, by seed: {bad}" if bad else "no job is other than its audit says")
    )
    return table


def kinds_of(text: str) -> Mapping[str, float]:
    """The kinds of --kinds, and how often each. Raises click.BadParameter."""
    known = KINDS | PATIENCE
    named = {"all": known, "patience": PATIENCE}
    if text in named:
        return named[text]
    given = text.split(",")
    if unknown := [kind for kind in given if kind not in known]:
        raise click.BadParameter(f"--kinds: {unknown[0]!r} is none of {', '.join(known)}")
    return {kind: known[kind] for kind in given}


@click.command()
@click.option("--faults", default=300, show_default=True, help="End when so many were done.")
@click.option("--faults-per-job", default=10, show_default=True)
@click.option("--seed", default=1, show_default=True, help="Of the first job; the next: + 1.")
@click.option(
    "--kinds",
    default="all",
    show_default=True,
    help=f"Of faults, with commas between: {', '.join(KINDS | PATIENCE)}; or all; or patience, for "
    "those that an ordinary day brings and that cost time only.",
)
@click.option("--continue", "again", is_flag=True, help="Add to what build/soak.json has.")
@click.option("--seconds", default=0.0, help="Begin no job after so many; 0: no limit.")
@click.option(
    "--build", default=ROOT / "build", type=click.Path(path_type=Path), help="Folder for it all."
)
def main(
    faults: int,
    faults_per_job: int,
    seed: int,
    kinds: str,
    again: bool,
    seconds: float,
    build: Path,
) -> None:
    """Do random things to jobs that count until --faults were done; exit 1 if one miscounts."""
    drawn = kinds_of(kinds)
    jobs, report = build / "soak", build / "soak.json"
    said: dict[str, Any] = json.loads(report.read_text()) if again and report.exists() else {}
    entries: list[dict[str, Any]] = said.get("jobs", [])
    began = time.monotonic()
    while (left := faults - sum(entry["faults"] for entry in entries)) > 0:
        if seconds and time.monotonic() - began > seconds:
            break
        config = configuration(seed, jobs)
        write_input(Path(config.training_data), seed=seed)
        planned = faults_of(seed, min(faults_per_job, left), config, drawn)
        start = time.monotonic()
        outcome = run_disturbed(config, planned, LineDisplay(sys.stdout), seed)
        if outcome.state == "stopped":
            break
        entry = entry_of(outcome, config, seed, time.monotonic() - start)
        entries.append(entry)
        print("\n".join([*lines_of(outcome), outcome.audit_text, *entry["count"]]), flush=True)
        print(f"seed {seed}: {entry['problems'] or 'as its audit says'}", flush=True)
        if not entry["problems"]:  # what went wrong is kept
            shutil.rmtree(config.job_dir)
            shutil.rmtree(config.training_data)
        said = {
            "machine": {"processor": platform.machine(), "cores": os.cpu_count()},
            "jobs": entries,
        }
        report.parent.mkdir(parents=True, exist_ok=True)
        report.write_text(json.dumps(said, indent=2) + "\n")
        if not entry["faults"]:
            break  # the next ones would not come so far, either
        seed += 1
    Console(width=100).print(table_of(entries))
    sys.exit(1 if any(entry["problems"] for entry in entries) else 0)


if __name__ == "__main__":
    main()
