"""The page /metrics of one process: who may read it, and the server that gives it.

On one machine it listens at the loopback address alone. In a pod it is reached from other pods, so
it asks for a token. Owns HTTP; what is on the page is of the collectors in its registry.
"""

from __future__ import annotations

import contextlib
import hmac
import socket
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from socketserver import TCPServer
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app

PATH = "/metrics"

LOOPBACK = "127.0.0.1"

REQUEST_SECONDS = 10.0
"""For a request to come, the page to be made, and the answer to be taken, together."""

READERS = 4
"""Pages that are made at the same time; a further reader is sent away."""

POLL_SECONDS = 0.2
"""Between two looks whether the process ends."""

_NAMES_OF_LOOPBACK = (LOOPBACK, "localhost", "")
"""What the Host of a request may be: a web page could have any other name lead a browser here."""

Start = Callable[[str, list[tuple[str, str]]], object]


class _Handler(WSGIRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Log nothing: Prometheus asks all the time."""


class _Server(WSGIServer):
    """A thread for each request, of at most READERS."""

    request_queue_size = 16

    def __init__(self, address: tuple[str, int]) -> None:
        self._room = threading.BoundedSemaphore(READERS)
        self._lock = threading.Lock()
        # Until when each connection may be open. Without time-outs of their own, which would begin
        # anew with each byte that a reader sends or takes.
        self._open: dict[socket.socket, float] = {}
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """Without asking for the name of the address, which may take seconds."""
        TCPServer.server_bind(self)
        host, port = self.socket.getsockname()[:2]
        self.server_address, self.server_name, self.server_port = (host, port), host, port
        self.setup_environ()

    def service_actions(self) -> None:
        """End connections whose time is over; called every POLL_SECONDS."""
        now = time.monotonic()
        with self._lock:
            for request, until in self._open.items():
                if now > until:
                    with contextlib.suppress(OSError):  # the reader has ended it
                        request.shutdown(socket.SHUT_RDWR)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer on a thread; without room for one, close the connection."""
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        with self._lock:
            self._open[request] = time.monotonic() + REQUEST_SECONDS
        thread = threading.Thread(
            target=self._answer, args=(request, client_address), name="metrics-page", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:  # the machine has no thread left
            self._close(request)

    def _answer(self, request: Any, client_address: Any) -> None:
        try:
            self.finish_request(request, client_address)
        except OSError:
            pass  # the reader is gone, or too slow
        finally:
            self._close(request)

    def _close(self, request: socket.socket) -> None:
        with self._lock:
            del self._open[request]
        self.shutdown_request(request)
        self._room.release()


def _token(file: Path) -> str:
    """The text of the file; "" if it cannot be read."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return file.read_text().strip()
    return ""


def _guarded(pages: Any, token: Path | None) -> Any:
    """The application `pages` for those who may read it; see MetricsPage."""

    def refuse(start: Start, status: str, why: str, *more: tuple[str, str]) -> Iterable[bytes]:
        start(status, [("Content-Type", "text/plain; charset=utf-8"), *more])
        return [f"{why}\n".encode()]

    def application(environ: dict[str, Any], start: Start) -> Any:
        if token is not None:
            known = _token(token)
            given = environ.get("HTTP_AUTHORIZATION", "").encode("latin-1", "replace")
            if not known or not hmac.compare_digest(given, f"Bearer {known}".encode()):
                why = "give the token of the Secret shoal-metrics"
                return refuse(start, "401 Unauthorized", why, ("WWW-Authenticate", "Bearer"))
        elif environ.get("HTTP_HOST", "").partition(":")[0] not in _NAMES_OF_LOOPBACK:
            return refuse(start, "403 Forbidden", f"ask http://{LOOPBACK} for this page")
        if environ["PATH_INFO"] != PATH:
            return refuse(start, "404 Not Found", f"the metrics are at {PATH}")
        return pages(environ, start)

    return application


class MetricsPage:
    """Serves what the collectors of `registry` tell, until `close`.

    host, port: where it listens; port 0: any free one. token: a file with what a reader must show,
    as the header "Authorization: Bearer TOKEN". It is read for each request, as Secrets change;
    while there is nothing in it, nobody may read the page. None: no token, and then `host` must be
    the loopback address.

    address: host:port. Raises OSError if the port is taken, ValueError if others could read it.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        host: str = LOOPBACK,
        port: int = 0,
        token: Path | None = None,
    ) -> None:
        if token is None and host != LOOPBACK:
            raise ValueError(f"a page at {host} needs a token")
        self._server = _Server((host, port))
        self._server.set_app(_guarded(make_wsgi_app(registry), token))
        self.address = f"{host}:{self._server.server_port}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(POLL_SECONDS,), name="metrics", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Listen no more; pages that are being made are still given."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
