"""The sources of the page's facts: a job of this machine, or one in a cluster.

Each method asks once, and may take as long as a call does. watch.py interprets the answers.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.base.job_folder import JobFolder, shown_path
from shoal.base.thinned import ThinnedFile
from shoal.client.found import local_jobs
from shoal.client.found.following import CALL_SECONDS
from shoal.client.found.usage import Usage, machine, usage_of
from shoal.client.show.report import log_of_failure
from shoal.config.job import JobConfig
from shoal.errors import UserError
from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.channels.rpc import Connection
from shoal.proto.errors import CallError
from shoal.proto.protocol import mismatch
from shoal.proto.wire.transport import peer_name
from shoal.result import JobResult
from shoal.security.identities import client_identity

if TYPE_CHECKING:
    from shoal.cluster.handle import JobHandle

LOG_LINES = 200
"""Of the end of a log."""

LOG_BYTES = 1 << 18
"""Read of the end of a log, for as many lines."""


class Source(ABC):
    """One job. Methods raise UserError where it cannot be asked, unless they say otherwise.

    name: of the job. place: where it is, in words.
    """

    name: str
    place: str

    @abstractmethod
    def status(self) -> pb.JobStatus:
        """The status that the job's master tells."""

    @abstractmethod
    def result(self) -> JobResult | None:
        """The result of the job; None while it has not ended, or if it was killed."""

    @abstractmethod
    def over(self) -> str:
        """The reason that no master answers, nor will; "" if one may."""

    def course(self) -> Sequence[str]:
        """The name of this course of the job; another one begins after --overwrite or --resume."""
        return ()

    def teller(self) -> subprocess.Popen[str] | None:
        """A process that prints the course by the journal; None where it is not to be read."""
        return None

    def usage(self) -> tuple[dict[str, Usage], tuple[Usage, int, int] | None]:
        """The usage of its processes, by name, and of their machine (see usage.py), if known."""
        return {}, None

    def log_of(self, failure: str) -> str:
        """The name of the log that has a failure with this message; "" if that is not known."""
        del failure
        return ""

    @abstractmethod
    def losses(self) -> list[str]:
        """The lines of metrics.csv; none where there is none, or nobody gives it."""

    @abstractmethod
    def logs(self) -> list[str]:
        """The names of its processes' logs, the master's first."""

    @abstractmethod
    def log(self, name: str) -> list[str]:
        """The last lines of a log of this name. Raises UserError if there is none."""

    @abstractmethod
    def close(self) -> None:
        """Ask no more."""


METRICS_BYTES = 2_000_000
"""Of metrics.csv that are read again and again, of a job of this machine."""


class LocalSource(Source):
    """A job of this machine, by its folder."""

    def __init__(self, folder: JobFolder) -> None:
        self.name = folder.path.name
        self.place = f"on this machine, in {shown_path(folder.path)}"
        self._folder = folder
        self._metrics = ThinnedFile(folder.metrics, METRICS_BYTES)
        self._connection: Connection | None = None

    def close(self) -> None:
        """See Source."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def status(self) -> pb.JobStatus:
        """See Source."""
        folder = self._folder
        address = folder.master_address()
        if address is None:
            raise UserError("the master has not started yet")
        if self._connection is None or self._connection.address != address:
            self.close()
            config = JobConfig.load(folder.config)
            self._connection = Connection(
                address,
                deadline=CALL_SECONDS,
                patience=0,
                peer=peer_name(config.token, "master"),
                identity=client_identity(config, folder),
            )
        try:
            found = self._connection.call(methods.GET_JOB_STATUS, pb.JobStatusRequest())
        except CallError as error:
            self.close()  # the next one may be another job's, with other certificates
            log = shown_path(folder.logs / "master.log")
            raise UserError(f"the master does not answer; see {log}") from error
        if why := mismatch("this command", f"the master of job {self.name}", found.protocol):
            raise UserError(why)
        return found

    def result(self) -> JobResult | None:
        """See Source."""
        return local_jobs.result_of(self._folder)

    def over(self) -> str:
        """See Source."""
        if local_jobs.running(self._folder) or not self._folder.config.is_file():
            return ""
        state = local_jobs.state_of(self._folder)
        if state == "killed":
            return f"the job was killed{local_jobs.way_on(self._folder)}"
        return f"the job has ended: {state}"

    def course(self) -> Sequence[str]:
        """See Source."""
        try:
            status = self._folder.config.stat()
        except OSError:
            return ()
        return str(status.st_ino), str(status.st_mtime_ns)

    def teller(self) -> subprocess.Popen[str] | None:
        """See Source."""
        if not self._folder.journal.is_dir():
            return None
        command = [sys.executable, "-m", "shoal.master.journal.told_course", "--follow"]
        return subprocess.Popen(
            [*command, os.fspath(self._folder.path)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,  # it ends with this process, not by Ctrl-C before it
        )

    def usage(self) -> tuple[dict[str, Usage], tuple[Usage, int, int] | None]:
        """See Source."""
        return usage_of(self._folder.config), machine()

    def log_of(self, failure: str) -> str:
        """See Source."""
        path = log_of_failure(self._folder, failure) if failure else None
        return path.name if path is not None and path.is_file() else ""

    def losses(self) -> list[str]:
        """See Source."""
        return self._metrics.text().splitlines()

    def logs(self) -> list[str]:
        """See Source."""
        with contextlib.suppress(OSError):
            names = [path.name for path in self._folder.logs.iterdir() if path.suffix == ".log"]
            return sorted(names, key=_log_order)
        return []

    def log(self, name: str) -> list[str]:
        """See Source."""
        if name not in self.logs():  # so no other file of this machine is read
            raise UserError(f"job {self.name} has no log {name}")
        path = self._folder.logs / name
        try:
            return tail(path)
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error.strerror}") from error


def tail(path: Path) -> list[str]:
    """The last lines of a file, at most `LOG_LINES`. Raises OSError."""
    with path.open("rb") as file:
        size = path.stat().st_size
        file.seek(max(0, size - LOG_BYTES))
        lines = file.read().decode(errors="replace").splitlines()
    return list(deque(lines[size > LOG_BYTES :], LOG_LINES))


def _log_order(name: str) -> tuple[int, str, list[int]]:
    """The master's first, then workers, then servers, by number; the newest start first."""
    role, _, rest = name.removesuffix(".log").partition("-")
    numbers = [int(part) for part in rest.split(".") if part.isdigit()]
    place = {"master": 0, "worker": 1, "ps": 2}.get(role, 3)
    return place, role, [numbers[0] if numbers else 0, *(-number for number in numbers[1:])]


class ClusterSource(Source):
    """A job in a cluster; its master is asked through a port-forward."""

    def __init__(self, handle: JobHandle) -> None:
        self.name = handle.name
        self.place = f"on Kubernetes, in namespace {handle.namespace}"
        self._handle = handle
        self._master = ExitStack()
        self._connection: Connection | None = None
        handle.job()  # says so if there is no such job

    def close(self) -> None:
        """See Source."""
        self._connection = None
        self._master.close()

    def status(self) -> pb.JobStatus:
        """See Source."""
        if self._connection is None:
            pod = self._handle.master_pod()
            if pod is None or pod.status.phase != "Running":
                raise UserError("the master has no running pod")
            token, identity = self._handle.credentials()
            self._connection = self._master.enter_context(
                self._handle.master(pod.metadata.name, token, identity, CALL_SECONDS, CALL_SECONDS)
            )
        try:
            found = self._connection.call(methods.GET_JOB_STATUS, pb.JobStatusRequest())
        except CallError as error:
            self.close()
            raise UserError(f"the master does not answer: {error}") from error
        if why := mismatch("this command", f"the master of job {self.name}", found.protocol):
            raise UserError(why)
        return found

    def result(self) -> JobResult | None:
        """See Source."""
        from shoal.client.ask.cluster_jobs import result_of

        return result_of(self._handle)

    def over(self) -> str:
        """See Source."""
        return "the job's master has ended without a result" if self._handle.over() else ""

    def losses(self) -> list[str]:
        """See Source."""
        with contextlib.suppress(UserError, CallError):
            if self._connection is None:  # at its end the master has left it
                return (self._handle.metrics() or "").splitlines()
            found = self._connection.call(methods.GET_JOB_METRICS, pb.JobMetricsRequest())
            return found.csv.splitlines()
        return []

    def logs(self) -> list[str]:
        """See Source."""
        return sorted(
            (str(pod.metadata.name) for pod in self._handle.pods()),
            key=lambda name: _log_order(name.removeprefix(f"{self.name}-")),
        )

    def log(self, name: str) -> list[str]:
        """See Source."""
        for pod in self._handle.pods():
            if pod.metadata.name == name:
                return self._handle.log(pod, tail_lines=LOG_LINES).splitlines()
        raise UserError(f"job {self.name} has no pod {name}")
