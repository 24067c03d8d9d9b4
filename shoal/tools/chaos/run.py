"""Running a job under faults, resumed where all of it was killed; then its audit."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import shoal.tools.counting
from shoal.base.disk.job_folder import JobFolder
from shoal.client.found.following import Interruptions
from shoal.client.run.local import resume_job, run_job
from shoal.client.show.display import Display
from shoal.config.job import JobConfig
from shoal.config.table_options import table_options
from shoal.errors import UserError
from shoal.proto import faults
from shoal.result import JobFailedError, JobResult
from shoal.seed import starting
from shoal.tools.chaos.count import Comparison, Part, compare
from shoal.tools.chaos.count_job import read_input
from shoal.tools.chaos.damage import Damage, damaged
from shoal.tools.chaos.faults import DisturbStorage, Fault, Kill, Leave, Scale
from shoal.tools.chaos.faulty import FAILS, behind_urls
from shoal.tools.chaos.watcher import Action, Watcher

UNDISTURBED = "-undisturbed"
"""Behind the name and the folder of the job that is run for comparison."""


@dataclass
class Outcome:
    """The outcome of a job under faults.

    state: as JobResult's, or "died" where it ended without a result. result: None then.
    failure: why it did not succeed, in words. audit: as `shoal audit --json` prints it, and
    audit_text for people; problems: what makes the run a bad one, in words. servers: how
    many it had at its end. comparison: of `counted`. between: what was done before to the
    files of the job that this one continues from.
    """

    state: str
    result: JobResult | None
    failure: str
    actions: list[Action]
    audit: dict[str, Any]
    audit_text: str
    problems: list[str] = field(default_factory=list)
    servers: int = 0
    comparison: Comparison | None = None
    between: str = ""

    @property
    def not_done(self) -> list[Action]:
        """The faults that did not come to pass, as the job ended before."""
        return [action for action in self.actions if action.at is None]


class _DisturbedJob:
    """A job from its start to its end, resumed each time that all of it was killed.

    Or that it failed as --on-loss=fail has it.

    result: None where its master died without one, and failure why, in words.
    """

    def __init__(
        self, config: JobConfig, watcher: Watcher, display: Display, draw: random.Random
    ) -> None:
        """draw: which file is damaged, and where."""
        self._config = config
        self._watcher = watcher
        self._display = display
        self._draw = draw
        self._damages: list[tuple[Action, Damage]] = []  # that the job was resumed with
        self.result: JobResult | None = None
        self.failure = ""

    @property
    def servers(self) -> int:
        """The number of servers that the job has had since it was last resumed."""
        return self._config.num_servers

    def run(self) -> None:
        """Run the job. Raises UserError if it is refused at its start."""
        self._follow(run_job, self._config)
        # A job that ended before it could be killed has a result of its own.
        while self.result is not None:
            if (action := self._watcher.killed) and self.result.state == "stopped":
                self._resume(action)
            elif self._failed_for_loss():
                self.failure = self._resumed({})
            else:
                break

    def _failed_for_loss(self) -> bool:
        """True if the job failed by --on-loss=fail, whose message says to resume it."""
        failure = self.result.failure if self.result is not None else None
        return bool(
            self._config.on_loss == "fail" and failure and "--on-loss" in failure["message"]
        )

    def _follow(self, run: Callable[..., JobResult], *arguments: Any) -> None:
        """The job until its client ends. Raises UserError."""
        interruptions = Interruptions()
        self.result, self.failure = None, ""
        self._watcher.start(self._config, interruptions.kill)
        try:
            self.result = run(*arguments, self._display, interruptions)
        except JobFailedError as error:
            self.failure = str(error)
        finally:
            self._watcher.stop()

    def _resume(self, action: Action) -> None:
        """Damage what is to be damaged, and go on; without the damage where it is refused."""
        fault = action.fault
        assert isinstance(fault, Kill)
        job_dir = Path(self._config.job_dir)
        changes: dict[str, Any] = dict(fault.changes)
        self._config = dataclasses.replace(self._config, **changes)
        done = [damaged(job_dir, *each, self._draw) for each in fault.damage]
        damages = [each for each in done if each is not None]
        action.remarks += [each.what for each in damages] + ["there is no file"] * (None in done)
        refusal = self._resumed(changes)
        while FAILS in refusal:  # each time another fault of storage, which is over by now
            action.remarks.append("refused by a failing storage's name, and resumed again")
            refusal = self._resumed(changes)
        if refusal and damages:
            if not all(each.is_named_in(refusal) for each in damages):
                self.failure = f"the damage is refused without naming the file: {refusal}"
                return
            action.remarks.append("refused by name, undone")
            for each in damages:
                each.undo()
            refusal = self._resumed({})
        else:
            self._damages += [(action, each) for each in damages]
        self.failure = refusal or self.failure

    def audited(self) -> tuple[dict[str, Any], str]:
        """The job's audit, as `audited` has it.

        A job can go on from a later state without the older segments of its journal, but its audit
        needs them: damage there is undone once the audit has refused it by the file's name.
        """
        job_dir = Path(self._config.job_dir)
        audit, text = audited(job_dir)
        for action, damage in self._damages:
            if not audit and damage.is_named_in(text):
                action.remarks.append("the audit refuses it by name, undone")
                damage.undo()
                audit, text = audited(job_dir)
        return audit, text

    def _resumed(self, changes: dict[str, Any]) -> str:
        """Resume the job; why it was refused, "" if it was not."""
        try:
            self._follow(resume_job, self._config.job_dir, changes)
        except UserError as error:
            return str(error)
        # A master that refuses to begin says so in its last line.
        *before, last = self.failure.splitlines() or [""]
        if last.startswith("Error: ") and not any(line.startswith("Traceback") for line in before):
            return last
        failure = self.result.failure if self.result is not None else None
        return str(failure["message"]) if failure and failure["kind"] == "USER_ERROR" else ""


def run_disturbed(
    config: JobConfig, planned: Sequence[Fault], display: Display, seed: int = 0
) -> Outcome:
    """Run a training job under `planned` faults, then its audit.

    planned: none still to be drawn. seed: of what damage draws. Raises UserError before
    anything is started.
    """
    storages = {fault.targets[0].role for fault in planned if isinstance(fault, DisturbStorage)}
    config = behind_urls(config.resolved(), storages)
    for fault in planned:
        if isinstance(fault, Kill):
            # Refused here, if the job could not be resumed with it.
            dataclasses.replace(config, **dict[str, Any](fault.changes))
    with tempfile.TemporaryDirectory(prefix="shoal-chaos-") as name, _in_folder(Path(name)):
        watcher = Watcher(config, list(planned), Path(name))
        course = _DisturbedJob(config, watcher, display, random.Random(f"damage {seed}"))
        try:
            course.run()
        finally:
            watcher.close()
    result, failure = course.result, course.failure
    if result is not None and result.failure is not None:
        failure = "\n".join(filter(None, (result.failure["message"], result.failure["traceback"])))
    outcome = Outcome(
        result.state if result is not None else "died",
        result,
        failure,
        watcher.actions,
        *course.audited(),
        servers=course.servers,
    )
    if outcome.state != "succeeded":
        outcome.problems.append(f"the job has {outcome.state}")
    outcome.problems += outcome.audit.get("problems", ["there is no audit"])
    outcome.problems += [
        f"{action.fault}@{action.fault.when} did not come to pass: the job ended before"
        for action in outcome.not_done
    ]
    return outcome


def counted(config: JobConfig, outcome: Outcome, before: Sequence[Part] = ()) -> None:
    """Compare the rows of a job that counts with its audit, and note what is wrong.

    config: of the job, as `count_job.count_values` has it, resolved. before: of the series.
    """
    output = Path(config.output)
    if not outcome.audit or not (output / "manifest.json").is_file():
        outcome.problems.append("no row could be counted: there is no export, or no audit")
        return
    parts = [*before, part_of(config, outcome, before)]
    comparison = outcome.comparison = compare(
        output, parts, outcome.servers, table_options(config.table)
    )
    if comparison.differs:
        outcome.problems.append("the model's rows are not as input and audit say")
    if comparison.lost and outcome.state == "succeeded":
        outcome.problems.append("the job has lost updates and says that it succeeded")


def part_of(config: JobConfig, outcome: Outcome, before: Sequence[Part] = ()) -> Part:
    """Return the Part of an audited job: its files that no part before has trained on."""
    known = {source.name for part in before for source in part.sources}
    sources = [each for each in read_input(Path(config.training_data)) if each.name not in known]
    total = config.epochs * sum(len(each.records) for each in sources)
    trained = sum(outcome.audit["records"][name] for name in ("once", "more", "failed"))
    # The model of --count has no rule that ends training early; one that is like it may.
    stopped = config.model_zoo != shoal.tools.counting.__path__[0] and trained < total
    sync = outcome.result.sync if outcome.result is not None else None
    return Part(
        sources,
        config.epochs,
        outcome.audit,
        stopped=stopped,
        moved=any(
            isinstance(action.fault, Scale | Leave) and action.at is not None
            for action in outcome.actions
        ),
        gradients=config.gradients_per_update if config.sync else 1,
        short=sync["short"] if sync else 0,
        batch=config.batch_size,
    )


@contextmanager
def _in_folder(folder: Path) -> Iterator[None]:
    """Make the processes that are started within look for faults in `folder`."""
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
    command = ["-m", "shoal.master.journal.audit", str(job_dir)]
    done = [starting.run(line, captured=True) for line in ([*command, "--json"], command)]
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
        return JobResult.read(JobFolder(Path(given)).result).metrics
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
