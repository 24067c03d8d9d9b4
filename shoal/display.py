"""Showing a job: a live display on a terminal, log lines elsewhere, and the report.

Takes the master's JobStatus as it comes and draws; decides nothing.
"""

from __future__ import annotations

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from shoal.claim import resume_command
from shoal.config import JobConfig
from shoal.job_folder import JobFolder, shown_path
from shoal.proto import shoal_pb2 as pb
from shoal.result import JobResult

SHOWN_BAD_RECORDS = 5
"""In the report; result.json and `shoal audit` name them all."""

LINE_SECONDS = 5.0
"""Between two log lines while nothing particular happens."""


def default_display() -> Display:
    """A live display if standard output is a terminal, else log lines."""
    return LiveDisplay(Console()) if sys.stdout.isatty() else LineDisplay(sys.stdout)


class Display(ABC):
    """What run_job tells about a job; entered before the job starts, left at its end."""

    def __init__(self) -> None:
        self._messages: list[str] = []
        self._trouble = ""
        self._evaluated: int | None = None

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
            f"job {config.job_name}: {config.num_ps} servers, {config.num_workers} workers; "
            f"logs in {shown_path(folder.logs)}"
        )

    def update(self, status: pb.JobStatus) -> None:
        """The job's status, some times per second."""
        messages = list(status.messages)
        for text in new_messages(self._messages, messages):
            self.event(text)
        self._messages = messages
        if status.trouble != self._trouble:
            self.event(f"warning: {status.trouble}" if status.trouble else "the job goes on")
            self._trouble = status.trouble
        if status.HasField("last_evaluation"):
            evaluation = status.last_evaluation
            if evaluation.version != self._evaluated:
                self._evaluated = evaluation.version
                metrics = metrics_text(evaluation.metrics)
                # Without training, as in `shoal evaluate`, there are no versions to tell apart.
                when = f" at version {evaluation.version}" if evaluation.version else ""
                self.event(f"evaluation{when}: {metrics} ({evaluation.records:,} records)")
        self.draw(status)

    @abstractmethod
    def event(self, text: str) -> None:
        """Something happened that is worth a line of its own."""

    @abstractmethod
    def draw(self, status: pb.JobStatus) -> None:
        """Show the status."""


class LineDisplay(Display):
    """A log line every few seconds, at each change of state, and per event."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream
        self._state = ""
        self._next = 0.0

    def event(self, text: str) -> None:
        """One line with the time of day."""
        print(f"{time.strftime('%H:%M:%S')} {text}", file=self._stream, flush=True)

    def draw(self, status: pb.JobStatus) -> None:
        """A line if one is due."""
        now = time.monotonic()
        if status.state != self._state or now >= self._next:
            self._state, self._next = status.state, now + LINE_SECONDS
            self.event(status_text(status))


class LiveDisplay(Display):
    """Events scroll by above a block that is drawn anew with each status."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=True)

    def __enter__(self) -> Display:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def event(self, text: str) -> None:
        """One line above the block."""
        self._console.print(Text(f"{time.strftime('%H:%M:%S')} {text}"))

    def draw(self, status: pb.JobStatus) -> None:
        """Draw the block anew."""
        self._live.update(block(status), refresh=True)


def new_messages(before: Sequence[str], now: Sequence[str]) -> list[str]:
    """What was added to `now`, of which only the newest part is kept.

    The longest end of `before` that `now` begins with is what both share.
    """
    for shared in range(min(len(before), len(now)), 0, -1):
        if list(before[len(before) - shared :]) == list(now[:shared]):
            return list(now[shared:])
    return list(now)


def metrics_text(metrics: Mapping[str, float]) -> str:
    """Metrics in one line, sorted by name."""
    return ", ".join(f"{name} {value:.4f}" for name, value in sorted(metrics.items()))


def _progress(status: pb.JobStatus) -> tuple[str, int, int]:
    """(what is counted, done, total)."""
    if status.tasks_total:
        return "tasks", status.tasks_done, status.tasks_total
    return "records", status.records_done, status.records_total


def _figures(status: pb.JobStatus) -> dict[str, str]:
    """The numbers worth showing now, by name."""
    figures = {}
    if status.ledger.total:
        epoch = min(status.epoch + 1, status.num_epochs)
        figures["epoch"] = f"{epoch}/{status.num_epochs}"
    figures["samples/s"] = f"{status.samples_per_second:,.0f}"
    if status.has_loss:
        figures["loss"] = f"{status.loss:.4f}"
    figures["workers"] = f"{status.workers_alive}/{status.workers_wanted}"
    figures["servers"] = f"{status.servers_alive}/{status.servers_wanted}"
    if status.ledger.total:
        figures["staleness"] = f"{status.mean_staleness:.2f}"
    if status.left_out:
        figures["left out"] = f"{status.left_out:,} minibatches"
    if status.bad_records:
        figures["bad records"] = f"{status.bad_records:,}"
    return figures


def stages_text(stage_seconds: Mapping[str, float]) -> str:
    """Where the workers' time went: each stage's share, the largest first.

    Of the time in training, in which stages overlap; else of their sum.
    """
    stages = dict(stage_seconds)
    total = stages.pop("training", 0.0) or sum(stages.values())
    if not total:
        return ""
    shares = sorted(stages.items(), key=lambda pair: (-pair[1], pair[0]))
    return ", ".join(f"{name} {seconds / total:.0%}" for name, seconds in shares)


def status_text(status: pb.JobStatus) -> str:
    """The status in one line."""
    unit, done, total = _progress(status)
    parts = [f"{unit} {done:,}/{total:,}"] if total else []
    parts += [f"{name} {value}" for name, value in _figures(status).items()]
    return f"{status.state}: {', '.join(parts)}"


def block(status: pb.JobStatus) -> Group:
    """The status as the live display's block."""
    unit, done, total = _progress(status)
    head = Table.grid(padding=(0, 2))
    head.add_row(
        Text(status.job_name, style="bold"),
        Text(status.state, style="cyan"),
        ProgressBar(total=max(total, 1), completed=done, width=40),
        f"{done:,}/{total:,} {unit}",
        f"{status.seconds:.0f} s",
    )
    figures = Table.grid(padding=(0, 3))
    named = _figures(status)
    figures.add_row(*(Text(name, style="dim") for name in named))
    figures.add_row(*named.values())
    lines: list[Table | Text] = [head, figures]
    if status.trouble:
        lines.append(Text(status.trouble, style="bold red"))
    if stages := stages_text(status.stage_seconds):
        lines.append(Text(f"time: {stages}", style="dim"))
    if status.HasField("last_evaluation"):
        lines.append(Text(metrics_text(status.last_evaluation.metrics), style="green"))
    return Group(*lines)


def ledger_text(ledger: dict[str, int]) -> str:
    """The sample ledger as the sum that it is."""
    kinds = {"trained_once": "trained once", "repeated": "repeated", "failed": "failed"}
    total = ledger.get("total", 0)
    text = " + ".join(f"{ledger.get(kind, 0):,} {name}" for kind, name in kinds.items())
    left = total - sum(ledger.get(kind, 0) for kind in kinds)
    return f"{total:,} = {text}" + (f" + {left:,} not reached" if left else "")


def bad_records_text(bad: Sequence[Mapping[str, Any]]) -> str:
    """The records that were given up, the first few by name."""
    lines = [
        f"{each['data']} data, {shown_path(each['source'])}, {each['place']}: {each['error']}"
        for each in bad[:SHOWN_BAD_RECORDS]
    ]
    more = [f"and {len(bad) - len(lines):,} more, see result.json"] * (len(bad) > len(lines))
    return "\n".join([f"{len(bad):,} given up", *lines, *more])


def checkpoints_text(checkpoints: Mapping[str, Any]) -> str:
    """How many checkpoints were taken, and which the newest is; empty without any."""
    kept, failed = checkpoints.get("kept"), checkpoints.get("failed")
    if not kept and not failed:
        return ""
    text = f"{checkpoints['taken']} taken"
    if failed:
        text += f", {failed} FAILED ({checkpoints['last_failure']})"
    if kept:
        newest = kept[-1]
        where = shown_path(checkpoints["folder"])
        text += f"; newest number {newest['number']}, version {newest['version']:,}, in {where}"
    return text


def report(result: JobResult) -> Table:
    """The final report's table."""
    styles = {"succeeded": "bold green", "failed": "bold red"}
    table = Table(title=f"shoal {result.command}: {result.job_name}", show_header=False)
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    table.add_row("state", Text(result.state, style=styles.get(result.state, "bold yellow")))
    if result.state != "succeeded" and (command := resume_command(JobFolder(result.job_dir))):
        table.add_row("to go on", Text(command, style="bold"))
    for name, value in sorted(result.metrics.items()):
        table.add_row(name, "NaN" if value is None else f"{value:.4f}")
    if result.ledger.get("total"):
        table.add_row("training records", ledger_text(result.ledger))
    elif result.records:
        table.add_row("records", f"{result.records:,}")
    if result.left_out.get("minibatches"):
        left_out = result.left_out
        text = f"{left_out['minibatches']:,} minibatches, {left_out['records']:,} records"
        table.add_row("not finite", Text(f"{text}; the last: {left_out['last']}", style="bold red"))
    if result.bad_records:
        table.add_row("bad records", Text(bad_records_text(result.bad_records), style="bold red"))
    table.add_row("seconds", f"{result.seconds:.1f}")
    if result.samples_per_second:
        table.add_row("samples/s", f"{result.samples_per_second:,.0f}")
    if stages := stages_text(result.stage_seconds):
        table.add_row("time by stage", stages)
    if result.ledger.get("total") and result.staleness:
        table.add_row("mean staleness", f"{result.staleness.get('mean', 0.0):.2f} pushes")
    if result.workers.get("deaths"):
        table.add_row(
            "worker starts", f"{result.workers['starts']} ({result.workers['deaths']} died)"
        )
    if result.servers.get("deaths"):
        table.add_row(
            "server starts", f"{result.servers['starts']} ({result.servers['deaths']} died)"
        )
        lost = result.servers["lost_pushes"]
        table.add_row("updates lost", Text(f"{lost:,} pushes", style="bold red" if lost else ""))
    if absent := result.log.get("unprotected", {}).get("times"):
        seconds = result.log["unprotected"]["seconds"]
        text = f"{absent} times, for {seconds:.1f} s in all: a death then would have lost updates"
        table.add_row("no protection", Text(text, style="bold red"))
    if text := checkpoints_text(result.checkpoints):
        table.add_row("checkpoints", Text(text))
    if result.output and result.state == "succeeded":
        table.add_row("output", Text(shown_path(result.output)))
    if result.job_dir.is_dir():  # not if the job ran in a cluster and was followed elsewhere
        table.add_row("job folder", Text(f"{shown_path(result.job_dir)} (logs/, result.json)"))
    return table


def print_report(result: JobResult) -> None:
    """The report on standard output, a failure with its traceback on standard error."""
    console = Console()
    if not console.is_terminal:
        # Paths and sums stay whole lines for grep, however narrow rich thinks it is.
        console = Console(width=200)
    console.print(report(result))
    if result.failure is not None:
        if result.failure.get("kind") != "USER_ERROR" and result.failure.get("traceback"):
            print(result.failure["traceback"].rstrip(), file=sys.stderr)
        print(f"Error: {result.failure['message']}", file=sys.stderr)
