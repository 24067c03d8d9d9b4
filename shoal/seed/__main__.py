"""`python -m shoal.seed SOCKET LISTENER [--config JOB] MODULES LATER ROOM`: a process to be forked.

MODULES, LATER: those that it imports at first, and when nobody asks it, separated by commas.
ROOM: any text, in the place of which other command lines come. Owns the seed's loop, requests and
ends of processes; forked.py is what a child does.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import socket
import sys
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from shoal.base.garbage import lasting_imports
from shoal.seed.forked import Request, take_command_line
from shoal.seed.pool import REFUSED

QUIET_SECONDS = 0.1
"""Without a request, before a module is imported that no process needs at its start."""

LOOK_SECONDS = 1.0
"""Between two looks whether the folder is still there."""

IDLE_SECONDS = 600.0
"""Without a process or a request, until a seed ends that outlives jobs."""

LINGER_SECONDS = 2.0
"""The same for a job's own, which the job's client and its master keep while they are there."""

REMEMBERED = 1000
"""Ended processes whose status may be asked for later."""


class Seed:
    """One seed: forks where it is asked, and tells the ends of its processes.

    A process whose asker is still connected is not reaped before that connection is closed, so that
    its id names nobody else meanwhile.
    """

    def __init__(
        self, listener: socket.socket, path: Path, later: Sequence[str], *, own: bool
    ) -> None:
        """later: modules to import when nobody asks. own: it belongs to one job."""
        self._listener = listener
        self._path = path
        self._later = deque(later)
        self._idle = LINGER_SECONDS if own else IDLE_SECONDS
        self._poll = select.epoll()
        self._poll.register(listener, select.EPOLLIN)
        self._asking: dict[int, socket.socket] = {}
        self._askers: dict[int, int] = {}  # pidfd of a process -> file number of its connection
        self._pids: dict[int, int] = {}  # pidfd -> process id
        self._ended: dict[int, int] = {}  # file number of a connection -> id, not yet reaped
        self._statuses: deque[tuple[int, int]] = deque(maxlen=REMEMBERED)

    def serve(self) -> Request | None:
        """Serve until nobody is left to serve. In a forked process: returns what it is to be."""
        used = time.monotonic()
        while True:
            events = self._poll.poll(QUIET_SECONDS if self._later else LOOK_SECONDS)
            if not events and self._later:
                self._import(self._later.popleft())
            for number, _ in events:
                used = time.monotonic()
                if (request := self._handle(number)) is not None:
                    return request
            if self._asking or self._pids:
                used = time.monotonic()
            if not self._path.exists() or time.monotonic() - used > self._idle:
                return None

    def _import(self, name: str) -> None:
        with contextlib.suppress(Exception), lasting_imports():  # who needs it says what is wrong
            importlib.import_module(name)

    def _handle(self, number: int) -> Request | None:
        if number == self._listener.fileno():
            connection, _ = self._listener.accept()
            connection.setblocking(False)
            self._asking[connection.fileno()] = connection
            self._poll.register(connection, select.EPOLLIN)
        elif number in self._pids:
            self._process_ended(number)
        elif number in self._asking:
            return self._asked(self._asking[number])
        return None

    def _asked(self, connection: socket.socket) -> Request | None:
        try:
            packet, descriptors, _, _ = socket.recv_fds(connection, 64, 3)
        except OSError:
            packet, descriptors = b"", []
        if packet.startswith(b"status "):
            self._tell(connection, {"status": dict(self._statuses).get(int(packet[7:]))})
        elif packet == b"ready":
            self._tell(connection, {})
        elif packet == b"fork" and len(descriptors) == 3:
            request = Request.read(*descriptors)
            if not _closed(connection):
                return self._fork(connection, request)
            request.close()
        else:
            self._forget(connection)
        return None

    def _fork(self, connection: socket.socket, request: Request) -> Request | None:
        ready, told = os.pipe()
        with os.fdopen(ready, "rb") as ready_file, os.fdopen(told, "wb") as told_file:
            try:
                pid = os.fork()
            except OSError as error:
                self._tell(connection, {"error": str(error)})
                request.close()
                return None
            if pid == 0:
                self._leave()
                try:
                    request.become()
                except OSError as error:
                    told_file.write(str(error).encode())
                    told_file.flush()
                    os._exit(1)
                return request
            told_file.close()
            request.close()
            # Only now can those who end a job's processes tell whose it is.
            why = ready_file.read()
        if why:
            os.waitpid(pid, 0)
            self._tell(connection, {"error": why.decode()})
            return None
        handle = os.pidfd_open(pid)
        self._pids[handle] = pid
        self._askers[handle] = connection.fileno()
        self._poll.register(handle, select.EPOLLIN)
        self._tell(connection, {"pid": pid})
        return None

    def _leave(self) -> None:
        """Close in a forked process what is the seed's."""
        self._poll.close()
        self._listener.close()
        for connection in self._asking.values():
            connection.close()
        for handle in self._pids:
            os.close(handle)

    def _process_ended(self, handle: int) -> None:
        pid, asker = self._pids.pop(handle), self._askers.pop(handle)
        self._poll.unregister(handle)
        os.close(handle)
        found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert found is not None
        status = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
        self._statuses.append((pid, status))
        if asker in self._asking:
            self._ended[asker] = pid
            self._tell(self._asking[asker], {"status": status})
        else:
            os.waitpid(pid, 0)

    def _tell(self, connection: socket.socket, answer: dict[str, object]) -> None:
        with contextlib.suppress(OSError):  # it has ended; its process goes on
            connection.send(json.dumps(answer).encode())

    def _forget(self, connection: socket.socket) -> None:
        number = connection.fileno()
        del self._asking[number]
        self._poll.unregister(connection)
        connection.close()
        for handle, asker in self._askers.items():
            if asker == number:  # the number will be another connection's
                self._askers[handle] = -1
        if (pid := self._ended.pop(number, None)) is not None:
            os.waitpid(pid, 0)


def _closed(connection: socket.socket) -> bool:
    """True if the asker has gone, and with it the wish for a process."""
    try:
        return not connection.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        return True


def _threads() -> list[str]:
    """The names of the threads beside this one."""
    # Libraries of linear algebra end theirs before a fork, and start them again when needed.
    if (pid := os.fork()) == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    tasks = Path("/proc/self/task")
    return [(tasks / each / "comm").read_text().strip() for each in os.listdir(tasks)][1:]


def main() -> None:
    """Import, and serve; a forked process runs its module instead."""
    path, number = Path(sys.argv[1]), int(sys.argv[2])
    modules, later = (text.split(",") if text else [] for text in sys.argv[-3:-1])
    own = "--config" in sys.argv
    if os.fork():
        os._exit(0)
    path.with_suffix(".pid").write_text(str(os.getpid()))
    take_command_line([sys.executable, "-m", "shoal.seed", *sys.argv[1:-1]])
    # Or a library starts a thread for its allocator.
    os.environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")
    try:
        with lasting_imports():
            for name in modules:
                importlib.import_module(name)
        if found := _threads():
            raise RuntimeError(f"these threads have started at its imports: {', '.join(found)}")
    except BaseException as error:
        # Nobody tries again: the processes themselves say better what is missing.
        path.with_suffix(REFUSED).write_text(f"{type(error).__name__}: {error}")
        raise
    request = Seed(socket.socket(fileno=number), path, later, own=own).serve()
    if request is not None:
        request.run()


if __name__ == "__main__":
    main()
