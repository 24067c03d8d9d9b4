"""--events: what happens to a job as lines of JSON, for programs.

Owns what an event has. It is told beside the display, of the same statuses: no more often than
the master is asked, and of processes by their counts, so that none is lost between two statuses.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, TextIO

from shoal.base.disk.job_folder import JobFolder
from shoal.client.show.display import Display, WrappedDisplay, new_messages
from shoal.config.job import JobConfig
from shoal.errors import UserError
from shoal.proto import shoal_pb2 as pb
from shoal.result import JobResult

STDOUT = "-"

SAME_SECONDS = 0.05
"""Two statuses tell the time of the same checkpoint to within this."""


@contextlib.contextmanager
def opened(target: str) -> Iterator[TextIO]:
    """The file that --events names, to be added to; standard output for `-`.

    Raises UserError if it cannot be written.
    """
    if target == STDOUT:
        yield sys.stdout
        return
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(open(target, "a"))
        except OSError as error:
            raise UserError(f"--events: {target} cannot be written: {error.strerror}") from error
        yield file


class EventLines(WrappedDisplay):
    """Writes events to a stream; all else is another display's."""

    def __init__(self, inner: Display, stream: TextIO) -> None:
        super().__init__(inner)
        self._stream = stream
        self._job = ""
        self._seconds = 0.0
        self._state = self._waits_for = ""
        self._heard: list[str] = []
        self._counts: dict[str, tuple[int, int, bool]] = {}
        self._evaluation: tuple[int, dict[str, float | None]] | None = None
        self._checkpoint: float | None = None
        self._first = True
        self._broken = False

    def started(self, config: JobConfig, folder: JobFolder) -> None:
        """See Display."""
        self._job = config.job_name
        self._write(
            "begin",
            command=config.command,
            folder=str(folder.path),
            workers=config.num_workers,
            servers=config.num_servers,
        )
        self._inner.started(config, folder)

    def event(self, text: str) -> None:
        """See Display."""
        self._write("message", text=text)
        self._inner.event(text)

    def update(self, status: pb.JobStatus) -> None:
        """See Display."""
        self._seconds = status.seconds
        for text in new_messages(self._heard, list(status.messages)):
            self._write("message", text=text)
        self._heard = list(status.messages)
        self._tell_of_processes(status)
        self._tell_of_results(status)
        if status.state != self._state:
            self._write("state", state=status.state, before=self._state or None)
            self._state = status.state
        if status.waits_for != self._waits_for:
            self._waits_for = status.waits_for
            self._write("waiting", waits_for=status.waits_for or None)
        self._first = False
        self._inner.update(status)

    def _tell_of_processes(self, status: pb.JobStatus) -> None:
        views: dict[str, pb.WorkerView | pb.ServerView] = {}
        views |= {f"worker-{view.worker}": view for view in status.workers}
        views |= {f"ps-{view.server}": view for view in status.servers}
        for name, view in views.items():
            starts, deaths, ready = self._counts.get(name, (0, 0, False))
            for number in range(deaths + 1, view.deaths + 1):
                self._write("death", process=name, deaths=number)
            for number in range(starts + 1, view.starts + 1):
                self._write("start" if number == 1 else "restart", process=name, starts=number)
                ready = False
            alive = view.state == "alive"
            if alive and not ready:
                self._write("ready", process=name)
            self._counts[name] = view.starts, view.deaths, alive

    def _tell_of_results(self, status: pb.JobStatus) -> None:
        if status.HasField("checkpoint_seconds"):
            taken = status.seconds - status.checkpoint_seconds
            if self._checkpoint is None or taken > self._checkpoint + SAME_SECONDS:
                self._checkpoint = taken
                # One that was there when a job was resumed is no news.
                if not self._first:
                    self._write("checkpoint", version=status.version)
        if status.HasField("last_evaluation"):
            found = status.last_evaluation
            metrics = {name: _number(value) for name, value in found.metrics.items()}
            if self._evaluation != (found.version, metrics):
                self._evaluation = found.version, metrics
                if not self._first:
                    self._tell_of_evaluation(found.version, found.epoch, found.records, metrics)

    def _tell_of_evaluation(
        self, version: int, epoch: int, records: int, metrics: Mapping[str, float | None]
    ) -> None:
        self._write(
            "evaluation", version=version, epoch=epoch, records=records, metrics=dict(metrics)
        )

    def ended(self, result: JobResult) -> None:
        """The job has ended; an evaluation that no status had is told too."""
        told = [
            (each["version"], each["metrics"]) == self._evaluation for each in result.evaluations
        ]
        first_new = len(told) - told[::-1].index(True) if True in told else 0
        for each in result.evaluations[first_new:]:
            self._tell_of_evaluation(
                each["version"], each["epoch"], each["records"], each["metrics"]
            )
        self._seconds = result.seconds
        self._write(
            "end",
            state=result.state,
            exit_code=result.exit_code,
            metrics=result.metrics,
            records=result.records,
            ledger=result.ledger,
            worker_deaths=result.workers.get("deaths", 0),
            server_deaths=result.servers.get("deaths", 0),
            checkpoints=result.checkpoints.get("taken", 0),
            output=result.output,
            failure=(result.failure or {}).get("message"),
        )

    def failed(self, message: str, exit_code: int) -> None:
        """The job has ended without a result."""
        self._write("end", state="failed", exit_code=exit_code, failure=message)

    def _write(self, kind: str, **values: Any) -> None:
        if self._broken:
            return
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line = {"time": now, "job": self._job, "seconds": round(self._seconds, 3), "event": kind}
        try:
            print(json.dumps(line | values, allow_nan=False), file=self._stream, flush=True)
        except OSError as error:
            # The reader has gone, or the disk is full: the job goes on.
            self._broken = True
            _discard(self._stream)
            self._inner.event(f"warning: --events cannot be written any more: {error.strerror}")


def _discard(stream: TextIO) -> None:
    """Send the rest of the stream's buffer nowhere, or closing the stream would fail."""
    with contextlib.suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, stream.fileno())
        finally:
            os.close(nowhere)


def _number(value: float) -> float | None:
    # JSON knows no NaN.
    return value if math.isfinite(value) else None
