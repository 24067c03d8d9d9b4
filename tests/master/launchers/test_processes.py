"""The process launcher, with real processes that end in every way."""

from __future__ import annotations

import os
import queue
import signal
import socket
import threading

import pytest

from shoal.base.disk.job_folder import JobFolder
from shoal.base.disk.wholefile import write_json
from shoal.master.job.members.launcher import Exited, Started
from shoal.master.launchers.processes import ProcessLauncher, shoal_command
from shoal.master.work.ids import ServerId, Start, WorkerId
from shoal.proto.channels.pools import started_pool

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
            self.events.put, self.folder, lambda start: ["-c", sources[start]]
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
        *("-m", "shoal.ps", "--config", str(tmp_path / "job.json")),
        *("--index", "1", "--incarnation", "2", "--master", "127.0.0.1:1"),
    ]


@pytest.fixture
def next_master(tmp_path):
    """A second launcher of the same folder, as a restarted master has."""

    def make():
        launched = Launched(tmp_path, {A: FOREVER})
        made.append(launched)
        return launched

    made = []
    yield make
    for each in made:
        each.launcher.end(each.launcher.running(), 0.0)


def test_a_process_of_an_earlier_master_is_adopted_and_its_end_is_told(launch, next_master):
    pid = launch({A: FOREVER}).event(Started).pid
    second = next_master()
    second.launcher.adopt(A)
    assert second.event(Started).pid == pid
    assert second.launcher.running() == {A}
    second.launcher.kill(A)
    exited = second.event(Exited)
    assert (exited.code, exited.signal_number) == (None, None)
    assert "earlier master" in exited.cause
    assert second.launcher.wait_gone([A], PATIENCE)


def test_one_that_ended_meanwhile_is_told_as_gone(launch, next_master):
    first = launch({A: "print('last words')"})
    first.event(Started)
    first.event(Exited)
    second = next_master()
    second.launcher.adopt(A)
    assert second.event(Exited).last_lines == "last words"


def test_one_that_was_never_started_is_started(next_master):
    second = next_master()
    second.launcher.adopt(A)
    second.event(Started)
    assert second.launcher.running() == {A}


def test_a_stranger_with_the_same_number_is_left_alone(launch, next_master):
    first = launch({A: FOREVER})
    pid = first.event(Started).pid
    record = first.folder.process_of("worker", 0, 1)
    write_json(record, {"pid": pid, "started": "1"})
    second = next_master()
    second.launcher.adopt(A)
    second.event(Exited)
    assert first.launcher.running() == {A}


def test_the_record_of_a_start_cut_short_leads_to_the_process(tmp_path):
    """The master died between starting a process and writing which one it is."""
    folder = JobFolder(tmp_path)

    def command(start):
        arguments = ["--config", str(folder.config), "--index", "0", "--incarnation", "1"]
        return ["-c", FOREVER, start.process.role, *arguments, "--master", "m:1"]

    events = queue.SimpleQueue()
    first = ProcessLauncher(events.put, folder, command)
    server = Start(ServerId(0), 1)  # with the same numbers, and cut short, too
    for start in (server, A):
        first.start(start)
        pid = events.get(timeout=PATIENCE).pid
        write_json(folder.process_of(start.process.role, 0, 1), {"pid": 0, "started": ""})
    second = ProcessLauncher(events.put, folder, command)
    try:
        second.adopt(A)
        assert events.get(timeout=PATIENCE).pid == pid
    finally:
        first.end([A, server], 0.0)
    assert second.wait_gone([A], PATIENCE)


@pytest.fixture
def no_threads():
    """As under a limit of processes: the system refuses every further thread."""
    before = threading.stack_size(1 << 47)
    yield
    threading.stack_size(before)


def test_a_process_that_no_thread_can_watch_is_not_started_and_told(tmp_path, no_threads):
    launched = Launched(tmp_path, {A: FOREVER})
    with pytest.raises(OSError, match=r"worker-0: cannot start a thread.*ulimit"):
        launched.launcher.start(A)
    assert not launched.launcher.running()
    assert launched.events.empty()
    assert not list(launched.folder.logs.glob("*.log"))


def test_a_pool_whose_threads_cannot_be_had_is_an_error(no_threads):
    with pytest.raises(OSError, match="cannot start a thread"):
        started_pool(3, "test")
