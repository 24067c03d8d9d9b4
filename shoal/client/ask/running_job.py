"""A job that this process does not follow: all that commands, page and API ask of it.

LocalJob of local_jobs.py is one of this machine, ClusterJob of cluster_jobs.py one on Kubernetes.
What a master is asked to do is asking.py's. gRPC is imported late, here and there: it is large, and
not all commands need it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shoal.client.found.following import CALL_SECONDS
from shoal.errors import UserError

if TYPE_CHECKING:
    import subprocess

    from rich.table import Table

    from shoal.client.found.usage import Usage
    from shoal.proto import shoal_pb2 as pb
    from shoal.proto.channels.rpc import Connection
    from shoal.proto.errors import CallError
    from shoal.result import JobResult

COMMAND_SECONDS = 30.0
"""For a master to answer a command: nobody watches it twice a second, so it may take its time."""

REACH_SECONDS = 50.0
"""For a command to reach a master on Kubernetes: gRPC gives a way through the API server that hangs
20 s to answer, and the next may be better."""

LOG_LINES = 200
"""Of the end of a log."""


@dataclass(frozen=True)
class Seen:
    """The present view of a job that has no result.

    status: of its master; None if it gives none, and then problem says why, and state is that of
    the job. processes: as `shoal status` prints them. pods: the same for programs, of a job on
    Kubernetes.
    """

    status: pb.JobStatus | None
    processes: Table
    pods: Sequence[dict[str, Any]] | None = None
    problem: str = ""
    state: str = ""


class RunningJob(ABC):
    """One job. Methods raise UserError where it cannot be asked, unless they say otherwise.

    name: of the job. namespace: of one on Kubernetes. place: where it is, in words. known_as: the
    JOB of commands given here, once it has ended; "": there is none.
    """

    name: str
    namespace = ""
    place: str
    known_as = ""

    def __init__(self) -> None:
        self._kept = ExitStack()
        self._connection: Connection | None = None

    # ------------------------------------------------------------ its course

    @abstractmethod
    def state(self) -> str:
        """The state in a word or two: running, killed, or how the job ended."""

    @abstractmethod
    def result(self) -> JobResult | None:
        """The result of the job; None while it has not ended, or if it was killed."""

    @abstractmethod
    def over(self) -> str:
        """The reason that no master answers, nor will, where there is no result; "" if one may."""

    def ended(self) -> str:
        """The way the job ended, in a word or two; "" while it has not."""
        return self.over() and self.state()

    @abstractmethod
    def seen(self) -> Seen:
        """Look at a job without a result: its master's status, and its processes."""

    def course(self) -> Sequence[str]:
        """The name of this course of the job; another one begins after --overwrite or --resume."""
        return ()

    def teller(self) -> subprocess.Popen[str] | None:
        """A process that prints the course by the journal; None where it is not to be read."""
        return None

    # ------------------------------------------------------------ its master

    @abstractmethod
    def _connected(self, deadline: float, patience: float) -> AbstractContextManager[Connection]:
        """A connection to the job's master. Raises UserError if there is none to connect to."""

    @abstractmethod
    def _silence(self, error: CallError) -> str:
        """The end of a sentence about a master that does not answer."""

    @contextmanager
    def master(
        self, deadline: float = COMMAND_SECONDS, patience: float = REACH_SECONDS
    ) -> Iterator[Connection]:
        """A connection to the job's master. Raises UserError if it does not run, or answer.

        deadline: seconds for one call. patience: seconds that a call tries to reach a master on
        Kubernetes.
        """
        from shoal.proto.errors import CallError

        try:
            with self._connected(deadline, patience) as connection:
                yield connection
        except CallError as error:
            raise UserError(f"the master of job {self.name} {self._silence(error)}") from error

    def status(self) -> pb.JobStatus:
        """The status that the job's master tells, by a connection that is kept until `close`."""
        from shoal.client.ask.asking import checked, status_of
        from shoal.proto.errors import CallError

        if self._connection is None:
            self._connection = self._kept.enter_context(self._connected(CALL_SECONDS, CALL_SECONDS))
        try:
            return checked(self, status_of(self._connection))
        except CallError as error:
            self.close()  # the next one may be elsewhere, or another job's, with other certificates
            raise UserError(f"the master {self._silence(error)}") from error

    def close(self) -> None:
        """Ask no more."""
        self._connection = None
        self._kept.close()

    # ------------------------------------------------------------ its processes and their files

    @abstractmethod
    def process(self, role: str, index: int) -> int:
        """The id of a process of this machine: a master, server or worker that runs."""

    def usage(self) -> tuple[dict[str, Usage], tuple[Usage, int, int] | None]:
        """The usage of its processes, by name, and of their machine (see usage.py), if known."""
        return {}, None

    @abstractmethod
    def logs(self) -> list[str]:
        """The names of its processes' logs, the master's first."""

    @abstractmethod
    def log(self, name: str) -> list[str]:
        """The last lines of a log of this name, at most `LOG_LINES`."""

    @abstractmethod
    def log_lines(
        self, role: str, index: int, restart: int | None = None, *, follow: bool
    ) -> Iterator[str]:
        """The lines that one start of a process has written.

        restart: its incarnation; None: the newest. follow: go on until the job or its pod ends.
        """

    def log_of(self, failure: str) -> str:
        """The name of the log that has a failure with this message; "" if that is not known."""
        del failure
        return ""

    @abstractmethod
    def losses(self) -> list[str]:
        """The lines of metrics.csv; none where there is none, or nobody gives it."""

    def saved(self) -> Sequence[str]:
        """The places that may have the tables of a job that has ended; none if its master runs."""
        return ()

    @abstractmethod
    def delete(self) -> None:
        """Delete a job on Kubernetes, running or not."""


def log_order(name: str) -> tuple[int, str, list[int]]:
    """The master's first, then workers, then servers, by number; the newest start first."""
    role, _, rest = name.removesuffix(".log").partition("-")
    numbers = [int(part) for part in rest.split(".") if part.isdigit()]
    place = {"master": 0, "worker": 1, "ps": 2}.get(role, 3)
    return place, role, [numbers[0] if numbers else 0, *(-number for number in numbers[1:])]
