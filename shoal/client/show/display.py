"""Showing a job: a live display on a terminal, log lines elsewhere; in a notebook, notebook.py's.

Takes the master's JobStatus as it comes and draws; decides nothing. The report at the end is
report.py's.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from shoal.base.disk.job_folder import JobFolder, shown_path
from shoal.base.words import counted
from shoal.client.show.course import Course
from shoal.client.show.drawn import block, status_text
from shoal.client.show.plain import may_fail, plain
from shoal.client.show.report import metrics_text
from shoal.config.job import JobConfig
from shoal.proto import shoal_pb2 as pb

LINE_SECONDS = 5.0
"""Between two log lines while the job gets on."""

SAME_SECONDS = 60.0
"""Between two log lines that say the same."""

FAILED = ": the job failed: "
"""In the master's message of a failure, which status and result have too."""


class Display(ABC):
    """The display of a job for run_job; entered before the job starts, left at its end."""

    def __init__(self) -> None:
        self._messages: list[str] = []
        self._trouble = ""
        self._evaluated: int | None = None
        self._course = Course()
        self._gone = False

    @property
    def gone(self) -> bool:
        """True if nobody sees it any more: a terminal was closed, or a pipe's reader has ended."""
        return self._gone

    def _printing(self) -> AbstractContextManager[None]:
        """A context in which printing may fail; the display is then gone."""
        return may_fail(lambda: setattr(self, "_gone", True))

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

    @property
    def gone(self) -> bool:
        """See Display."""
        return self._inner.gone

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
            with self._printing():
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
        with self._printing():
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._printing():
            self._live.stop()

    def event(self, text: str) -> None:
        """One line above the block."""
        if text != self._told:
            self._told = text
            with self._printing():
                self._console.print(Text(f"{time.strftime('%H:%M:%S')} {text}"))

    def draw(self, status: pb.JobStatus) -> None:
        """Draw the block anew."""
        with self._printing():
            self._live.update(block(status, self._course), refresh=True)


def new_messages(before: Sequence[str], now: Sequence[str]) -> list[str]:
    """The messages that were added to `now`, which keeps only the newest.

    Both share the longest end of `before` that `now` begins with. If they share none, a new master
    does not know all messages of the master before it: the ones that it repeats are left out.
    """
    for shared in range(min(len(before), len(now)), 0, -1):
        if list(before[len(before) - shared :]) == list(now[:shared]):
            return list(now[shared:])
    return [text for text in now if text not in before]
