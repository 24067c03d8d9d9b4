"""`shoal check`: what is found before a job, by a process that has TensorFlow.

Owns starting that process. What it looks at is worker/inspect/check.py's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from shoal.client.run.checks import check_inputs
from shoal.client.run.model_process import model_process, run
from shoal.client.show.plain import echo
from shoal.config.job import JobConfig


@dataclass(frozen=True, repr=False)
class CheckReport:
    """The findings of a check. text: the report. faults: errors that keep a job from running."""

    text: str
    faults: str

    def __bool__(self) -> bool:
        return not self.faults

    def __repr__(self) -> str:
        return "\n\n".join(filter(None, (self.text, self.faults)))


def run_check(config: JobConfig) -> int:
    """Print the report on a module and its data; returns the exit code.

    Raises UserError for what is found without TensorFlow.
    """
    with _checking(config) as (doubts, command):
        for doubt in doubts:
            echo(f"warning: {doubt}", err=True)
        return run(command).returncode


def checked_report(config: JobConfig) -> CheckReport:
    """Return the report that `run_check` prints. Raises UserError as it does."""
    with _checking(config) as (doubts, command):
        found = run(command, captured=True)
        text = "\n".join([*(f"warning: {each}" for each in doubts), found.stdout.strip()])
        failed = f"shoal check ended with code {found.returncode}"
        return CheckReport(text.strip(), (found.stderr.strip() or failed) * bool(found.returncode))


@contextmanager
def _checking(config: JobConfig) -> Iterator[tuple[list[str], list[str]]]:
    """The likely mistakes, and the command that checks the rest. Raises UserError."""
    config = config.resolved()
    doubts = check_inputs(config)
    with model_process("check", config) as (command, _):
        yield doubts, command
