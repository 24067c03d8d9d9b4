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
from collections.abc import Callable
from pathlib import Path

from shoal.base.disk.temporary import PREFIX, takes_sockets
from shoal.errors import UserError
from shoal.proto.faults import relay_file, target_file
from shoal.proto.wire.transport import arrays_address, open_socket

CHUNK = 1 << 16
CONNECT_SECONDS = 5.0
BACKLOG = 128


class Relay:
    """Takes connections of one process to another one.

    folder: of SHOAL_FAULTS, where the first one finds it. process, other: their names.
    Once closed, connections through it are gone.
    """

    def __init__(self, folder: Path, process: str, other: str) -> None:
        self._open = threading.Event()
        self._open.set()
        self._place = tempfile.TemporaryDirectory(prefix=PREFIX)
        calls = f"unix:{self._place.name}/calls"
        if not takes_sockets(Path(self._place.name), Path(arrays_address(calls)).name):
            self._place.cleanup()
            raise UserError(
                f"--cut needs a Unix socket in the temporary folder, whose path "
                f"({self._place.name}) is too long or has one of % # ?; set TMPDIR to another"
            )
        file = relay_file(folder, process, other)

        def target() -> str:
            return target_file(file).read_text()

        # Who finds the first by its file finds the other as with any process.
        self._ways = [
            _Way(calls, target, self._open, self.note),
            _Way(arrays_address(calls), lambda: arrays_address(target()), self._open, self.note),
        ]
        file.write_text(calls)

    def note(self, data: bytes) -> None:
        """Bytes come that are to be given on. Does nothing; for who listens in."""

    def cut(self) -> None:
        """Let nothing through."""
        self._open.clear()

    def mend(self) -> None:
        """Let everything through again."""
        self._open.set()

    def close(self) -> None:
        """Close all connections."""
        for way in self._ways:
            way.closed = True
        self._open.set()
        for way in self._ways:
            way.close()
        self._place.cleanup()


class _Way:
    """The relay of one of the two addresses of the other process.

    address: where it listens. target: where the other process does. opened: set while connections
    go through. note: is told of what comes. closed: it takes none any more.
    """

    def __init__(
        self,
        address: str,
        target: Callable[[], str],
        opened: threading.Event,
        note: Callable[[bytes], object],
    ) -> None:
        self._target = target
        self._note = note
        self._open = opened
        self.closed = False
        self._sockets: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(address.removeprefix("unix:"))
        self._listener.listen(BACKLOG)
        threading.Thread(target=self._accept, name="relay", daemon=True).start()

    def close(self) -> None:
        """Close all connections."""
        # Closing alone does not wake a thread in accept or recv.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
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
            far = open_socket(self._target(), CONNECT_SECONDS)
        except (OSError, ValueError):
            near.close()
            return
        far.settimeout(None)
        with self._lock:
            self._sockets |= {near, far}
            closed = self.closed
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
                self._note(data)
                self._open.wait()
                sink.sendall(data)
        _end(source)
        _end(sink)


def _end(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
