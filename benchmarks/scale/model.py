"""A model of larger jobs than this machine can run, from what calls cost on it.

    python -m benchmarks.scale.model [--workers N] [--servers N] [--steps N] ... [FOLDER]

Runs a few small jobs of run.py, and finds by least squares what a step, an exchange with a server,
a row, a task and a heartbeat cost master, servers and workers in CPU. CPU, as time on this machine
is shared by all of them. A task has its commits of the journal, and an exchange its copy in the
log of the server. In a further job a server is killed (recovery.py). Then predicts two larger jobs,
the second of the given size, runs them too, and prints both with the error; and says for 10, 100
and 1,000 servers with ten times as many workers, each process with a core of its own, how many
steps/s there can be and what limits them, how stale pushes are, and how long a server is away that
dies LOG_SECONDS after a checkpoint.

Arithmetic only: each process does one thing at a time, and nothing waits for a network.
"""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import dataclass, replace
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.scale.recovery import Recovery, recoveries
from benchmarks.scale.run import Measured, Results, Setting, options, run, show

SMALL = Setting(workers=8, hosts=2, servers=1, steps=8000, heartbeat_seconds=30.0)
CALIBRATION = (
    SMALL,
    replace(SMALL, servers=4),
    replace(SMALL, servers=2, batch=64),
    replace(SMALL, servers=4, batch=64),
    replace(SMALL, servers=2, steps_per_task=1),
    replace(SMALL, servers=2, heartbeat_seconds=0.05),
)
LOGGED = replace(SMALL, servers=2, batch=64)
"""Of which a server is killed."""
CHECKED = replace(SMALL, workers=24, servers=8, batch=16, steps_per_task=2, heartbeat_seconds=1.0)
LARGER = ((10, 100), (100, 1000), (1000, 10_000))
"""Servers and workers."""

COMPUTE_SECONDS = 0.05
"""Of a real worker's step, beside its calls."""

LOG_SECONDS = 300.0
"""Of pushes that a server does again: the default of --checkpoint-seconds."""

ROLES = ("master", "ps", "workers")
COSTS = {
    "master": ("task", "heartbeat", "second"),
    "ps": ("exchange", "row"),
    "workers": ("step", "exchange", "row", "task", "heartbeat"),
}
"""What each role spends CPU on. exchange: a pull and a push of one server. second: of the job, such
as for asking its servers."""


@dataclass(frozen=True)
class Amounts:
    """The work of a job in a time, measured or expected. rows: pulled and pushed, of all steps."""

    step: float
    exchange: float
    row: float
    task: float
    heartbeat: float
    second: float

    @classmethod
    def of(cls, setting: Setting, steps: float, seconds: float, rows: float) -> Amounts:
        """So many steps of such a job in so many seconds, with so many rows each."""
        beats = setting.workers * seconds / setting.heartbeat_seconds
        tasks = steps / setting.steps_per_task
        exchanges = steps * setting.servers
        return cls(steps, exchanges, steps * rows, tasks, beats, seconds)

    def of_role(self, role: str) -> list[float]:
        """The amounts of work that a role's costs are multiplied with."""
        return [getattr(self, name) for name in COSTS[role]]


def fitted(amounts: list[Amounts], measured: list[Measured], role: str) -> dict[str, float]:
    """CPU seconds of each thing that a role does. None is negative: what would be, is left out."""
    names = list(COSTS[role])
    matrix = np.array([each.of_role(role) for each in amounts])
    spent = np.array([each.cpu_of(role) for each in measured])
    kept = list(range(len(names)))
    while True:
        # By shares of what was spent: so each run counts alike.
        scaled = matrix[:, kept] / spent[:, None]
        found = np.linalg.lstsq(scaled, np.ones(len(spent)), rcond=None)[0]
        if (found >= 0).all():
            costs = dict.fromkeys(names, 0.0)
            return costs | {
                names[place]: float(cost) for place, cost in zip(kept, found, strict=True)
            }
        del kept[int(found.argmin())]


class Model:
    """CPU seconds of each role, from the costs of what it does; and how long a server is away."""

    def __init__(self, costs: dict[str, dict[str, float]], recovery: Recovery) -> None:
        self.costs = costs
        self.recovery = recovery

    def cpu(self, role: str, amounts: Amounts) -> float:
        """The CPU seconds of all processes of a role."""
        pairs = zip(self.costs[role].values(), amounts.of_role(role), strict=True)
        return sum(cost * amount for cost, amount in pairs)

    def limits(self, setting: Setting, rows: float) -> dict[str, float]:
        """Steps/s at which a process of each role has no time left, on a core of its own.

        workers: with COMPUTE_SECONDS a step beside their calls.
        """
        idle = Amounts.of(setting, 0.0, 1.0, rows)
        step = Amounts.of(setting, 1.0, 0.0, rows)
        found = {}
        for role, count in (("master", 1), ("ps", setting.servers), ("workers", setting.workers)):
            free = max(0.0, count - self.cpu(role, idle))
            each = self.cpu(role, step) + COMPUTE_SECONDS * (role == "workers")
            found[role] = free / each
        return found


@click.command()
@click.argument("folder", required=False)
@click.option("--calibration-steps", default=SMALL.steps, show_default=True, help="Of a small job.")
@options
def main(folder: str | None, calibration_steps: int, **given: Any) -> None:
    """Measure small jobs, predict two larger ones, run these, and predict what cannot be run."""
    # So that nothing is left behind then, either.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    console = Console(width=100)
    settings = [replace(setting, steps=calibration_steps) for setting in CALIBRATION]
    runs = [exact_run(setting, folder) for setting in settings]
    amounts = [
        Amounts.of(setting, each.steps, each.seconds, rows_of(found))
        for setting, (each, found) in zip(settings, runs, strict=True)
    ]
    measured = [each for each, _ in runs]
    costs = {role: fitted(amounts, measured, role) for role in ROLES}
    model = Model(costs, recoveries(replace(LOGGED, steps=calibration_steps), folder))
    table = Table("role", "CPU, ms")
    for role in ROLES:
        each = ", ".join(f"{name} {cost * 1e3:.4f}" for name, cost in model.costs[role].items())
        table.add_row(role, each)
    console.print(table)
    again = model.recovery
    away = ", ".join(f"{seen:.2f} s for {rows:,.0f}" for rows, seen in again.measured)
    console.print(
        f"a killed server was away, by rows of pushes done again: {away}. So {again.start:.2f} s "
        f"and {again.row * 1e6:.2f} us a row, within {again.error:.0%}"
    )
    compare(console, model, replace(CHECKED, steps=calibration_steps), folder)
    compare(console, model, Setting(**given), folder)
    predict(console, model)


def exact_run(setting: Setting, folder: str | None) -> tuple[Measured, Results]:
    """Run a job. Raises SystemExit if a count of it is not exact."""
    measured, found, wrong = run(setting, folder)
    if wrong:
        raise SystemExit(f"{setting}: {', '.join(wrong)}")
    return measured, found


def rows_of(found: Results) -> float:
    """Rows of a step."""
    return found.counts["rows"] / found.counts["steps"]


def compare(console: Console, model: Model, setting: Setting, folder: str | None) -> None:
    """Predict a job, run it, and print both."""
    seen, found = exact_run(setting, folder)
    show(seen, found, setting)
    amounts = Amounts.of(setting, seen.steps, seen.seconds, rows_of(found))
    table = Table(f"{setting.workers} workers, {setting.servers} servers", "model", "run", "error")
    total = 0.0
    for role in ROLES:
        predicted, spent = model.cpu(role, amounts), seen.cpu_of(role)
        total += predicted
        figures = (predicted * 1e3 / seen.steps, spent * 1e3 / seen.steps)
        error = f"{predicted / spent - 1:+.0%}"
        table.add_row(f"CPU ms a step, {role}", *(f"{each:.2f}" for each in figures), error)
    cores = os.cpu_count() or 1
    rate, most = seen.steps / seen.seconds, cores * seen.steps / total
    # These workers compute nothing: what is between a pull and its push is the push itself.
    stale = staleness_of(rate, float(found.pushes.mean()), setting.workers)
    for name, predicted, measured, digits in (
        (f"steps/s of {cores} cores", most, rate, 0),
        ("staleness", stale, seen.staleness, 1),
    ):
        error = f"{predicted / measured - 1:+.0%}"
        table.add_row(name, f"{predicted:.{digits}f}", f"{measured:.{digits}f}", error)
    console.print(table)


def staleness_of(rate: float, seconds: float, workers: int) -> float:
    """Pushes of others between a worker's pull and its push, in the mean, by Little's law.

    rate: pushes/s of all. seconds: between the two.
    """
    return min(rate * seconds, workers - 1.0)


def predict(console: Console, model: Model) -> None:
    """Print what jobs could do that cannot be run here."""
    columns = ("limited by", "master", "servers", "workers", "staleness", "a server is away, s")
    table = Table("servers / workers", "steps/s", *columns)
    for servers, workers in LARGER:
        setting = replace(Setting(), servers=servers, workers=workers, steps_per_task=64, batch=256)
        # Each row of a batch of its own: more than a power law has.
        rows = 26.0 * setting.batch
        limits = model.limits(setting, rows=rows)
        least = min(limits, key=lambda role: limits[role])
        logged = limits[least] * LOG_SECONDS * rows / servers
        shown = [f"{limits[role]:,.0f}" for role in ROLES]
        calls = model.cpu("workers", Amounts.of(setting, 1.0, 0.0, rows))
        stale = staleness_of(limits[least], COMPUTE_SECONDS + calls, workers)
        shown += [f"{stale:,.0f}", f"{model.recovery.seconds(logged):,.1f}"]
        table.add_row(f"{servers:,} / {workers:,}", f"{limits[least]:,.0f}", least, *shown)
    console.print(table)


if __name__ == "__main__":
    main()
