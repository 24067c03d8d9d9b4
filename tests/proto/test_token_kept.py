"""Nobody who does not know a job's token is told it, by either plane, in an answer or a log."""

import io
import logging
import socket
import time

import grpc
import pytest

from shoal.proto import methods, permissions
from shoal.proto import shoal_pb2 as pb
from shoal.proto.channels import serving
from shoal.proto.plane import message, server
from shoal.proto.plane.hello import own_protocol
from shoal.proto.plane.link import BrokenError, Link
from shoal.proto.seldom import Seldom
from shoal.proto.wire.transport import ARRAYS_PORT, PEER_METADATA, peer_name
from shoal.security.authority import Authority

TOKEN = "5ecre7-t0ken-of-the-job"
FORGED = "x\n2026-11-28 CRITICAL forged\r" + "y" * 32_000
PATIENCE = 20.0


@pytest.fixture
def said(monkeypatch):
    """All that the process logs, whole."""
    for module in (permissions, server):
        monkeypatch.setattr(module, "REFUSALS", Seldom(0.0))
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    root = logging.getLogger("shoal")
    monkeypatch.setattr(root, "level", logging.DEBUG)
    root.addHandler(handler)
    yield stream
    root.removeHandler(handler)


def called(address, metadata):
    """What gRPC answers to a call of a stranger."""
    with grpc.insecure_channel(address) as channel:
        call = channel.unary_unary(methods.STATUS.path)
        with pytest.raises(grpc.RpcError) as error:
            call(b"", timeout=PATIENCE, metadata=metadata)
        return f"{error.value.details()} {error.value.trailing_metadata()}"


def greeted(port, first):
    """What the data plane answers to the first message of a stranger."""
    data = first.SerializeToString() if isinstance(first, pb.Hello) else first
    parts = [message.prefix(message.HELLO, len(data)), data]
    with socket.create_connection(("127.0.0.1", port + ARRAYS_PORT), PATIENCE) as made:
        link = Link(made)
        try:
            link.send(parts, message.PREFIX_BYTES + len(data), PATIENCE)
            _, size = link.next_prefix(time.monotonic() + PATIENCE)
            return repr(bytes(link.read(size, time.monotonic() + PATIENCE)))
        except (BrokenError, OSError) as error:
            return str(error)
        finally:
            link.close()


@pytest.mark.parametrize("encrypted", [False, True])
def test_no_answer_and_no_line_of_a_log_has_the_token(said, encrypted):
    handlers = {methods.STATUS: lambda _: pb.ServerStatus(), methods.PUSH: lambda _: b""}
    name = peer_name(TOKEN, "ps", 0)
    identity, health = None, ""
    if encrypted:
        with socket.create_server(("127.0.0.1", 0)) as free:
            health = f"127.0.0.1:{free.getsockname()[1]}"
        identity = Authority.made("job-1").issue("ps", 0)
    started, port = serving.serve(handlers, "127.0.0.1:0", 2, name, identity, health)
    told = []
    try:
        peers = ("", "/", "ps-0", "/ps-0", "wrong/ps-0", f"{TOKEN[:-1]}/ps-0", "a" * 4000)
        for peer in peers:
            told.append(called(health or f"127.0.0.1:{port}", [(PEER_METADATA, peer)]))
        told.append(called(health or f"127.0.0.1:{port}", []))
        hellos = [
            pb.Hello(protocol=pb.Protocol(number=9, version=FORGED), meant="ps-0", caller=FORGED),
            pb.Hello(protocol=own_protocol(), meant=FORGED, caller="worker-0"),
            pb.Hello(protocol=own_protocol(), meant="", caller="worker-0"),
            pb.Hello(protocol=own_protocol(), meant="ps-0", caller=FORGED, nonce=b"n" * 32),
            b"\xff" * 40,
        ]
        if not encrypted:  # else no hello is read without a certificate
            told += [greeted(port, each) for each in hellos]
    finally:
        started.stop(None).wait()
    everything = "\n".join(told) + said.getvalue()
    assert "this is ps-0" in everything
    assert TOKEN not in everything
    # Nor does a stranger write lines of its own.
    lines = said.getvalue().splitlines()
    assert not any(line.startswith("2026-11-28 CRITICAL") for line in lines)
    assert all(len(line) < 1000 for line in lines)


def test_callers_that_are_refused_do_not_fill_a_log():
    seldom = Seldom(3600.0)
    assert [seldom.due() for _ in range(200)] == [True, *[False] * 199]
