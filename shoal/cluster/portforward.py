"""A way from this machine to a port of a pod, through the API server.

A local socket is listened on; each connection to it becomes a port-forward of its own.
"""

from __future__ import annotations

import contextlib
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from kubernetes import client
from kubernetes.client.exceptions import ApiException
from kubernetes.stream import portforward

CHUNK = 1 << 16

CLOSE_SECONDS = 1.0
"""For the threads to end when it is closed: one that runs on, and says something while the
interpreter ends, aborts the process."""

_LIBRARY = "kubernetes.stream"


def quiet_where_connections_break(
    hook: Callable[[threading.ExceptHookArgs], object],
) -> Callable[[threading.ExceptHookArgs], object]:
    """The hook, but for the library's threads that die of a broken connection.

    The end of the connection is noticed here, and they would tell it on the terminal.
    """

    def said(died: threading.ExceptHookArgs) -> None:
        frame = died.exc_traceback
        modules = []
        while frame is not None:
            modules.append(str(frame.tb_frame.f_globals.get("__name__", "")))
            frame = frame.tb_next
        broken = isinstance(died.exc_value, OSError)
        if not (broken and any(name.startswith(_LIBRARY) for name in modules)):
            hook(died)

    return said


threading.excepthook = quiet_where_connections_break(threading.excepthook)


class PortForward:
    """Listens on `address` (as gRPC takes it) until it is closed.

    The socket is a file that only this user can reach.
    """

    def __init__(self, api: client.ApiClient, namespace: str, pod: str, port: int) -> None:
        self._configuration = api.configuration
        self._namespace, self._pod, self._port = namespace, pod, port
        self._folder = tempfile.TemporaryDirectory(prefix="shoal-")
        path = Path(self._folder.name) / "master"
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self.address = f"unix:{path}"
        self._carrying: list[threading.Thread] = []
        self._accepting = threading.Thread(target=self._accept, name="port-forward", daemon=True)
        self._accepting.start()

    def close(self) -> None:
        """Stop listening, and wait a moment for the connections, which the caller has closed."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._folder.cleanup()
        give_up = time.monotonic() + CLOSE_SECONDS
        self._accepting.join(CLOSE_SECONDS)  # it adds no thread any more
        for thread in self._carrying:
            thread.join(max(0.0, give_up - time.monotonic()))

    def _accept(self) -> None:
        while True:
            try:
                local, _ = self._listener.accept()
            except OSError:
                return
            # Each in a thread of its own from the beginning: the API server may take one and
            # not answer, and the caller's next try must not wait behind it.
            thread = threading.Thread(target=self._carry, args=(local,), daemon=True)
            thread.start()
            self._carrying = [each for each in self._carrying if each.is_alive()] + [thread]

    def _carry(self, local: socket.socket) -> None:
        """Make a way for a connection, and carry what comes until both ends have ended."""
        # A client of its own: the library's stream call replaces its request method.
        core = client.CoreV1Api(client.ApiClient(self._configuration))
        try:
            forward = portforward(
                core.connect_get_namespaced_pod_portforward,
                self._pod,
                self._namespace,
                ports=str(self._port),
            )
            remote = forward.socket(self._port)
        except (ApiException, OSError):
            local.close()  # the caller tries again
            return
        back = threading.Thread(target=_pump, args=(remote, local), daemon=True)
        back.start()
        _pump(local, remote)
        back.join()
        for end in (local, remote):
            with contextlib.suppress(OSError):
                end.close()


def _pump(source: socket.socket, target: socket.socket) -> None:
    # To the end, also where nobody takes it any more: the library's thread dies of a socket
    # that is closed with data in it, says so on the terminal, and leaves its connection open.
    with contextlib.suppress(OSError):
        while data := source.recv(CHUNK):
            with contextlib.suppress(OSError):
                target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
