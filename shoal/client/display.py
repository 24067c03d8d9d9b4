"""Showing a job: a live display on a terminal, log lines elsewhere; in a notebook, notebook.py's.

Takes the master's JobStatus as it comes and draws; decides nothing. The report at the end is
report.py's.
"""

from __future__ import annotations

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import TracebackType
from typing import TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from shoal.base.job_folder import JobFolder, shown_path
from shoal.base.words import counted
from shoal.client.console import PlainConsole
from shoal.client.course import Course
from shoal.client.plain import plain
from shoal.client.report import metrics_text
from shoal.client.stages import bound_and_step
from shoal.config.job import JobConfig
from shoal.errors import UserError
from shoal.proto import shoal_pb2 as pb

LINE_SECONDS = 5.0
"""Between two log lines while the job gets on."""

SAME_SECONDS = 60.0
"""Between two log lines that say the same."""

BAR_COLUMNS = 24

FAILED = ": the job failed: "
"""In the master's message of a failure, which status and result have too."""

ENDED = ("succeeded", "degraded", "failed", "stopped")


def default_display(verbose: int | str = "auto") -> Display:
    """A live display if standard output is a terminal or a notebook, else log lines.

    verbose: 0 for one that shows nothing, 1 for a live display, 2 for lines, as in Keras. Raises
    UserError if it is none of these.
    """
    # Late: it is a Display itself.
    from shoal.client.notebook import NotebookDisplay, in_notebook

    if verbose not in ("auto", 0, 1, 2):
        raise UserError(f'verbose must be "auto", 0, 1 or 2, not {verbose!r}')
    if verbose == 0:
        return SilentDisplay()
    if in_notebook() and verbose != 2:
        return NotebookDisplay()
    live = verbose == 1 or (verbose == "auto" and sys.stdout.isatty())
    return LiveDisplay(PlainConsole()) if live else LineDisplay(sys.stdout)


class Display(ABC):
    """What run_job tells about a job; entered before the job starts, left at its end."""

    def __init__(self) -> None:
        self._messages: list[str] = []
        self._trouble = ""
        self._evaluated: int | None = None
        self._course = Course()

    def __enter__(self) -> Display:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None

    def started(self, config: JobConfig, folder: JobFolder) -> None:
        """The job is about to start."""
        self.event(
            f"job {config.job_name}: {counted(config.num_servers, 'server')}, "
            f"{counted(config.num_workers, 'worker')}; logs in {shown_path(folder.logs)}"
        )

    def update(self, status: pb.JobStatus) -> None:
        """The job's status, some times per second."""
        messages = list(status.messages)
        for text in new_messages(self._messages, messages):
            # Why the job failed is told once, at its end.
            if not (status.HasField("failure") and FAILED in text):
                self.event(text)
        self._messages = messages
        if status.trouble != self._trouble:
            self.event(f"warning: {status.trouble}" if status.trouble else "the job goes on")
            self._trouble = status.trouble
        self._course.update(status, time.monotonic())
        if status.HasField("last_evaluation"):
            evaluation = status.last_evaluation
            if evaluation.version != self._evaluated:
                self._evaluated = evaluation.version
                metrics = metrics_text(evaluation.metrics, self._course.best)
                # Without training, as in `shoal evaluate`, there are no versions to tell apart.
                when = f" at version {evaluation.version}" if evaluation.version else ""
                records = counted(evaluation.records, "record")
                self.event(f"evaluation{when}: {metrics} ({records})")
        self.draw(status)

    @abstractmethod
    def event(self, text: str) -> None:
        """Something happened that is worth a line of its own."""

    @abstractmethod
    def draw(self, status: pb.JobStatus) -> None:
        """Show the status."""


class SilentDisplay(Display):
    """Shows nothing."""

    def event(self, text: str) -> None:
        """See Display."""

    def draw(self, status: pb.JobStatus) -> None:
        """See Display."""


class WrappedDisplay(Display):
    """Gives all that it is told to another display; subclasses do something beside that."""

    def __init__(self, inner: Display) -> None:
        super().__init__()
        self._inner = inner

    def __enter__(self) -> Display:
        self._inner.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._inner.__exit__(kind, error, trace)

    def started(self, config: JobConfig, folder: JobFolder) -> None:
        """See Display."""
        self._inner.started(config, folder)

    def update(self, status: pb.JobStatus) -> None:
        """See Display."""
        self._inner.update(status)

    def event(self, text: str) -> None:
        """See Display."""
        self._inner.event(text)

    def draw(self, status: pb.JobStatus) -> None:
        """See Display."""
        self._inner.draw(status)


class LineDisplay(Display):
    """A log line every few seconds, at each change of state, and per event."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream
        self._told = ""
        self._key: tuple[str, str] | None = None
        self._since = self._last = 0.0
        self._text = ""

    def event(self, text: str) -> None:
        """One line with the time of day; not the same one twice running."""
        text = plain(text)
        if text != self._told:
            self._told = text
            print(f"{time.strftime('%H:%M:%S')} {text}", file=self._stream, flush=True)

    def draw(self, status: pb.JobStatus) -> None:
        """A line if one is due: at a change, every few seconds, later if it says the same."""
        now, text = time.monotonic(), status_text(status, self._course)
        changed = (status.state, status.waits_for) != self._key
        same = text == self._text
        if changed:
            self._key, self._since = (status.state, status.waits_for), now
        elif now - self._last < (SAME_SECONDS if same else LINE_SECONDS):
            return
        self._text, self._last = text, now
        self.event(text if changed or not same else f"{text} (for {now - self._since:.0f} s)")


class LiveDisplay(Display):
    """Events scroll by above a block that is drawn anew with each status."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console
        self._told = ""
        self._live = Live(console=console, auto_refresh=False, transient=True)

    def __enter__(self) -> Display:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def event(self, text: str) -> None:
        """One line above the block."""
        if text != self._told:
            self._told = text
            self._console.print(Text(f"{time.strftime('%H:%M:%S')} {text}"))

    def draw(self, status: pb.JobStatus) -> None:
        """Draw the block anew."""
        self._live.update(block(status, self._course), refresh=True)


def new_messages(before: Sequence[str], now: Sequence[str]) -> list[str]:
    """What was added to `now`, of which only the newest part is kept.

    The longest end of `before` that `now` begins with is what both share. If they share none, a
    new master knows not all that the one before had told: what it repeats is left out.
    """
    for shared in range(min(len(before), len(now)), 0, -1):
        if list(before[len(before) - shared :]) == list(now[:shared]):
            return list(now[shared:])
    return [text for text in now if text not in before]


def _progress(status: pb.JobStatus) -> tuple[str, int, int]:
    """(what is counted, done, total)."""
    if status.tasks_total:
        return "tasks", status.tasks_done, status.tasks_total
    return "records", status.records_done, status.records_total


def _figures(status: pb.JobStatus, course: Course) -> dict[str, str]:
    """The numbers worth showing now, by name.

    How fast it goes only while it does, so that nothing here contradicts the report.
    """
    figures = {}
    if status.ledger.total:
        epoch = min(status.epoch + 1, status.epochs)
        figures["epoch"] = f"{epoch}/{status.epochs}"
    if status.state in ("training", "predicting"):
        figures["samples/s"] = f"{status.samples_per_second:,.0f}"
    if course.loss is not None:
        figures["loss"] = f"{course.loss:.4f}"
    if status.state in ENDED:
        return figures
    # Those that are given back, or beyond `shoal scale`, are about to end.
    alive = min(status.workers_alive, status.workers_wanted)
    figures["workers"] = f"{alive}/{status.workers_wanted}"
    figures["servers"] = f"{status.servers_alive}/{status.servers_wanted}"
    if status.ledger.total and status.state == "training":
        figures["staleness"] = f"{status.mean_staleness:.2f}"
    return figures


def _troubles(status: pb.JobStatus) -> list[str]:
    """What went wrong so far, and the job goes on."""
    troubles = []
    if status.left_out:
        troubles.append(f"{counted(status.left_out, 'minibatch', 'minibatches')} left out")
    if status.bad_records:
        troubles.append(counted(status.bad_records, "bad record"))
    return troubles


def _waiting(status: pb.JobStatus) -> str:
    if not status.waits_for:
        return ""
    return f"waiting for {status.waits_for}" + (
        f": {status.waits_progress}" if status.waits_progress else ""
    )


def status_text(status: pb.JobStatus, course: Course) -> str:
    """The status in one line."""
    if status.state == "starting" or (status.waits_for and course.loss is None):
        return f"{status.state}: {_waiting(status)}" if status.waits_for else status.state
    unit, done, total = _progress(status)
    # Before the data are known, the tasks are not those of the user.
    known = status.ledger.total or status.records_total
    parts = [f"{unit} {done:,}/{total:,}"] if known else []
    parts += [f"{name} {value}" for name, value in _figures(status, course).items()]
    parts += _troubles(status)
    parts += [f"{course.time_left} left"] if course.time_left else []
    parts += [_waiting(status)] if status.waits_for else []
    return f"{status.state}: {', '.join(parts)}" if parts else status.state


def block(status: pb.JobStatus, course: Course | None = None) -> Group:
    """The status as the live display's block: lines that keep their places, none of them wrapped.

    course: what is known of the job's course; without one, of this status alone.
    """
    if course is None:
        course = Course()
        course.update(status, 0.0)
    unit, done, total = _progress(status)
    head = Table.grid(padding=(0, 2))
    cells: list[Text | ProgressBar] = [
        Text(status.job_name, style="bold", no_wrap=True, overflow="ellipsis"),
        Text(status.state, style="cyan", no_wrap=True),
    ]
    if status.state != "starting" and total:
        cells.append(ProgressBar(total=total, completed=done, width=BAR_COLUMNS))
        cells.append(Text(f"{done:,}/{total:,} {unit}", no_wrap=True))
    cells.append(Text(f"{status.seconds:.0f} s", no_wrap=True))
    head.add_row(*cells)
    lines: list[Table | Text] = [head]
    if status.state != "starting":
        figures = Table.grid(padding=(0, 2))
        named = _figures(status, course)
        if course.time_left:
            named["left"] = course.time_left
        figures.add_row(*(Text(name, style="dim", no_wrap=True) for name in named))
        figures.add_row(*(Text(value, no_wrap=True) for value in named.values()))
        lines.append(figures)
    if status.trouble:
        lines.append(_line(status.trouble, "bold red"))
    if waiting := _waiting(status):
        lines.append(_line(waiting, "yellow"))
    if troubles := ", ".join(_troubles(status)):
        lines.append(_line(troubles, "bold red"))
    if status.state == "training":
        found = status.diagnosis
        told = bound_and_step(found.bound_by, found.evidence, found.advice, status.stage_seconds)
        lines += [_line(text, "dim") for text in told if text]
    if status.HasField("last_evaluation"):
        lines.append(_line(metrics_text(status.last_evaluation.metrics, course.best), "green"))
    return Group(*lines)


def _line(text: str, style: str) -> Text:
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")
