"""The soak: random faults over jobs that count, until so many were survived.

`python benchmarks/soak.py --faults 400 --seed 1`; `make soak` and `tox -e soak` run it. A seed
makes one job, or a series of them (soak_draw.py), and what is done to it, some of it at once. Its
rows must be what input and audit say, exactly, and no job that has lost an update may say that it
succeeded. What was done is in build/soak.json, which a later run with
--continue adds to. Recovery times are the audit's: from a death until the successor was at work.
"""

from __future__ import annotations

import json
import math
import os
import platform
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.soak_draw import (
    KINDS,
    LONG,
    LONG_SECONDS,
    NAMED,
    PATIENCE,
    configuration,
    days_of,
    faults_of,
    kinds_of,
    write_days,
)
from shoal.base.disk.job_folder import JobFolder
from shoal.cli.chaos import lines_of
from shoal.client.show.display import LineDisplay
from shoal.config.job import JobConfig
from shoal.errors import UserError
from shoal.seed import pool
from shoal.tools.chaos.count import Part
from shoal.tools.chaos.count_job import INPUT
from shoal.tools.chaos.damage import FLIP, REMOVE, damaged
from shoal.tools.chaos.faults import HANG, JOB, DisturbStorage, Fault, Kill, Target
from shoal.tools.chaos.run import Outcome, counted, part_of, run_disturbed

ROOT = Path(__file__).parents[1]

APART = "the servers are not at the same update any more"
"""In the failure of a job with --sync that lost a server, and its log with another one."""

IDLE_JOBS = 5
"""So many one after the other that ended before their first fault end the soak."""

BETWEEN = 0.6
"""How often a file of a day is damaged before the next one."""

LEFT_BY_A_DAY = ("checkpoint", "trained")
"""Which files the next one begins with."""


def next_day(config: JobConfig, before: JobConfig, faults: list[Fault], seed: int) -> Outcome:
    """Run the job of another day, some file of the day before being damaged.

    Where the damage is refused by the file's name, it is undone. Raises UserError if the job is
    refused otherwise.
    """
    draw = random.Random(f"between {config.job_name}")
    what = draw.choice(LEFT_BY_A_DAY)
    damage = None
    if draw.random() < BETWEEN:
        damage = damaged(Path(before.job_dir), draw.choice((FLIP, REMOVE)), what, draw)
    if damage is not None:
        print(f"before {config.job_name}: {damage.what}", flush=True)
        try:
            outcome = run_disturbed(config, faults, LineDisplay(sys.stdout), seed)
            refusal = outcome.failure if outcome.state in ("died", "failed") else ""
        except UserError as error:
            refusal = str(error)
        if not refusal:
            outcome.between = damage.what
            return outcome
        print(f"refused: {refusal}", flush=True)
        damage.undo()
        if not damage.is_named_in(refusal):
            raise UserError(f"{damage.what} is refused without the file's name: {refusal}")
    outcome = run_disturbed(config, faults, LineDisplay(sys.stdout), seed)
    outcome.between = f"{damage.what}: refused by name, undone" if damage is not None else ""
    return outcome


def damaged_by(before: Outcome | None, failure: str) -> bool:
    """True if a failure names a file that a fault of the day before has damaged.

    A fault that comes to pass after the last checkpoint has nothing that could replace it.
    """
    remarks = [each for action in (before.actions if before else ()) for each in action.remarks]
    names = [each.split()[-1].split("/")[-1] for each in remarks if FLIP in each or REMOVE in each]
    return any(each in failure for each in names)


def problems_of(outcome: Outcome, config: JobConfig, before: list[Part]) -> list[str]:
    """List the problems of a job, except faults that it ended too early to meet."""
    counted(config, outcome, before)
    comparison = outcome.comparison
    if outcome.state == "succeeded":
        late = tuple(f"{action.fault}@{action.fault.when} did not" for action in outcome.not_done)
        found = [each for each in outcome.problems if not each.startswith(late or "-")]
        return [*found, *unnamed(outcome, config)]
    if outcome.state == "degraded" and comparison is not None and comparison.lost:
        # It says so itself, and its audit is unclean for that.
        return ["the rows are not as the audit says"] * comparison.differs
    servers = [each for each in outcome.audit.get("deaths", ()) if each["who"].startswith("ps-")]
    if config.sync and APART in outcome.failure and len(servers) > 1:
        return []  # logs at peers outlive one death at a time: see docs/guide/when-things-die.md
    return [f"the job has {outcome.state}: {outcome.failure}", *outcome.problems]


def unnamed(outcome: Outcome, config: JobConfig) -> list[str]:
    """List the problems with the ends of the workers that were stuck.

    Each stuck worker must die: with its stacks in its log where it was named, or by something
    else that was done to the worker or the job. Two threads of one process have one death.
    """
    problems = []
    deaths = outcome.audit.get("deaths", ())
    folder = JobFolder(Path(config.job_dir))
    logs = folder.logs
    over = folder.result.stat().st_mtime if folder.result.exists() else math.inf
    for worker in (Target("worker", index) for index in range(config.num_workers)):
        own = [death for death in deaths if death["who"] in (worker.process, JOB)]
        causes = [death["cause"] for death in own]
        last = max((death["at"] for death in own), default=-math.inf)
        left = [
            action.fault
            for action in outcome.actions
            if action.at is not None
            and action.at < over
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


def entry_of(
    outcome: Outcome, config: JobConfig, before: list[Part], seed: int, seconds: float
) -> dict[str, Any]:
    """The entry of one job in build/soak.json."""
    done = [action for action in outcome.actions if action.at is not None]
    moments = Counter(action.fault.when for action in done)
    kinds = Counter(kind_of(action.fault) for action in done)
    kills = [action.fault for action in done if isinstance(action.fault, Kill)]
    kinds.update(verb for kill in kills for verb, _ in kill.damage)
    kinds["between days"] += bool(outcome.between)
    problems = problems_of(outcome, config, before)
    found = outcome.comparison
    shown: tuple[str, ...] = (
        "servers",
        "workers",
        "durability",
        "on_loss",
        "checkpoint_steps",
    )
    shown += ("pipeline_depth", "num_minibatches_per_task", "table", "sync", "grads_to_wait")
    shown += ("evaluation_workers", "model_def", "continue_from")
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
        "between": outcome.between,
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


@click.command()
@click.option("--faults", default=400, show_default=True, help="End when so many were done.")
@click.option("--faults-per-job", default=10, show_default=True)
@click.option("--seed", default=1, show_default=True, help="Of the first job; the next: + 1.")
@click.option(
    "--kinds",
    default="all",
    show_default=True,
    help=f"Of faults, with commas between: {', '.join(KINDS | PATIENCE | LONG)}; or all, "
    "but for the last two; or patience, for those of an ordinary day, which cost time only.",
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
    machine = {"processor": platform.machine(), "cores": os.cpu_count()}
    began = time.monotonic()
    idle = 0
    jobs.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="shoal-seeds-") as folder:
        os.environ.setdefault(pool.VARIABLE, folder)  # which import TensorFlow once for all jobs
        while (left := faults - sum(entry["faults"] for entry in entries)) > 0:
            if seconds and time.monotonic() - began > seconds:
                break
            found = series(seed, jobs, min(faults_per_job, left), drawn)
            entries += found
            report.write_text(json.dumps({"machine": machine, "jobs": entries}, indent=2) + "\n")
            idle = 0 if any(entry["faults"] for entry in found) else idle + 1
            if not found or idle == IDLE_JOBS:
                break  # interrupted; or the next ones would not come so far, either
            seed += 1
    Console(width=100).print(table_of(entries))
    sys.exit(1 if any(entry["problems"] for entry in entries) else 0)


def series(seed: int, jobs: Path, faults: int, kinds: Mapping[str, float]) -> list[dict[str, Any]]:
    """The entries of the jobs of one seed, each of which is told; what went well is removed."""
    entries: list[dict[str, Any]] = []
    parts: list[Part] = []
    configs: list[JobConfig] = []
    before: Outcome | None = None
    for day in range(days_of(seed)):
        write_days(seed, jobs, day)
        config = configuration(seed, jobs, day)
        planned = faults_of(seed, -(-faults // days_of(seed)), config, kinds)
        start = time.monotonic()
        try:
            if day:
                outcome = next_day(config, configs[-1], planned, seed)
            else:
                outcome = run_disturbed(config, planned, LineDisplay(sys.stdout), seed)
        except UserError as error:
            outcome = Outcome("refused", None, str(error), [], {}, "")
        if outcome.state == "stopped":
            return entries
        entry = entry_of(outcome, config, parts, seed, time.monotonic() - start)
        if damaged_by(before, outcome.failure):
            entry["problems"] = []
        entries.append(entry)
        print("\n".join([*lines_of(outcome), outcome.audit_text, *entry["count"]]), flush=True)
        told = f"{entry['problems'] or 'as its audit says'}, {entry['seconds']:g} s"
        print(f"seed {seed}, day {day}: {told}", flush=True)
        configs.append(config)
        if entry["problems"]:
            return entries
        if outcome.state != "succeeded":
            break  # what does not succeed is followed by no other day
        before = outcome
        parts.append(part_of(config, outcome, parts))
    for config in configs:
        shutil.rmtree(config.job_dir)
    shutil.rmtree(jobs / f"soak-{seed}{INPUT}")
    return entries


if __name__ == "__main__":
    main()
