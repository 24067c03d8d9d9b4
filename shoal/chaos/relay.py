"""A relay between two processes that can be cut: connections that go through here.

It listens at a Unix socket that only the user can open: what passes may be plain text.

Owns sockets and threads. A cut relay takes no byte from either side and gives none on, and
connections stay open: as where packets are lost on the way. Afterwards what was sent
arrives, as TCP would send it again.
"""

from __future__ import annotations

import contextlib
import socket
import tempfile
import threading
from pathlib import Path

from shoal.base.temporary import PREFIX, takes_sockets
from shoal.errors import UserError
from shoal.proto.faults import relay_file, target_file

CHUNK = 1 << 16
CONNECT_SECONDS = 5.0
BACKLOG = 128


class Relay:
    """Takes connections of one process to another one.

    folder: of SHOAL_FAULTS, where the first one finds it. process, other: their names.
    Once closed, connections through it are gone.
    """

    def __init__(self, folder: Path, process: str, other: str) -> None:
        self._file = relay_file(folder, process, other)
        self._open = threading.Event()
        self._open.set()
        self._closed = False
        self._sockets: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._place = tempfile.TemporaryDirectory(prefix=PREFIX)
        if not takes_sockets(Path(self._place.name), "relay"):
            self._place.cleanup()
            raise UserError(
                f"--cut needs a Unix socket in the temporary folder, whose path "
                f"({self._place.name}) is too long or has one of % # ?; set TMPDIR to another"
            )
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(f"{self._place.name}/relay")
        self._listener.listen(BACKLOG)
        self._file.write_text(f"unix:{self._place.name}/relay")
        threading.Thread(target=self._accept, name=f"relay-{self._file.name}", daemon=True).start()

    def cut(self) -> None:
        """Let nothing through."""
        self._open.clear()

    def mend(self) -> None:
        """Let everything through again."""
        self._open.set()

    def close(self) -> None:
        """Close all connections."""
        self._closed = True
        self._open.set()
        # Closing alone does not wake a thread in accept or recv.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._place.cleanup()
        with self._lock:
            for each in self._sockets:
                _end(each)

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._connect, args=(near,), daemon=True).start()

    def _connect(self, near: socket.socket) -> None:
        self._open.wait()
        try:
            far = _connected(target_file(self._file).read_text())
        except (OSError, ValueError):
            near.close()
            return
        far.settimeout(None)
        with self._lock:
            self._sockets |= {near, far}
            closed = self._closed
        if closed:
            _end(near)
            _end(far)
        there = threading.Thread(target=self._give_on, args=(near, far), daemon=True)
        there.start()
        self._give_on(far, near)
        there.join()
        with self._lock:
            self._sockets -= {near, far}
        near.close()
        far.close()

    def _give_on(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(CHUNK):
                self._open.wait()
                sink.sendall(data)
        _end(source)
        _end(sink)


def _connected(address: str) -> socket.socket:
    """A connection to "host:port" or "unix:path". Raises OSError, ValueError."""
    if not address.startswith("unix:"):
        host, _, port = address.rpartition(":")
        return socket.create_connection((host, int(port)), CONNECT_SECONDS)
    made = socket.socket(socket.AF_UNIX)
    made.settimeout(CONNECT_SECONDS)
    try:
        made.connect(address.removeprefix("unix:"))
    except BaseException:
        made.close()
        raise
    return made


def _end(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
