"""The status of a job as a line of text, and as the block of lines of a live display."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from shoal.base.words import counted
from shoal.client.show.course import Course
from shoal.client.show.report import metrics_text
from shoal.client.show.stages import bound_and_step
from shoal.proto import shoal_pb2 as pb

ENDED = ("succeeded", "degraded", "failed", "stopped")

BAR_COLUMNS = 24

NARROW = 72
"""Columns of a terminal, below which a bar and a table of figures have no room."""

FIRST = ("epoch", "loss")
"""Of the figures, those that a narrow terminal shows first."""


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
    """The troubles so far that did not stop the job, in words."""
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
    lines: list[RenderableType] = [_Head(status, course)]
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


def _packed(words: Iterable[str], width: int) -> list[str]:
    """Two lines of at most so many characters, of the first words that fit; none is cut."""
    lines = ["", ""]
    for word in filter(None, words):
        for at, line in enumerate(lines):
            longer = f"{line}, {word}" if line else word
            if len(longer) <= width:
                lines[at] = longer
                break
    return lines


class _Head:
    """The lines of a status with its figures, by the width that there is."""

    def __init__(self, status: pb.JobStatus, course: Course) -> None:
        self._status, self._course = status, course

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        status, (unit, done, total) = self._status, _progress(self._status)
        figures = _figures(status, self._course) if status.state != "starting" else {}
        if self._course.time_left:
            figures["left"] = self._course.time_left
        progress = f"{done:,}/{total:,} {unit}" if status.state != "starting" and total else ""
        if options.max_width < NARROW:
            left = figures.pop("left", "")
            told = {name: f"{name} {value}" for name, value in figures.items()}
            first = [told.pop(name, "") for name in FIRST] + ([f"{left} left"] if left else [])
            lines = _packed([status.state, progress, *first, *told.values()], options.max_width)
            yield Text("\n".join(filter(None, lines)))
            return
        head = Table.grid(padding=(0, 2))
        cells: list[Text | ProgressBar] = [
            Text(status.job_name, style="bold", no_wrap=True, overflow="ellipsis"),
            Text(status.state, style="cyan", no_wrap=True),
        ]
        if progress:
            cells.append(ProgressBar(total=total, completed=done, width=BAR_COLUMNS))
            cells.append(Text(progress, no_wrap=True))
        cells.append(Text(f"{status.seconds:.0f} s", no_wrap=True))
        head.add_row(*cells)
        yield head
        if figures:
            table = Table.grid(padding=(0, 2))
            table.add_row(*(Text(name, style="dim", no_wrap=True) for name in figures))
            table.add_row(*(Text(value, no_wrap=True) for value in figures.values()))
            yield table


def _line(text: str, style: str) -> Text:
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")
