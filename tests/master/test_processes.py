"""The process launcher, with real processes that end in every way."""

from __future__ import annotations

import os
import queue
import signal
import socket
import sys

import pytest

from shoal.config import JobFolder
from shoal.master.ids import ServerId, Start, WorkerId
from shoal.master.launcher import Exited, Started
from shoal.master.processes import ProcessLauncher, shoal_command

PATIENCE = 30.0
FOREVER = "import threading; threading.Event().wait()"
CONNECT = "import socket; s = socket.create_connection(('127.0.0.1', {port})); " + FOREVER
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + CONNECT


class Launched:
    """A launcher of Python one-liners and its events."""

    def __init__(self, folder, sources):
        self.events = queue.SimpleQueue()
        self.folder = JobFolder(folder)
        self.launcher = ProcessLauncher(
            self.events.put, self.folder, lambda start: [sys.executable, "-c", sources[start]]
        )

    def event(self, kind):
        event = self.events.get(timeout=PATIENCE)
        assert isinstance(event, kind)
        return event


@pytest.fixture
def launch(tmp_path):
    launched = []

    def start(sources):
        new = Launched(tmp_path, sources)
        launched.append(new)
        for start in sources:
            new.launcher.start(start)
        return new

    yield start
    for each in launched:
        each.launcher.end(each.launcher.running(), 0.0)
        assert not each.launcher.running()


A = Start(WorkerId(0), 1)


@pytest.fixture
def listener():
    """Children connect to it once they are set up; the end of the connection is theirs."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(PATIENCE)
        yield server


def port(listener):
    return listener.getsockname()[1]


def test_exit_code_and_the_end_of_the_log_are_told(launch):
    launched = launch({A: "import sys; print('Boom!'); sys.exit(3)"})
    assert launched.event(Started).start == A
    exited = launched.event(Exited)
    assert (exited.code, exited.signal_number, exited.cause) == (3, None, "exit code 3")
    assert exited.last_lines == "Boom!"
    assert exited.log == str(launched.folder.log_of("worker", 0, 1))


def test_a_kill_from_outside_is_told_as_its_signal(launch):
    launched = launch({A: FOREVER})
    os.kill(launched.event(Started).pid, signal.SIGSEGV)
    exited = launched.event(Exited)
    assert (exited.code, exited.cause) == (None, "signal 11, SIGSEGV")


@pytest.mark.parametrize(("source", "number"), [(CONNECT, "SIGTERM"), (STUBBORN, "SIGKILL")])
def test_ending_asks_first_and_kills_after_the_grace(launch, listener, source, number):
    launched = launch({A: source.format(port=port(listener))})
    launched.event(Started)
    with listener.accept()[0]:
        launched.launcher.end([A], 0.2 if number == "SIGKILL" else PATIENCE)
    assert number in launched.event(Exited).cause
    assert launched.launcher.running() == frozenset()
    launched.launcher.kill(A)


def test_what_a_child_has_started_goes_with_it(launch, listener):
    code = CONNECT.format(port=port(listener))
    begin = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {code!r}])"
    launched = launch({A: f"{begin}; {FOREVER}"})
    pid = launched.event(Started).pid
    with listener.accept()[0] as connection:
        os.kill(pid, signal.SIGKILL)
        connection.settimeout(PATIENCE)
        assert connection.recv(1) == b""


def test_children_lead_their_own_session(launch):
    launched = launch({A: FOREVER})
    pid = launched.event(Started).pid
    assert os.getsid(pid) == pid


def test_command_lines(tmp_path):
    command = shoal_command(JobFolder(tmp_path), "127.0.0.1:1")(Start(ServerId(1), 2))
    assert list(command) == [
        *(sys.executable, "-m", "shoal.ps", "--config", str(tmp_path / "job.json")),
        *("--index", "1", "--incarnation", "2", "--master", "127.0.0.1:1"),
    ]
