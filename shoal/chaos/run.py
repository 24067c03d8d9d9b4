"""Running a job under faults, and then its audit and the same job undisturbed."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shoal.chaos.count import Comparison, Course, compare
from shoal.chaos.count_job import read_input
from shoal.chaos.faults import Fault
from shoal.chaos.watcher import Deed, Watcher
from shoal.client import run_job
from shoal.config import JobConfig
from shoal.display import Display
from shoal.errors import UserError
from shoal.job_folder import JobFolder
from shoal.proto import faults
from shoal.result import JobFailedError, JobResult

UNDISTURBED = "-undisturbed"
"""Behind the name and the folder of the job that is run for comparison."""


@dataclass
class Outcome:
    """What became of a job under faults.

    state: as JobResult's, or "died" where it ended without a result. result: None then.
    failure: why it did not succeed, in words. audit: as `shoal audit --json` prints it, and
    audit_text for people; problems: what makes the run a bad one, in words. courses: its start
    and resumptions. comparison: of `counted`.
    """

    state: str
    result: JobResult | None
    failure: str
    deeds: list[Deed]
    audit: dict[str, Any]
    audit_text: str
    problems: list[str] = field(default_factory=list)
    courses: list[Course] = field(default_factory=list)
    comparison: Comparison | None = None

    @property
    def not_done(self) -> list[Deed]:
        """The faults that did not come to pass, as the job ended before."""
        return [deed for deed in self.deeds if deed.at is None]


def run_disturbed(config: JobConfig, planned: Sequence[Fault], display: Display) -> Outcome:
    """Run a training job under `planned` faults, then its audit.

    planned: none still to be drawn. Raises UserError before anything is started.
    """
    config = config.resolved()
    courses = [Course(time.time(), config.num_ps)]
    with tempfile.TemporaryDirectory(prefix="shoal-chaos-") as name, _in_folder(Path(name)):
        watcher = Watcher(config, list(planned), Path(name))
        watcher.start()
        result, failure = None, ""
        try:
            result = run_job(config, display)
        except JobFailedError as error:
            failure = str(error)
        finally:
            watcher.stop()
    if result is not None and result.failure is not None:
        failure = "\n".join(filter(None, (result.failure["message"], result.failure["traceback"])))
    outcome = Outcome(
        result.state if result is not None else "died",
        result,
        failure,
        watcher.deeds,
        *audited(Path(config.job_dir)),
    )
    outcome.courses = courses
    if outcome.state != "succeeded":
        outcome.problems.append(f"the job has {outcome.state}")
    outcome.problems += outcome.audit.get("problems", ["there is no audit"])
    outcome.problems += [
        f"{deed.fault}@{deed.fault.when} did not come to pass: the job ended before"
        for deed in outcome.not_done
    ]
    return outcome


def counted(config: JobConfig, outcome: Outcome) -> None:
    """Compare the rows of a job that counts with its audit, and note what is wrong.

    config: of the job, as `count_job.count_values` has it, resolved.
    """
    output = Path(config.output)
    if not outcome.audit or not (output / "manifest.json").is_file():
        outcome.problems.append("no row could be counted: there is no export, or no audit")
        return
    comparison = outcome.comparison = compare(
        output,
        read_input(Path(config.training_data)),
        config.num_epochs,
        config.minibatch_size,
        outcome.audit,
        outcome.courses,
    )
    if comparison.differs:
        outcome.problems.append("the model's rows are not as input and audit say")
    if comparison.lost and outcome.state == "succeeded":
        outcome.problems.append("the job has lost updates and says that it succeeded")


@contextmanager
def _in_folder(folder: Path) -> Iterator[None]:
    """Have the processes that are started look for faults there."""
    before = os.environ.get(faults.VARIABLE)
    os.environ[faults.VARIABLE] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ[faults.VARIABLE]
        else:
            os.environ[faults.VARIABLE] = before


def audited(job_dir: Path) -> tuple[dict[str, Any], str]:
    """The audit of a job as JSON and as text; empty, and why, if it cannot be made."""
    command = [sys.executable, "-m", "shoal.master.audit", str(job_dir)]
    done = [
        subprocess.run(line, capture_output=True, text=True, check=False)
        for line in ([*command, "--json"], command)
    ]
    try:
        return json.loads(done[0].stdout), done[1].stdout.rstrip()
    except ValueError:
        return {}, (done[1].stdout + done[1].stderr).rstrip()


def undisturbed_config(config: JobConfig) -> JobConfig:
    """The same job in a folder of its own, without what it leaves behind."""
    resolved = config.resolved()
    job_dir = resolved.job_dir + UNDISTURBED
    return dataclasses.replace(
        resolved,
        job_name=resolved.job_name + UNDISTURBED,
        job_dir=job_dir,
        checkpoint_dir=os.path.join(job_dir, "checkpoints"),
        output="",
        token="",
        overwrite=True,
    )


def run_undisturbed(config: JobConfig, display: Display) -> JobResult:
    """Run the same job in a folder beside it. Raises JobFailedError if it does not succeed."""
    result = run_job(undisturbed_config(config), display)
    if result.state != "succeeded":
        raise JobFailedError(f"the undisturbed job was {result.state}", result)
    return result


def given_metrics(given: str) -> dict[str, float | None]:
    """The metrics by name that --undisturbed gives: NAME=VALUE,... or the folder of a job.

    Raises UserError if it does not.
    """
    if "=" in given:
        return _read_metrics(given)
    try:
        return JobResult.load(JobFolder(Path(given)).result).metrics
    except (OSError, ValueError) as error:
        raise UserError(
            f"--undisturbed {given}: neither run nor none, no NAME=VALUE, and no folder of a job "
            f"that has ended ({error})"
        ) from error


def _read_metrics(given: str) -> dict[str, float | None]:
    metrics: dict[str, float | None] = {}
    for part in given.split(","):
        name, _, value = part.partition("=")
        try:
            metrics[name] = float(value)
        except ValueError:
            raise UserError(f"--undisturbed {given}: {value!r} is not a number") from None
    return metrics
