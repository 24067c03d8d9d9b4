"""The soak: seeded random kills over jobs on MovieLens, until so many were survived.

`python benchmarks/soak.py --kills 200 --seed 1`; `make soak` and `tox -e soak` run it. Each
job is that of `make demo` under kills of workers, servers and the master, some two at once
(shoal.chaos). It must succeed, its audit must be clean, and its AUC be within 0.01 of the
same job undisturbed. What was done is in build/soak.json, and a later run with another
--seed and --continue adds to it. Recovery times are the audit's: from a death until the
successor was at work.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import platform
import shutil
import statistics
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from shoal.chaos.faults import random_kills
from shoal.chaos.run import Outcome, run_disturbed
from shoal.cli_chaos import lines_of
from shoal.client import run_job
from shoal.config import JobConfig
from shoal.display import LineDisplay

ROOT = Path(__file__).parents[1]
TOLERANCE = 0.01


def configuration(data: Path, jobs: Path, name: str, options: dict[str, Any]) -> JobConfig:
    """A job as `make demo` runs it."""
    values: dict[str, Any] = {
        "command": "train",
        "job_name": name,
        "job_dir": str(jobs / name),
        "overwrite": True,
        "model_zoo": str(ROOT / "model_zoo" / "movielens"),
        "model_def": "deepfm.custom_model",
        "training_data": str(data / "train.parquet"),
        "validation_data": str(data / "validation.parquet"),
        "num_ps": 2,
        "num_workers": 2,
        "num_epochs": 3,
        "minibatch_size": 256,
        "checkpoint_steps": 50,
        "relaunch_limit": 1000,
    }
    return JobConfig(**(values | options))


def check(outcome: Outcome, undisturbed: float) -> list[str]:
    """What is wrong with a job, in words. A kill that the job did not live to see is not."""
    problems = []
    if outcome.state != "succeeded":
        problems.append(f"the job has {outcome.state}: {outcome.failure}")
    problems += outcome.audit.get("problems", [f"no audit: {outcome.audit_text}"])
    auc = outcome.result.metrics.get("auc") if outcome.result is not None else None
    if auc is None or abs(auc - undisturbed) > TOLERANCE:
        problems.append(f"the AUC is {auc}, undisturbed {undisturbed:.4f}")
    return problems


def entry_of(outcome: Outcome, seed: int, seconds: float, undisturbed: float) -> dict[str, Any]:
    """What build/soak.json has of one job."""
    done = [deed for deed in outcome.deeds if deed.at is not None]
    moments = Counter(deed.fault.when for deed in done)
    return {
        "seed": seed,
        "kills": len(done),
        "kills_by_role": Counter(deed.fault.parties[0].role for deed in done),
        "two_at_once": sum(count > 1 for count in moments.values()),
        "not_done": len(outcome.not_done),
        "state": outcome.state,
        "auc": outcome.result.metrics.get("auc") if outcome.result is not None else None,
        "undisturbed_auc": undisturbed,
        "records": outcome.audit.get("records"),
        "updates": outcome.audit.get("updates"),
        "recovered": recovered(outcome),
        "seconds": round(seconds, 1),
        "problems": check(outcome, undisturbed),
    }


def recovered(outcome: Outcome) -> dict[str, list[float]]:
    """Seconds until the successor was at work, of each death that had one, by role."""
    times = defaultdict(list)
    for death in outcome.audit.get("deaths", ()):
        if death["recovered"] is not None:
            times[death["who"].partition("-")[0]].append(round(death["recovered"], 3))
    return dict(times)


def table_of(entries: list[dict[str, Any]]) -> Table:
    """The one table: a row for each role, and what holds for all jobs beneath."""
    table = Table(title="soak: random kills survived")
    for title in ("role", "kills", "replaced", "median s", "p99 s", "longest s"):
        table.add_column(title, justify="left" if title == "role" else "right")
    for role in ("worker", "ps", "master"):
        times = sorted(t for entry in entries for t in entry["recovered"].get(role, ()))
        kills = sum(entry["kills_by_role"].get(role, 0) for entry in entries)
        shown = ["", "", ""]
        if times:
            p99 = times[math.ceil(len(times) * 0.99) - 1]
            shown = [f"{each:.1f}" for each in (statistics.median(times), p99, times[-1])]
        table.add_row(role, str(kills), str(len(times)), *shown)
    differences = [
        abs(entry["auc"] - entry["undisturbed_auc"])
        for entry in entries
        if entry["auc"] is not None
    ]
    bad = [entry["seed"] for entry in entries if entry["problems"]]
    table.caption = (
        f"{sum(entry['kills'] for entry in entries)} kills in {len(entries)} jobs, "
        f"{sum(entry['two_at_once'] for entry in entries)} times several at once; "
        f"updates lost: {sum((entry['updates'] or {}).get('lost', 0) for entry in entries)}; "
        f"largest difference of the AUC: {max(differences, default=float('nan')):.4f}; "
        + (f"BAD jobs, by seed: {bad}" if bad else "every job succeeded with a clean audit")
    )
    return table


@click.command()
@click.option("--kills", default=200, show_default=True, help="End when so many were done.")
@click.option("--kills-per-job", default=10, show_default=True)
@click.option("--seed", default=1, show_default=True, help="Of the first job; the next: + 1.")
@click.option("--continue", "again", is_flag=True, help="Add to what build/soak.json has.")
@click.option("--seconds", default=0.0, help="Begin no job after so many; 0: no limit.")
@click.option("--durability", default="", help="As of shoal train.")
@click.option("--log-place", default="", help="As of shoal train.")
@click.option(
    "--build", default=ROOT / "build", type=click.Path(path_type=Path), help="Folder for it all."
)
def main(
    kills: int,
    kills_per_job: int,
    seed: int,
    again: bool,
    seconds: float,
    durability: str,
    log_place: str,
    build: Path,
) -> None:
    """Kill processes of jobs at random until --kills were survived; exit 1 if a job was not."""
    data, jobs, report = build / "movielens", build / "soak", build / "soak.json"
    given = {"durability": durability, "log_place": log_place}
    options = {name: value for name, value in given.items() if value}
    said: dict[str, Any] = json.loads(report.read_text()) if again and report.exists() else {}
    entries: list[dict[str, Any]] = said.get("jobs", [])
    began = time.monotonic()
    if (undisturbed := said.get("undisturbed_auc")) is None:
        result = run_job(configuration(data, jobs, "undisturbed", {}), LineDisplay(sys.stdout))
        undisturbed = result.metrics["auc"]
        assert undisturbed is not None
    while sum(entry["kills"] for entry in entries) < kills:
        if seconds and time.monotonic() - began > seconds:
            break
        config = configuration(data, jobs, f"soak-{seed}", options)
        left = kills - sum(entry["kills"] for entry in entries)
        planned = random_kills(min(kills_per_job, left), seed, config.num_workers, config.num_ps)
        start = time.monotonic()
        outcome = run_disturbed(config, planned, LineDisplay(sys.stdout))
        entry = entry_of(outcome, seed, time.monotonic() - start, undisturbed)
        entries.append(entry)
        print("\n".join([*lines_of(outcome), outcome.audit_text]), flush=True)
        if outcome.state == "stopped":
            break
        print(f"seed {seed}: {entry['problems'] or 'clean'}", flush=True)
        if not entry["problems"]:
            shutil.rmtree(config.resolved().job_dir)  # what went wrong is kept
        said = {
            "undisturbed_auc": undisturbed,
            "machine": {"processor": platform.machine(), "cores": os.cpu_count()},
            "configuration": dataclasses.asdict(dataclasses.replace(config, token="")),
            "jobs": entries,
        }
        report.write_text(json.dumps(said, indent=2) + "\n")
        seed += 1
    Console(width=100).print(table_of(entries))
    sys.exit(1 if any(entry["problems"] for entry in entries) else 0)


if __name__ == "__main__":
    main()
