"""Jobs that this program did not start, or no longer has: found by their names.

Their state and figures are those of `shoal jobs` and `shoal compare`, as pandas DataFrames.
"""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.api.calls import AnyPath, in_python_words, succeeded
from shoal.api.jobs import Job, Run
from shoal.base.disk.job_folder import JOBS, JobFolder
from shoal.base.modules.libraries import library
from shoal.base.words import near
from shoal.client.ask.compare import METRIC, Compared, compared, differing_flags, jobs_of
from shoal.client.ask.local_jobs import LocalJob, jobs_in, kept
from shoal.client.finding import on_kubernetes
from shoal.client.found.following import POLL_SECONDS, Interruptions
from shoal.client.run.local import resume_job
from shoal.client.show.display import Display
from shoal.client.show.drawn import ENDED
from shoal.client.show.notebook import default_display
from shoal.config.flags import kind_of
from shoal.config.job import RESUMABLE, RESUMABLE_IMAGES, JobConfig, option_fields
from shoal.config.signatures import checked
from shoal.errors import UserError
from shoal.result import JobFailedError, JobResult

if TYPE_CHECKING:
    import pandas as pd

    from shoal.client.ask.running_job import RunningJob


def attach(job: AnyPath, *, namespace: str = "") -> Job | JobResult:
    """A job that was started before, such as by a kernel that was started again.

    job: its name, of a folder in shoal-jobs or of a job on Kubernetes, or the path of its folder.
    namespace: of a job on Kubernetes of which no folder is here.

    Returns a Job while it runs, and else its JobResult, however it ended. The program does not wait
    for the Job at its end. Raises UserError if there is no such job, or if it was killed.
    """
    with in_python_words():
        name = os.fspath(job)
        folder = None if namespace else kept(name)
        if folder is None or folder.templates.is_file():
            return _on_kubernetes(name, folder, namespace)
        there = LocalJob(folder)
        over = there.over()  # before the result, which may come meanwhile
        if (result := there.result()) is not None:
            return result
        if over:
            raise UserError(f"job {there.name} was killed{there.way_on()}")
        config = JobConfig.load(folder.config)
        return Job(_followed(there, config, folder), own=False)


def resume(
    job: AnyPath, *, wait: bool = True, verbose: int | str = "auto", **changes: Any
) -> JobResult | Job:
    """Go on with a job that was stopped, failed or killed, as `shoal train --resume` does.

    job: its name, of a folder in shoal-jobs, or the path of its folder. wait, verbose: as of
    `train`. changes: arguments of `train` that another value may replace: engine,
    workers, servers, autoscale, relaunch_limit, max_bad_records, image, server_image.

    Raises UserError if the job cannot go on, JobFailedError if it does not succeed.
    """
    with in_python_words():
        name = os.fspath(job)
        may = {*RESUMABLE, *RESUMABLE_IMAGES}
        known = {field.name: field for field in option_fields() if field.name in may}
        for each in changes:
            if each not in known:
                hint = near(each, known, most=1)
                raise UserError(f"shoal.resume has no argument {each}{hint}: the job keeps it")
        values = {n: checked(n, value, kind_of(known[n])) for n, value in changes.items()}
        folder = kept(name)
        if folder is None:
            there = [each.path.name for each in jobs_in(JOBS)]
            raise UserError(f"job: there is no job {name}{near(name, there)}")
        shown = default_display(verbose)

    def run(display: Display, interruptions: Interruptions | None = None) -> JobResult:
        with in_python_words():
            return succeeded(resume_job(str(folder.path), values, display, interruptions))

    return run(shown) if wait else Job(run)


def _on_kubernetes(name: str, folder: JobFolder | None, namespace: str) -> Job | JobResult:
    """folder: what was kept here of the job; None if nothing was."""
    if folder is not None:
        if (result := LocalJob(folder).result()) is not None:
            return result
        config = JobConfig.load(folder.config)
        name, namespace = config.job_name, config.namespace
    try:
        job = on_kubernetes(name, namespace)
    except UserError as error:
        known = [each.path.name for each in jobs_in(JOBS)]
        raise UserError(f"{error}{near(name, known)}") from error
    if (ended := job.result()) is not None:
        return ended
    if over := job.over():
        raise UserError(f"job {name}: {over}")
    config, _ = job.handle.configuration()
    there = folder or JobFolder(JOBS.absolute() / name)
    return Job(_followed(job, config, there), own=False)


def _followed(job: RunningJob, config: JobConfig, folder: JobFolder) -> Run:
    """Asks a job how it goes until it has ended."""

    def run(display: Display, interruptions: Interruptions) -> JobResult:
        del interruptions  # the job is another program's
        display.started(config, folder)
        told = ""
        try:
            while True:
                goes_on = False
                try:
                    status = job.status()
                    display.update(status)
                    goes_on = status.state not in ENDED
                except UserError as error:  # a master that starts again, or has ended
                    if told != str(error):
                        display.event(told := str(error))
                if not goes_on:
                    over = job.over()  # before the result, as in attach
                    if (result := job.result()) is not None:
                        return succeeded(result)
                    if over:
                        raise JobFailedError(over)
                time.sleep(POLL_SECONDS)
        finally:
            job.close()

    return run


def jobs(folder: AnyPath = JOBS) -> pd.DataFrame:
    """The jobs of this machine whose folders are in `folder`, the newest first.

    The index is the job's name. Columns: state ("running", "killed", or how it ended), command,
    records (trained, evaluated or predicted so far, int64), seconds (float64) and began (UTC). One
    that has written no figures yet has 0 in these. Raises UserError without pandas.
    """
    pandas = library("pandas", "jobs()", "pandas")
    rows = [_row(each) for each in jobs_in(Path(folder))]
    columns = ["job", "state", "command", "records", "seconds", "began"]
    kinds = {
        "state": "str",
        "command": "str",
        "records": "int64",
        "seconds": "float64",
        "began": "datetime64[ns, UTC]",
    }
    frame: pd.DataFrame = pandas.DataFrame(rows, columns=columns).astype(kinds)
    return frame.set_index("job")


def _row(folder: JobFolder) -> list[Any]:
    job = compared(folder, folder.path.name)
    began = datetime.fromtimestamp(folder.config.stat().st_mtime, UTC)
    figures = [job.figures.get(name, 0) for name in ("records", "seconds")]
    return [job.name, job.state, job.flags["command"], *figures, began]


def compare(*jobs: AnyPath | Job | JobResult) -> pd.DataFrame:
    """Jobs beside each other, a row each, as `shoal compare` has them.

    jobs: names, folders, and what `train` and `attach` return; two or more, which may be running.
    The index is the job's name. Columns: its state, the arguments that differ, the last value of
    each metric (val_NAME) and its best (best_val_NAME), then seconds, samples_per_second, loss
    (that of training) and other figures. What is not known of a job is NaN or None.

    Raises UserError without pandas, or if there is no such job.
    """
    pandas = library("pandas", "compare()", "pandas")
    folders = [each.job_dir if isinstance(each, Job | JobResult) else each for each in jobs]
    with in_python_words():
        found = jobs_of([os.fspath(each) for each in folders])
    columns = [_columns(job, differing_flags(found)) for job in found]
    # In the order of the parts: one job may have a metric that another has not.
    names = dict.fromkeys((part, n) for job in columns for part in range(4) for n in job[part])
    ordered = [name for _, name in sorted(names, key=lambda each: each[0])]
    rows = [{name: value for part in job for name, value in part.items()} for job in columns]
    return pandas.DataFrame(rows, index=[job.name for job in found], columns=ordered)


def _columns(job: Compared, flags: list[str]) -> list[dict[str, Any]]:
    """Parts of a job's row: state, arguments, metrics, figures."""
    metrics: dict[str, Any] = {}
    for name, values in job.metrics.items():
        metrics[f"{METRIC}{name}"] = values["last"]
        if values["best"] is not None:
            metrics[f"best_{METRIC}{name}"] = values["best"]
    return [{"state": job.state}, {n: job.flags.get(n) for n in flags}, metrics, dict(job.figures)]
