"""Real connections through a relay that is cut."""

import socket
import threading

import pytest

from shoal.proto import faults
from shoal.tools.chaos.relay import Relay


@pytest.fixture
def echo():
    """host:port of a server that sends back what it gets."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve():
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            while data := connection.recv(1000):
                connection.sendall(data)
            connection.close()

    thread = threading.Thread(target=serve)
    thread.start()
    yield f"127.0.0.1:{listener.getsockname()[1]}"
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


@pytest.fixture
def routed(tmp_path, monkeypatch):
    """As in the process worker-0 of a job with faults."""
    monkeypatch.setattr(faults, "_FOLDER", str(tmp_path))
    monkeypatch.setattr(faults, "_PROCESS", "worker-0")
    return tmp_path


def connect(address):
    made = socket.socket(socket.AF_UNIX)
    made.connect(address.removeprefix("unix:"))
    return made


def test_what_is_sent_through_a_cut_arrives_when_it_is_over(echo, routed):
    relay = Relay(routed, "worker-0", "ps-1")
    assert faults.route(echo, "token/ps-0") == echo
    with connect(faults.route(echo, "token/ps-1")) as connection:
        connection.sendall(b"one")
        assert connection.recv(1000) == b"one"
        relay.cut()
        connection.sendall(b"two")
        connection.settimeout(0.2)
        with pytest.raises(TimeoutError):
            connection.recv(1000)
        relay.mend()
        connection.settimeout(None)
        assert connection.recv(1000) == b"two"
    relay.close()


def test_a_connection_made_during_a_cut_gets_through_afterwards(echo, routed):
    relay = Relay(routed, "worker-0", "ps-1")
    relay.cut()
    with connect(faults.route(echo, "token/ps-1")) as connection:
        connection.sendall(b"one")
        relay.mend()
        assert connection.recv(1000) == b"one"
    relay.close()


def test_who_is_not_there_refuses(echo, routed):
    relay = Relay(routed, "worker-0", "ps-1")
    with socket.socket() as taken:  # and does not listen, so nobody else can at this port
        taken.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{taken.getsockname()[1]}"
        with connect(faults.route(nobody, "token/ps-1")) as connection:
            assert connection.recv(1000) == b""
    # The other one is back, elsewhere.
    with connect(faults.route(echo, "token/ps-1")) as connection:
        connection.sendall(b"one")
        assert connection.recv(1000) == b"one"
        relay.close()
        assert connection.recv(1000) == b""
