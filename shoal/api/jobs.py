"""A job that goes on beside the program: what wait=False of the Python API and `attach` give.

It is followed by a thread of the program; asking and steering is what `shoal status`, `scale`,
`stop` and `logs` do, by the same functions. The job may run here or on Kubernetes.
"""

from __future__ import annotations

import html
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.base.disk.job_folder import JobFolder
from shoal.client.ask import asking
from shoal.client.finding import job_of
from shoal.client.found.following import Interruptions
from shoal.client.show.display import Display
from shoal.client.show.drawn import status_text
from shoal.client.show.notebook import default_display
from shoal.config.job import JobConfig
from shoal.errors import UserError
from shoal.proto import shoal_pb2 as pb
from shoal.result import JobResult, course_of, read_metrics

if TYPE_CHECKING:
    import pandas as pd

    from shoal.client.ask.running_job import RunningJob

Run = Callable[[Display, Interruptions], JobResult]
"""Runs a job to its end, with a display and with what stops it."""


class Job:
    """A job that was started and goes on.

    name, job_dir: of the job. Its methods may be called at any time, from any thread.
    """

    def __init__(self, run: Run, *, own: bool = True) -> None:
        """Start the job by `run`, and return when it has its folder.

        own: the program has it started; otherwise `run` follows the job of another program.
        Raises what `run` raises before.
        """
        self._own = own
        self._display = _Kept()
        self._interruptions = Interruptions()
        self._result: JobResult | None = None
        self._error: BaseException | None = None
        # No daemon where it is its own: a program that ends waits for it, as with wait=True.
        self._thread = threading.Thread(
            target=self._follow, args=(run,), name="shoal job", daemon=not own
        )
        self._thread.start()
        try:
            self._display.begun.wait()
        except BaseException:
            # Nobody would have the job: it must not begin, or go on, by itself.
            self._interruptions.kill()
            self._thread.join()
            raise
        if self._display.folder is None:
            self._thread.join()
            assert self._error is not None
            raise self._error
        self._folder, self._config = self._display.folder, self._display.config
        self.name, self.job_dir = self._config.job_name, Path(self._folder.path)

    def _follow(self, run: Run) -> None:
        try:
            self._result = run(self._display, self._interruptions)
        except BaseException as error:  # raised again where the result is asked for
            self._error = error
        finally:
            self._display.begun.set()

    @property
    def running(self) -> bool:
        """True while the job has not ended."""
        return self._thread.is_alive()

    def status(self) -> str:
        """The progress of the job, in one line; the way it ended, if it has."""
        if not self.running:
            return self._result.state if self._result is not None else f"failed: {self._error}"
        return self._display.text

    def __repr__(self) -> str:
        return f"Job {self.name}: {self.status()}"

    def _repr_html_(self) -> str:
        return f"<b>{html.escape(self.name)}</b>: {html.escape(self.status())}"

    @property
    def history(self) -> dict[str, list[Any]]:
        """The evaluations so far, as JobResult.history has them."""
        if self._result is not None:
            return self._result.history
        return course_of(list(self._display.evaluations))

    @property
    def metrics(self) -> pd.DataFrame:
        """Throughput, loss, processes and tables over time, up to now; see `read_metrics`.

        Without rows before the first one. Raises UserError without pandas, or if the job was
        started with metrics_seconds=0.
        """
        return read_metrics(self.job_dir, awaited=self._config.metrics_seconds > 0)

    @property
    def messages(self) -> list[str]:
        """The messages that a display would have shown so far, a line each."""
        return list(self._display.messages)

    def watch(self, display: Display | None = None) -> JobResult:
        """Show how the job goes until it has ended, and return its result.

        display: where; by default as `train` does. An interrupt ends the showing, not the job.
        Raises as `result` does.
        """
        with display or default_display() as shown:
            self._display.shown = shown
            try:
                self._thread.join()
            finally:
                self._display.shown = None
        return self.result()

    def scale(self, workers: int | None = None, servers: int | None = None) -> None:
        """Change how many workers or servers the job wants. Raises UserError if it does not run."""
        for name, count in {"workers": workers, "servers": servers}.items():
            if count is not None and (
                isinstance(count, bool) or not isinstance(count, int) or count < 1
            ):
                raise UserError(f"{name} must be an integer of at least 1, not {count!r}")
        if workers is None and servers is None:
            raise UserError("give workers, servers or both")
        asking.scale(self._asked(), workers, servers)

    def _asked(self) -> RunningJob:
        """The job, to ask its master and for its logs."""
        return job_of(self._config, self._folder)

    def rebalance(self) -> bool:
        """Even out the load of the servers; True if rows move for it. Raises UserError."""
        return asking.rebalance(self._asked())

    def stop(self) -> None:
        """Stop the job, as Ctrl-C does; `result()` waits for its end.

        Raises UserError if the job was attached to and does not run.
        """
        if self._own:
            self._interruptions.stop()
        else:
            asking.stop(self._asked())

    def logs(self, role: str = "master", index: int = 0) -> str:
        """The log of the newest start of a process: master, ps or worker.

        Raises UserError if there is no such process.
        """
        if self._config.image and not self.running:
            from shoal.client.run import remote  # late: the Kubernetes library is large

            return remote.kept_log(self._folder, role, index)
        return "\n".join(self._asked().log_lines(role, index, follow=False))

    def result(self, timeout: float | None = None) -> JobResult:
        """Wait for the job's end and return its result.

        timeout: seconds to wait at most. Raises TimeoutError then, and else as train does.
        """
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise TimeoutError(f"job {self.name} has not ended within {timeout:g} s")
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result


class _Kept(Display):
    """A display that shows nothing, and keeps what it is told.

    begun: set when the job has its folder, or has failed before. shown: another display that is to
    show the job for now.
    """

    config: JobConfig

    def __init__(self) -> None:
        super().__init__()
        self.begun = threading.Event()
        self.shown: Display | None = None
        self.folder: JobFolder | None = None
        self.text = "starting"
        self.messages: list[str] = []
        self.evaluations: list[dict[str, Any]] = []

    def started(self, config: JobConfig, folder: JobFolder) -> None:
        """See Display."""
        self.folder, self.config = folder, config
        super().started(config, folder)
        self.begun.set()

    def update(self, status: pb.JobStatus) -> None:
        """See Display."""
        super().update(status)
        if (shown := self.shown) is not None:
            shown.update(status)

    def event(self, text: str) -> None:
        """See Display."""
        self.messages.append(text)

    def draw(self, status: pb.JobStatus) -> None:
        """See Display."""
        self.text = status_text(status, self._course)
        if status.HasField("last_evaluation"):
            found = status.last_evaluation
            if not self.evaluations or self.evaluations[-1]["version"] != found.version:
                self.evaluations.append(
                    {
                        "version": found.version,
                        "epoch": found.epoch,
                        "records": found.records,
                        "metrics": dict(found.metrics),
                        "loss": found.loss if found.HasField("loss") else None,
                    }
                )
