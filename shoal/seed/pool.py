"""Seeds of a folder: starting them, finding them, and asking them for processes.

The folder has for each seed a Unix socket and a file with its process id. It is the job's own, or
the one that SHOAL_SEED names, whose seeds serve job after job.

A connection is for one process: request and answers are packets, and the seed reaps the process
when the connection is closed. One without a request keeps the seed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from shoal.base.disk import temporary
from shoal.base.disk.job_folder import JobFolder
from shoal.errors import UserError
from shoal.seed.kinds import (
    BACKENDS,
    DEFAULTS,
    IMPORTS,
    LATER,
    SERVING,
    TRAINING,
    seed_name,
    training_kind,
)

logger = logging.getLogger(__name__)

VARIABLE = "SHOAL_SEED"
"""Names the folder of seeds that outlive a job; OFF: processes are executed."""

OFF = "off"

READY_SECONDS = 60.0
"""For a seed to answer, which may still be importing TensorFlow on a busy machine."""

MOST_WAITING = 1024
"""Connections that a seed has not seen yet, while it imports."""

PACKET_BYTES = 1 << 12
"""Of an answer."""

ROOM = 4096
"""Bytes for the command line of a forked process, which takes the place of the seed's."""

REFUSED = ".refused"
"""Suffix of the file in which a seed says why it cannot fork processes."""

LONGEST_NAME = f"{max(BACKENDS, key=len)}-0123456789ab"


class Pool:
    """The seeds of one folder.

    path: the folder, which is the user's alone. config: the job.json of the only job that the seeds
    serve, by which `kill_job` finds them; None: they serve any job.
    """

    def __init__(self, path: Path, config: Path | None = None, training: str = TRAINING) -> None:
        """training: the kind for the workers of the job that begins."""
        self.path = path
        self._training = training
        self._config = config
        self._kept: list[socket.socket] = []

    def __enter__(self) -> Self:
        """Start the seeds that are missing, and keep them as long as the body runs.

        They are for processes with this process's environment.
        """
        for kind in (self._training, SERVING):
            with contextlib.suppress(OSError):  # `ready` says so
                self._kept.append(self._connected(kind, seed_name(kind, os.environ), os.environ))
        return self

    def __exit__(self, *_: object) -> None:
        for connection in self._kept:
            connection.close()

    @classmethod
    def of(cls, folder: JobFolder) -> Pool | None:
        """The pool for a job of this machine; None where its processes are executed.

        Raises UserError if SHOAL_SEED names a folder that cannot be used.
        """
        if os.environ.get(VARIABLE):
            named = named_folder()
            return None if named is None else cls(named, training=training_kind(folder.config))
        own = temporary.sockets(folder)
        if own is None or not temporary.takes_sockets(own, LONGEST_NAME):
            return None
        return cls(own, folder.config, training_kind(folder.config))

    def ready(self, kind: str, environment: Mapping[str, str]) -> socket.socket | None:
        """Wait until a seed can fork a process with an environment; a connection for one.

        None where no seed can, which is logged: the process is to be executed.
        """
        connection, name = None, seed_name(kind, environment)
        try:
            connection = self._connected(kind, name, environment)
            connection.send(b"ready")
            _answered_well(connection)
            return connection
        except TimeoutError:
            # It may be stopped: somebody else is to find another one.
            with contextlib.suppress(OSError, ValueError):
                os.kill(int((self.path / f"{name}.pid").read_text()), signal.SIGKILL)
            why = f"it has not answered within {READY_SECONDS:g} s"
        except OSError as error:
            why = self._refused(name) or str(error)
        if connection is not None:
            connection.close()
        logger.warning("processes are executed, as the seed for them cannot be used: %s", why)
        return None

    def _refused(self, name: str) -> str:
        """The reason why a seed cannot fork processes, if it has found one; else empty."""
        try:
            return (self.path / f"{name}{REFUSED}").read_text()
        except FileNotFoundError:
            return ""

    def _connected(self, kind: str, name: str, environment: Mapping[str, str]) -> socket.socket:
        """A connection to the seed, which is started if there is none. Raises OSError."""
        if refused := self._refused(name):
            raise OSError(refused)
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.settimeout(READY_SECONDS)
        path = str(self.path / name)
        try:
            with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
                connection.connect(path)
                return connection
            with (self.path / f"{name}.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                try:
                    connection.connect(path)  # somebody else has started it meanwhile
                except (FileNotFoundError, ConnectionRefusedError):
                    self._start(kind, name, environment)
                    connection.connect(path)
            return connection
        except BaseException:
            connection.close()
            raise

    def _start(self, kind: str, name: str, environment: Mapping[str, str]) -> None:
        path = self.path / name
        path.unlink(missing_ok=True)
        # Made here: who connects while the seed imports waits for it.
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(str(path))
            listener.listen(MOST_WAITING)
            command = [sys.executable, "-m", "shoal.seed", str(path), str(listener.fileno())]
            command += ["--config", str(self._config)] if self._config is not None else []
            command += [",".join(IMPORTS[kind]), ",".join(LATER[kind])]
            backend = {"KERAS_BACKEND": BACKENDS[kind]} if kind in BACKENDS else {}
            with (self.path / f"{name}.log").open("ab") as log:
                # Returns at once: the seed is a grandchild, which needs nobody to reap it.
                subprocess.run(
                    [*command, "-" * ROOM],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env={**DEFAULTS, **environment, **backend, "PYTHONUNBUFFERED": "1"},
                    pass_fds=[listener.fileno()],
                    start_new_session=True,
                    check=True,
                )


def fork(
    connection: socket.socket,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    folder: str,
    streams: tuple[int, int],
) -> int:
    """Make the seed of a connection that is `ready` fork a process; return the process's id.

    arguments: Python's, -m MODULE first. folder: its working directory. streams: the file
    descriptors of its output and errors. Raises OSError if there is no process now, and none will
    be.
    """
    request = {
        "arguments": list(arguments),
        "environment": dict(environment),
        "folder": folder,
    }
    with os.fdopen(os.memfd_create("request"), "w+b") as file:
        file.write(json.dumps(request).encode())
        file.flush()
        socket.send_fds(connection, [b"fork"], [file.fileno(), *streams])
    return int(_answered_well(connection)["pid"])


def _answered_well(connection: socket.socket) -> dict[str, Any]:
    """A seed's next answer. Raises OSError."""
    answer = answered(connection)
    if answer is None:
        raise ConnectionError("it has ended")
    if "error" in answer:
        raise OSError(answer["error"])
    return answer


def answered(connection: socket.socket) -> dict[str, Any] | None:
    """A seed's next answer; None if it has ended. Raises TimeoutError."""
    try:
        packet = connection.recv(PACKET_BYTES)
    except ConnectionError:
        return None
    found: dict[str, Any] | None = json.loads(packet) if packet else None
    return found


def status_of(seed: str, pid: int) -> int | None:
    """The exit status that a seed remembers of a process that has ended, negative for a signal.

    seed: the path of its socket; "" for none. None if it does not know, or has ended.
    """
    if not seed:
        return None
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(READY_SECONDS)
        try:
            connection.connect(seed)
            connection.send(b"status %d" % pid)
            answer = answered(connection)
        except OSError:
            return None
    return None if answer is None else answer["status"]


def named_folder() -> Path | None:
    """The folder that SHOAL_SEED names, made if need be; None for none. Raises UserError."""
    named = os.environ.get(VARIABLE, "")
    if named in ("", OFF):
        return None
    path = Path(named).absolute()
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.stat()
    except OSError as error:
        raise UserError(f"{VARIABLE}: {path} cannot be made: {error.strerror}") from error
    if not path.is_dir() or found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise UserError(
            f"{VARIABLE}: {path} must be a folder that nobody but you can enter; "
            f"name another, or run: chmod 700 {path}"
        )
    if not temporary.takes_sockets(path, LONGEST_NAME):
        raise UserError(
            f"{VARIABLE}: the path {path} is too long for Unix sockets, or has one of the "
            "characters %, # and ?; name another folder"
        )
    return path
