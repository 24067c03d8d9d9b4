"""`shoal compare`: jobs of this machine side by side, with the flags in which they differ.

Knows a job by its folder: its configuration, its result, and metrics.csv of one that has none
yet. Asks no process, so that jobs may be running, have ended or have been killed. Only the cluster
knows whether a job on Kubernetes without a result here goes on.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from shoal.base.disk.job_folder import JOBS, JobFolder, shown_path
from shoal.base.words import near
from shoal.client.ask.local_jobs import LocalJob, kept
from shoal.client.show.course import Best, larger_is_better
from shoal.cluster.configured import check_configured
from shoal.config.flags import flag
from shoal.errors import UserError
from shoal.result import JobResult

OWN = ("token", "job_name", "job_dir", "overwrite")
"""Fields of a configuration in which two jobs differ anyway, or that change nothing."""

METRIC = "val_"
"""Before the name of an evaluation metric, in metrics.csv."""

HERE, CLUSTER = "on this machine", "on Kubernetes"
"""Where jobs run."""

LEDGER = ("trained_once", "repeated", "failed", "pending")


@dataclass(frozen=True)
class Compared:
    """One job. Figures that are not known are not there.

    place: where it runs or ran, in words.
    flags: fields of its configuration, paths in its own folder relative to that.
    figures: seconds, samples_per_second, loss, records by what became of them, deaths, ...
    metrics: of evaluation by name: last, best and the version of the best; None: not a number, or
        nobody knows whether larger is better.
    """

    name: str
    folder: str
    place: str
    state: str
    flags: dict[str, Any]
    figures: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, dict[str, float | None]] = field(default_factory=dict)


def jobs_of(names: Sequence[str]) -> list[Compared]:
    """The jobs with these names or folders.

    Raises UserError if there are fewer than two, one is not there, or is given twice.
    """
    if len(names) < 2:
        raise UserError("give two jobs or more to compare: shoal compare JOB JOB ...")
    folders = [_found(name) for name in names]
    for name, folder in zip(names, folders, strict=True):
        if folders.count(folder) > 1:
            raise UserError(f"job {name} is given twice: give each job once")
    short = [folder.path.name for folder in folders]
    return [
        compared(folder, name if short.count(name) == 1 else shown_path(folder.path))
        for folder, name in zip(folders, short, strict=True)
    ]


def _found(job: str) -> JobFolder:
    if (folder := kept(job)) is not None:
        return JobFolder(folder.path.resolve())
    known = [each.name for each in JOBS.iterdir()] if JOBS.is_dir() else []
    raise UserError(f"there is no job {job} in ./{JOBS} or at this path{near(job, known)}")


def compared(folder: JobFolder, name: str) -> Compared:
    """Collect the facts about the job in a folder. Raises UserError if its files are no job's."""
    try:
        config = json.loads(folder.config.read_text())
        own = config["job_dir"].rstrip("/") + "/"
        flags = {
            key: value.replace(own, "JOB_DIR/") if isinstance(value, str) else value
            for key, value in config.items()
            if key not in OWN
        }
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise UserError(f"{folder.config} is not a job's configuration: {error}") from error
    rows = _rows(folder.metrics)
    try:
        figures = _figures_of_rows(rows)
        evaluations = _evaluations_of_rows(rows)
    except (ValueError, TypeError, AttributeError) as error:
        raise _no_metrics(folder.metrics, error) from error
    place, state, result = _course(folder, config)
    if result is not None:
        figures |= {
            "seconds": result.seconds,
            "records": result.records or figures.get("records", 0),
            "samples_per_second": result.samples_per_second,
            **{kind: result.ledger[kind] for kind in LEDGER if kind in result.ledger},
            "mean_staleness": result.staleness.get("mean", 0.0),
            "worker_deaths": result.workers.get("deaths", 0),
            "server_deaths": result.servers.get("deaths", 0),
            "checkpoints": result.checkpoints.get("taken", 0),
        }
        evaluations = [(each["version"], each["metrics"]) for each in result.evaluations]
    path = str(folder.path)
    return Compared(name, path, place, state, flags, figures, _metrics(evaluations))


def _course(folder: JobFolder, config: dict[str, Any]) -> tuple[str, str, JobResult | None]:
    """The place where a job runs or ran, its state, and its result, if it has one."""
    here = LocalJob(folder)
    result = here.result()
    if not folder.templates.is_file():
        return HERE, here.state(), result
    if result is not None:
        return CLUSTER, result.state, result
    try:
        check_configured()
        from shoal.client.ask.cluster_jobs import (
            cluster_job,  # late: the Kubernetes library is large
        )

        job = cluster_job(str(config["job_name"]), str(config["namespace"]))
        state = job.state()
        return CLUSTER, state, None if state == "deleted" else job.result()
    except (UserError, LookupError) as error:
        return CLUSTER, f"not known: {error}", None


def _rows(path: Path) -> list[dict[str, str]]:
    try:
        with path.open(newline="") as file:
            return list(csv.DictReader(file))
    except OSError:
        return []  # with --metrics-seconds 0, or not begun
    except (ValueError, csv.Error) as error:
        raise _no_metrics(path, error) from error


def _no_metrics(path: Path, error: Exception) -> UserError:
    return UserError(f"{path} is not a job's metrics: {error}; remove it to compare without them")


def _figures_of_rows(rows: list[dict[str, str]]) -> dict[str, float]:
    """The newest figure of each column."""
    known = {}
    for row in rows:
        for name in ("seconds", "records", "loss", "mean_staleness", "rows", "table_bytes"):
            if row.get(name):
                known[name] = float(row[name])
        for name in ("worker_deaths", "server_deaths"):
            known[name] = float(row.get(name) or 0)
        if row.get("state") in ("training", "predicting"):
            known["samples_per_second"] = float(row.get("samples_per_second") or 0)
    return known


Evaluations = list[tuple[int, dict[str, float | None]]]


def _evaluations_of_rows(rows: list[dict[str, str]]) -> Evaluations:
    return [
        (
            int(row["evaluated_version"]),
            {
                n.removeprefix(METRIC): float(v)
                for n, v in row.items()
                if n.startswith(METRIC) and v
            },
        )
        for row in rows
        if row.get("evaluated_version")
    ]


def _metrics(evaluations: Evaluations) -> dict[str, dict[str, float | None]]:
    best = Best(evaluations)
    found: dict[str, dict[str, float | None]] = {}
    for _, metrics in evaluations:
        for name, value in metrics.items():
            of_best, version = best.of(name) or (None, None)
            found[name] = {"last": value, "best": of_best, "best_version": version}
    return found


def differing_flags(jobs: Sequence[Compared]) -> list[str]:
    """The fields whose values are not the same in all jobs, in the order of the configuration."""
    names = dict.fromkeys(name for job in jobs for name in job.flags)
    return [n for n in names if any(job.flags.get(n) != jobs[0].flags.get(n) for job in jobs)]


def to_json(jobs: Sequence[Compared]) -> str:
    """All that is known of the jobs, and the flags that differ by job."""
    return json.dumps(
        {
            "flags": {
                n: {job.name: job.flags.get(n) for job in jobs} for n in differing_flags(jobs)
            },
            "jobs": [
                {
                    "name": job.name,
                    "folder": job.folder,
                    "place": job.place,
                    "state": job.state,
                    "figures": job.figures,
                    "metrics": {
                        name: {key: _finite(value) for key, value in each.items()}
                        for name, each in job.metrics.items()
                    },
                }
                for job in jobs
            ],
        },
        indent=2,
    )


def _finite(value: float | None) -> float | None:
    return None if value is None or value != value or abs(value) == float("inf") else value


_FIGURES = {
    "seconds": ("seconds", "{:,.1f}"),
    "samples_per_second": ("samples/s", "{:,.0f}"),
    "loss": ("training loss", "{:.4f}"),
    "records": ("records", "{:,.0f}"),
    "trained_once": ("records trained once", "{:,.0f}"),
    "repeated": ("records repeated", "{:,.0f}"),
    "failed": ("records failed", "{:,.0f}"),
    "pending": ("records pending", "{:,.0f}"),
    "mean_staleness": ("mean staleness", "{:.2f}"),
    "worker_deaths": ("deaths of workers", "{:,.0f}"),
    "server_deaths": ("deaths of servers", "{:,.0f}"),
    "checkpoints": ("checkpoints", "{:,.0f}"),
    "rows": ("rows of tables", "{:,.0f}"),
    "table_bytes": ("bytes of tables", "{:,.0f}"),
}
"""Figure -> its name and form in the table."""


def table_of(jobs: Sequence[Compared]) -> Table:
    """The jobs as columns. The best of a metric is bold, where its name tells which that is."""
    table = Table()
    table.add_column("", overflow="fold")
    for job in jobs:
        table.add_column(Text(job.name), overflow="fold")
    if any(job.place != HERE for job in jobs):
        table.add_row("place", *(job.place for job in jobs))
    table.add_row("state", *(Text(job.state) for job in jobs))
    for name in differing_flags(jobs):
        shown = name if name == "command" else flag(name)
        table.add_row(shown, *(_shown(job.flags.get(name)) for job in jobs))
    table.add_section()
    for name in sorted({name for job in jobs for name in job.metrics}):
        larger = larger_is_better(name)
        for key, title in (("last", name), ("best", f"{name}, best")):
            values = [job.metrics.get(name, {}).get(key) for job in jobs]
            if key == "last" or any(value is not None for value in values):
                table.add_row(Text(title), *_marked(values, larger))
    table.add_section()
    for name, (title, form) in _FIGURES.items():
        if any(name in job.figures for job in jobs):
            cells = (form.format(job.figures[name]) if name in job.figures else "" for job in jobs)
            table.add_row(title, *cells)
    return table


def _shown(value: Any) -> Text:
    words = {None: "", True: "yes", False: "no"}
    # As it is: brackets of a str would be taken for markup.
    return Text(words[value] if value is None or isinstance(value, bool) else str(value))


def _marked(values: Sequence[float | None], larger: bool | None) -> list[Text]:
    known = [value for value in values if value is not None and value == value]
    best = None if larger is None or not known else max(known) if larger else min(known)
    return [
        Text("" if value is None else f"{value:.4f}", style="bold" if value == best else "")
        for value in values
    ]
