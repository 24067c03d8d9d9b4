"""--dashboard: the page of a job, served by the command that runs the job until that has ended.

Owns when the page begins and ends. It asks the job for what it shows, as `shoal dashboard` does:
the command that runs a job has no way of its own to its facts.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Any

from shoal.base.disk.job_folder import JobFolder
from shoal.client.ask.running_job import RunningJob
from shoal.client.finding import job_of
from shoal.client.show.display import Display, WrappedDisplay
from shoal.config.job import JobConfig
from shoal.errors import UserError
from shoal.tools.dashboard.jobs import Here, InCluster, Jobs
from shoal.tools.dashboard.run import check_installed, listening, server_of, url_of
from shoal.tools.dashboard.watch import Watch

LATELY_SECONDS = 5.0
"""Who has asked within so long may have the page open."""

END_SECONDS = 5.0
"""At most, for an open page to ask for the end of the job before its server ends."""


@contextlib.contextmanager
def page_beside(inner: Display, port: int) -> Iterator[Display]:
    """The display, beside which the page of the job is served while it is entered.

    port: to listen at; 0: any that is free. Raises UserError, before any job is started, if the
    port is taken or a library is missing.
    """
    check_installed("--dashboard")
    with listening(port, "--dashboard", "0") as listener:
        yield PageDisplay(inner, listener)


class SeenWatch(Watch):
    """Knows whether a page asks, and whether it has been told the end of the job."""

    def __init__(self, job: RunningJob) -> None:
        super().__init__(job, followed=True)
        self._end_told = False
        self.end_seen = threading.Event()

    @property
    def open(self) -> bool:
        """True if somebody may have the page open."""
        return self.unasked < LATELY_SECONDS

    def facts(self) -> dict[str, Any]:
        """See Watch."""
        told = super().facts()
        self._end_told = bool(told.get("ended"))
        return told

    def log(self, name: str) -> list[str]:
        """See Watch."""
        try:
            return super().log(name)
        finally:
            if self._end_told:  # the page asks for a log last
                self.end_seen.set()


class PageDisplay(WrappedDisplay):
    """Another display, and the page from the start of the job to its end."""

    def __init__(self, inner: Display, listener: socket.socket) -> None:
        """listener: bound, and left to its owner to close."""
        super().__init__(inner)
        self._listener = listener
        self._page = contextlib.ExitStack()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._page.__exit__(kind, error, trace)
        super().__exit__(kind, error, trace)

    def started(self, config: JobConfig, folder: JobFolder) -> None:
        """See Display."""
        super().started(config, folder)
        try:
            job = job_of(config, folder)
        except UserError as error:
            # The job is there by now, and is not to end for its page.
            self._inner.event(f"warning: --dashboard: the page cannot be served: {error}")
            return
        watch = self._page.enter_context(SeenWatch(job))
        port, token = self._listener.getsockname()[1], secrets.token_urlsafe(24)
        listing = InCluster(config.namespace) if config.image else Here()
        jobs = self._page.enter_context(Jobs(listing, watch))
        server = server_of(jobs, token, port)
        # Not in the main thread, uvicorn leaves signals alone: Ctrl-C is the job's.
        serving = threading.Thread(
            target=server.run,
            kwargs={"sockets": [self._listener]},
            name="dashboard",
            daemon=True,
        )
        serving.start()
        again = f"; shoal dashboard {job.known_as} shows it again" if job.known_as else ""

        def end(kind: type[BaseException] | None, *_: object) -> None:
            watch.followed = False
            if kind is None and watch.open:
                watch.end_seen.wait(END_SECONDS)
            server.should_exit = True
            serving.join()
            self._inner.event(f"the page of the job has ended with it{again}")

        self._page.push(end)
        self._inner.event(f"the page of job {config.job_name}: {url_of(token, port)}")
