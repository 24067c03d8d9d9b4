"""A network that is cut between a caller and a server, and one whose other end has vanished."""

import socket
import struct
import threading
import time

import pytest

from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.channels import serving
from shoal.proto.channels.circuit import Circuit
from shoal.proto.errors import PeerUnavailableError, ServerAwayError
from shoal.proto.faults import target_file
from shoal.proto.wire import transport
from shoal.tools.chaos.relay import Relay

PATIENCE = 60.0
READY = pb.ReadyRequest()


@pytest.fixture
def server():
    """A server that counts its calls; (address, calls)."""
    calls = []

    def pull(frame):
        calls.append(bytes(frame))
        return b"answer"

    handlers = {methods.PULL: pull, methods.READY: lambda request: pb.ReadyReply()}
    grpc_server, port = serving.serve(handlers, "127.0.0.1:0", 16)
    yield f"127.0.0.1:{port}", calls
    grpc_server.stop(None).wait()


@pytest.fixture
def relay(server, tmp_path):
    """Make a relay to the server; (relay, its address)."""
    made = []

    def make(name="ps-0"):
        one = Relay(tmp_path, "worker-0", name)
        made.append(one)
        file = tmp_path / f"worker-0.{name}"
        target_file(file).write_text(server[0])
        return one, file.read_text()

    yield make
    for one in made:
        one.close()


def test_a_cut_and_its_return_cost_time_only(server, relay):
    _, calls = server
    through, address = relay()
    circuit = Circuit("parameter server 0", lambda: address, address, deadline=1.0)
    answers = []
    try:
        assert circuit.call(methods.PULL, b"before") == b"answer"
        through.cut()
        # The first attempt ends at its deadline, not with an error of the connection.
        away = threading.Event()
        circuit_failed = circuit._failed

        def failed(connection, error, method):
            assert away.is_set() or "no answer for 1 s" in str(error)
            away.set()
            circuit_failed(connection, error, method)

        circuit._failed = failed
        caller = threading.Thread(target=lambda: answers.append(circuit.call(methods.PULL, b"in")))
        caller.start()
        assert away.wait(PATIENCE)
        assert answers == []
        through.mend()
        caller.join(PATIENCE)
        assert answers == [b"answer"]
        assert circuit.call(methods.PULL, b"after") == b"answer"
    finally:
        circuit.close()
    # The same call may have come more than once: that is what identities are for.
    assert set(calls) == {b"before", b"in", b"after"}


def test_a_cut_that_lasts_is_an_error_that_names_server_and_flag(relay):
    through, address = relay()
    through.cut()
    circuit = Circuit(
        "parameter server 0",
        lambda: address,
        address,
        deadline=0.3,
        patience=1.0,
        flag="four times --timeout-seconds",
    )
    try:
        with pytest.raises(ServerAwayError, match=r"parameter server 0 .*four times --timeout-sec"):
            circuit.call(methods.PULL, b"")
    finally:
        circuit.close()


def test_a_server_whose_old_path_is_dead_is_found_at_another(server, relay):
    through, address = relay()
    now = [address]
    circuit = Circuit("parameter server 0", lambda: now[0], address, deadline=1.0)
    try:
        assert circuit.call(methods.PULL, b"old") == b"answer"
        through.cut()  # and never mended
        now[0] = server[0]
        assert circuit.call(methods.PULL, b"new") == b"answer"
    finally:
        circuit.close()


class BlackHole:
    """A peer that vanishes without a word: its port takes connections and answers nothing."""

    def __init__(self):
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._taken = []
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()

    def _accept(self):
        while True:
            try:
                self._taken.append(self._listener.accept()[0])
            except OSError:
                return

    def close(self):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()  # or it may take one more connection, which nobody would close
        for each in (self._listener, *self._taken):
            each.close()


def test_a_peer_that_never_answered_is_unavailable_at_the_deadline(connect):
    hole = BlackHole()
    try:
        with pytest.raises(PeerUnavailableError, match=hole.address):
            connect(hole.address, deadline=1.0, patience=0.0).call(methods.READY, READY)
        host, _, port = hole.address.rpartition(":")
        address = f"{host}:{int(port) - transport.ARRAYS_PORT}"
        with pytest.raises(PeerUnavailableError, match=f"Pull at {address}: no answer"):
            connect(address, deadline=1.0, patience=0.0).call(methods.PULL, b"")
    finally:
        hole.close()


def test_a_half_open_connection_is_found_by_pings_long_before_the_deadline(
    relay, connect, monkeypatch
):
    """The real times are 20 seconds to the ping, and 10 for its answer."""
    assert dict(transport.CHANNEL_OPTIONS)["grpc.keepalive_time_ms"] == 20_000
    real = {"grpc.keepalive_time_ms", "grpc.keepalive_timeout_ms", "grpc.http2.ping_timeout_ms"}
    options = [(name, 500 if name in real else value) for name, value in transport.CHANNEL_OPTIONS]
    assert len([name for name, _ in options if name in real]) == 3
    monkeypatch.setattr(transport, "CHANNEL_OPTIONS", options)
    through, address = relay()
    connection = connect(address, deadline=10 * PATIENCE, patience=0.0)
    assert connection.call(methods.READY, pb.ReadyRequest()) == pb.ReadyReply()
    through.cut()
    with pytest.raises(PeerUnavailableError, match="ping timeout"):
        connection.call(methods.READY, pb.ReadyRequest())


def test_pings_of_a_peer_without_a_call_are_not_taken_for_abuse(monkeypatch):
    """The real times are 20 seconds between a client's pings, and 5 that a server permits."""
    options = dict(transport.SERVER_OPTIONS)
    permitted = "grpc.http2.min_ping_interval_without_data_ms"
    assert options[permitted] < dict(transport.CHANNEL_OPTIONS)["grpc.keepalive_time_ms"]
    options[permitted] = 50
    monkeypatch.setattr(serving, "SERVER_OPTIONS", list(options.items()))
    grpc_server, port = serving.serve({}, "127.0.0.1:0", 1)
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as peer:
        stream = peer.makefile("rb")
        peer.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _http2_frame(4))
        for number in range(5):  # a server forgives two that come too soon
            peer.sendall(_http2_frame(6, struct.pack(">Q", number)))
            kind, payload = _http2_answer(stream)
            assert (kind, payload) == (6, struct.pack(">Q", number))
            time.sleep(2 * options[permitted] / 1000)
    grpc_server.stop(None).wait()


def _http2_frame(kind, payload=b""):
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, 0, 0) + payload


def _http2_answer(stream):
    """Kind and payload of the next PING that answers ours (6), or GOAWAY (7)."""
    while True:
        head = stream.read(9)
        length, kind, flags = int.from_bytes(head[:3]), head[3], head[4]
        payload = stream.read(length)
        if kind == 7 or (kind == 6 and flags & 1):
            return kind, payload
