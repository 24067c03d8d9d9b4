"""The jobs that a page can show: the one that was named, and those that are listed beside it.

Owns which jobs are watched: those whose page somebody has open.
"""

from __future__ import annotations

import math
import threading
import time
from abc import ABC, abstractmethod
from datetime import UTC, datetime
from typing import Any, Self

from shoal.base.disk.job_folder import JOBS
from shoal.client.ask.local_jobs import LocalJob, jobs_in
from shoal.client.ask.running_job import RunningJob
from shoal.errors import UserError
from shoal.tools.dashboard.watch import Watch

IDLE_SECONDS = 60.0
"""After which a job that no page asks for is watched no more, once another one is."""


class Listing(ABC):
    """The place of several jobs. Methods raise UserError if it cannot be asked for them.

    place: in words.
    """

    place: str

    @abstractmethod
    def jobs(self) -> list[dict[str, Any]]:
        """The newest first: name, state, age in seconds; of its result also took and metrics."""

    @abstractmethod
    def job(self, name: str) -> RunningJob:
        """The job of a name among them."""


class Here(Listing):
    """The jobs of this machine that have a folder in JOBS."""

    place = f"on this machine, in ./{JOBS}"

    def jobs(self) -> list[dict[str, Any]]:
        """See Listing."""
        found = []
        for folder in jobs_in(JOBS):
            job = LocalJob(folder)
            state, result = job.state(), job.result()
            age = time.time() - folder.config.stat().st_mtime
            told: dict[str, Any] = {"name": folder.path.name, "state": state, "age": age}
            if result is not None:
                metrics = {n: v for n, v in result.metrics.items() if math.isfinite(v or 0.0)}
                told |= {"took": result.seconds, "metrics": metrics}
            found.append(told)
        return found

    def job(self, name: str) -> RunningJob:
        """See Listing."""
        return LocalJob(next(each for each in jobs_in(JOBS) if each.path.name == name))


class InCluster(Listing):
    """The jobs of a namespace; if it is empty, the namespace of the present kubectl context."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self.place = f"on Kubernetes, in namespace {namespace}" if namespace else "on Kubernetes"

    def jobs(self) -> list[dict[str, Any]]:
        """See Listing."""
        from shoal.client.cluster_listing import list_jobs  # late: the library is large

        now = datetime.now(UTC)
        return [
            {"name": each.name, "state": each.state, "age": (now - each.started).total_seconds()}
            for each in list_jobs(self._namespace)[1]
        ]

    def job(self, name: str) -> RunningJob:
        """See Listing."""
        from shoal.client.ask.cluster_jobs import cluster_job

        return cluster_job(name, self._namespace)


class Jobs:
    """The jobs that the server of the pages shows; shared by threads. A context manager."""

    def __init__(self, listing: Listing, named: Watch | None = None) -> None:
        """named: watches a job that may be none of the listing, as long as this is entered."""
        self._listing, self.named = listing, named
        self._opened: dict[str, Watch] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for watch in self._opened.values():
            watch.__exit__()

    def listed(self) -> dict[str, Any]:
        """The place and its jobs; an error where they cannot be asked for. JSON."""
        try:
            return {"place": self._listing.place, "jobs": self._listing.jobs()}
        except UserError as error:
            return {"place": self._listing.place, "jobs": [], "error": str(error)}

    def watch(self, name: str) -> Watch:
        """That of a job; an empty name: of the one that was named. Raises UserError."""
        if self.named is not None and name in ("", self.named.name):
            return self.named
        with self._lock:
            if name not in self._opened:
                if name not in [each["name"] for each in self._listing.jobs()]:
                    raise UserError(f"there is no job {name} {self._listing.place}")
                for idle in [n for n, w in self._opened.items() if w.unasked > IDLE_SECONDS]:
                    self._opened.pop(idle).__exit__()
                self._opened[name] = Watch(self._listing.job(name)).__enter__()
            return self._opened[name]
