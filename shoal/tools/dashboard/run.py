"""The command `shoal dashboard`: serves the pages of jobs until it is interrupted."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import sys
import tempfile
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.base.signals import ending_at_signals
from shoal.client.ask.running_job import RunningJob
from shoal.client.show.plain import echo
from shoal.errors import UserError

if TYPE_CHECKING:
    from shoal.tools.dashboard.jobs import Jobs, Listing

ADDRESS = "127.0.0.1"
"""The page is for who sits at this machine, or has come to it by ssh."""


def run(listing: Listing, job: RunningJob | None, port: int, *, browser: bool | None) -> None:
    """Show the jobs of a listing until Ctrl-C or SIGTERM, a certain one first.

    port: to listen at; 0: any that is free. browser: open the page there; None: where there is a
    screen and a terminal. Raises UserError if the port is taken, or a library is missing.
    """
    check_installed("shoal dashboard")
    from shoal.tools.dashboard.jobs import Jobs
    from shoal.tools.dashboard.watch import Watch

    if browser is None:
        screen = any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
        browser = screen and sys.stdout.isatty()
    token = secrets.token_urlsafe(24)
    with (
        listening(port, "--port", "leave it out") as listener,
        Watch(job) if job else nullcontext() as named,
        Jobs(listing, named) as jobs,
        tempfile.TemporaryDirectory() as own,
    ):
        port = listener.getsockname()[1]
        server = server_of(jobs, token, port)
        url = url_of(token, port)
        what = f"page of job {job.name}" if job else f"list of jobs {listing.place}"
        echo(f"the {what}: {url}\nCtrl-C ends it")
        sys.stdout.flush()
        if browser:
            _open(url, Path(own))
        with ending_at_signals(server):
            server.run(sockets=[listener])


def check_installed(what: str) -> None:
    """Raises UserError if a library of the page is missing; `what` needs it."""
    try:
        import uvicorn  # noqa: F401

        import shoal.tools.dashboard.server  # noqa: F401
    except ImportError as error:
        raise UserError(
            f"{what} needs Starlette and uvicorn: pip install 'shoal[dashboard]' ({error})"
        ) from error


def url_of(token: str, port: int) -> str:
    """The address that lets its reader see the page."""
    return f"http://{ADDRESS}:{port}/?token={token}"


def server_of(jobs: Jobs, token: str, port: int) -> Any:
    """The server of the page, by uvicorn. token: who knows it may look. port: it is served at."""
    import uvicorn

    from shoal.tools.dashboard.server import app_of

    config = uvicorn.Config(
        app_of(jobs, token, port),
        log_level="warning",
        access_log=False,  # it would hold the token
        server_header=False,
        lifespan="off",
        ws="none",
        timeout_graceful_shutdown=1,
    )
    return uvicorn.Server(config)


@contextmanager
def listening(port: int, flag: str, any_port: str) -> Iterator[socket.socket]:
    """A socket of this machine alone, bound and closed at the end.

    Raises UserError, which names the flag and says how to have any port, if this one is taken.
    """
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((ADDRESS, port))
        except OSError as error:
            raise UserError(
                f"{flag}: {port} cannot be used: {error.strerror}; choose another, or {any_port} "
                "for any that is free"
            ) from error
        yield listener


def _open(url: str, own: Path) -> None:
    """Open a page in the user's browser.

    By way of a file that only the user can read: other users see a browser's arguments, and the
    URL has the token.
    """
    path = own / "shoal.html"
    path.touch(0o600)
    path.write_text(f'<meta http-equiv="refresh" content="0; url={escape(url)}">')
    with contextlib.suppress(webbrowser.Error):
        webbrowser.open(path.as_uri())
