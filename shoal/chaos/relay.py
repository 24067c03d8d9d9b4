"""A relay between two processes that can be cut: TCP connections that go through here.

Owns sockets and threads. A cut relay takes no byte from either side and gives none on, and
connections stay open: as where packets are lost on the way. Afterwards what was sent
arrives, as TCP would send it again.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from pathlib import Path

from shoal.proto.faults import relay_file, target_file

CHUNK = 1 << 16
CONNECT_SECONDS = 5.0


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
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._file.write_text(f"127.0.0.1:{self._listener.getsockname()[1]}")
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
            host, _, port = target_file(self._file).read_text().rpartition(":")
            far = socket.create_connection((host, int(port)), CONNECT_SECONDS)
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


def _end(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
