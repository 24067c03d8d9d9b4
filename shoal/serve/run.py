"""The process of `shoal serve`: what it listens at, for whom, and its end."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.base.modules.libraries import library
from shoal.base.signals import ending_at_signals
from shoal.client.show.plain import echo
from shoal.deltas.following import Follower
from shoal.errors import UserError

INSECURE = (
    "--insecure: whoever reaches this address can ask for predictions and rows, and nothing that "
    "is said there is kept secret"
)


@dataclass(frozen=True)
class Options:
    """The flags of `shoal serve`, as it names them."""

    listen: str
    name: str
    rows: int | None
    grpc: int | None
    until: int | None
    max_age: float | None
    tables: tuple[str, ...]
    tls_cert: str
    tls_key: str
    tls_ca: str
    insecure: bool

    @property
    def host(self) -> str:
        """The host of --listen."""
        return self._address[0]

    @property
    def port(self) -> int:
        """The port of --listen; 0: any that is free."""
        return self._address[1]

    @property
    def _address(self) -> tuple[str, int]:
        host, colon, port = self.listen.rpartition(":")
        bracketed = host.startswith("[") and host.endswith("]")
        host = host[1:-1] if bracketed else host
        wrong = not colon or not host or (":" in host and not bracketed)
        if wrong or not port.isdecimal() or int(port) > 65535:
            raise UserError(f"--listen: {self.listen} is not HOST:PORT, as in 127.0.0.1:8501")
        return host, int(port)

    def check(self) -> None:
        """Raises UserError for flags that do not go together."""
        if bool(self.tls_cert) != bool(self.tls_key):
            raise UserError("--tls-cert and --tls-key: give both, or neither")
        if self.tls_ca and not self.tls_cert:
            raise UserError(
                "--tls-ca says who may call over TLS: it needs --tls-cert and --tls-key"
            )
        if self.insecure and self.tls_cert:
            raise UserError("--insecure cannot be combined with --tls-cert")
        if _is_loopback(self.host) or self.insecure:
            return
        if not self.tls_cert:
            raise UserError(
                f"--listen: {self.host} is reached from other machines: give --tls-cert and "
                "--tls-key, or --insecure if the network is safe"
            )
        if self.rows is not None:
            raise UserError(
                "--rows: its port has no TLS: leave it out, listen at 127.0.0.1, or give --insecure"
            )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_installed(grpc: bool) -> None:
    """Raises UserError if a library is missing. grpc: with --grpc."""
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise UserError(
            f"shoal serve needs Starlette and uvicorn: pip install 'shoal[serve]' ({error})"
        ) from error
    if not grpc:
        return
    library("tensorflow", "--grpc", "'shoal[cpu]'")
    try:
        import tensorflow_serving  # noqa: F401
    except ImportError as error:
        raise UserError(
            "--grpc needs the messages of TensorFlow Serving: pip install --no-deps "
            f"tensorflow-serving-api ({error})"
        ) from error


def run(url: str, options: Options, also: Mapping[str, str]) -> None:
    """Serve until SIGINT or SIGTERM. also: as of `app_of`. Raises UserError."""
    options.check()
    check_installed(options.grpc is not None)
    from shoal.serve.app import Service, app_of

    with contextlib.ExitStack() as ends:
        listener = ends.enter_context(_bound("--listen", options.host, options.port))
        port = listener.getsockname()[1]
        follower = ends.enter_context(Follower(url, until=options.until, tables=options.tables))
        if follower.other():
            raise UserError(
                f"{url}: nothing here was published by a job: give the folder of --publish"
            )
        plane = 0
        if options.rows is not None:
            from shoal.serve.data_plane import DataPlane

            rows = DataPlane(follower, _bound("--rows", options.host, options.rows))
            ends.callback(rows.close)
            rows.start()
            plane = rows.port
        service = Service(follower, options.name, options.max_age, plane)
        server = _server(app_of(service, also), options)
        host = f"[{options.host}]" if ":" in options.host else options.host
        calls = None
        if options.grpc is not None:
            calls = _calls(service, follower, options, f"{host}:{options.grpc}")
            ends.callback(calls.close)
        follower.start()
        scheme = "https" if options.tls_cert else "http"
        echo(f"serving {url} at {scheme}://{host}:{port}/v1/models/{options.name}")
        if plane:
            echo(f"rows at {host}:{plane}")
        if calls:
            echo(f"gRPC at {host}:{calls.port}")
        if options.insecure and not _is_loopback(options.host):
            echo(INSECURE, err=True)
        with ending_at_signals(server):
            server.run(sockets=[listener])


def _bound(flag: str, host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        raise UserError(f"{flag}: {host}:{port} cannot be used: {error.strerror}") from error


def _calls(service: Any, follower: Follower, options: Options, address: str) -> Any:
    """The server of gRPC, with the TLS of --listen, whose files have been read before."""
    import grpc

    from shoal.serve.prediction_service import Server  # late: it loads TensorFlow

    credentials = None
    if options.tls_cert:
        pairs = [(Path(options.tls_key).read_bytes(), Path(options.tls_cert).read_bytes())]
        authorities = Path(options.tls_ca).read_bytes() if options.tls_ca else None
        credentials = grpc.ssl_server_credentials(pairs, authorities, authorities is not None)
    try:
        return Server(service, follower, options.name, address, credentials)
    except OSError as error:
        raise UserError(f"--grpc: {address} cannot be used: {error}") from error


def _server(app: Any, options: Options) -> Any:
    import uvicorn

    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="off",
        ws="none",
        timeout_graceful_shutdown=10,
        ssl_certfile=options.tls_cert or None,
        ssl_keyfile=options.tls_key or None,
        ssl_ca_certs=options.tls_ca or None,
        ssl_cert_reqs=ssl.CERT_REQUIRED if options.tls_ca else ssl.CERT_NONE,
    )
    try:
        config.load()
    except OSError as error:  # ssl.SSLError too
        files = (options.tls_cert, options.tls_key, options.tls_ca)
        names = ", ".join(filter(None, files))
        raise UserError(f"--tls-cert: {names} cannot be used: {error}") from error
    return uvicorn.Server(config)


def of_vertex(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The paths of calls by which Vertex AI asks its containers, by the call."""
    named = {"predict": "AIP_PREDICT_ROUTE", "readyz": "AIP_HEALTH_ROUTE"}
    return {
        call: path
        for call, variable in named.items()
        if (path := environment.get(variable, "")).startswith("/")
    }
