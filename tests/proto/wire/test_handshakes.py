"""Real handshakes that fail, and what the caller is told."""

import dataclasses
import datetime as dt
import select
import socket
import time

import pytest

from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.channels import serving
from shoal.proto.errors import PeerUnavailableError
from shoal.proto.plane import hello
from shoal.proto.plane.link import BrokenError
from shoal.proto.wire.handshakes import explained
from shoal.proto.wire.transport import ARRAYS_PORT, peer_name
from shoal.security.authority import Authority
from tests.tls_ways import both_tls

pytestmark = both_tls(4)

EXPIRED = dt.timedelta(hours=-1)
NAME = peer_name("token", "ps")
PATIENCE = 60.0
AUTHORITY, OTHER = Authority.made("j1"), Authority.made("j1")


@pytest.fixture(params=[methods.PULL, methods.STATUS], ids=["arrays", "calls"])
def told(connect, request):
    """What a caller is told by a server; both by their identities."""
    method = request.param
    servers = []

    def made(server, caller):
        handlers = {methods.PULL: lambda frame: frame, methods.STATUS: lambda request: request}
        started, port = serving.serve(handlers, "127.0.0.1:0", 1, NAME, server)
        servers.append(started)
        connection = connect(f"127.0.0.1:{port}", peer=NAME, identity=caller, patience=0.0)
        with pytest.raises(PeerUnavailableError) as error:
            connection.call(method, b"" if method.kind else pb.ServerStatusRequest())
        return error.value.reason

    yield made
    for each in servers:
        each.stop(None).wait()


def test_the_others_certificate_has_expired(told):
    reason = told(AUTHORITY.issue("ps", valid=EXPIRED), AUTHORITY.issue("worker"))
    assert reason == ("its certificate has expired: `shoal train --resume` makes new certificates")


def test_the_own_certificate_has_expired(told):
    reason = told(AUTHORITY.issue("ps"), AUTHORITY.issue("worker", 2, valid=EXPIRED))
    assert reason.startswith("the certificate of worker-2 of job j1 has expired (")
    assert reason.endswith("UTC): `shoal train --resume` makes new certificates")


def test_a_caller_that_is_refused_hears_why_however_late_it_asks(monkeypatch):
    """1. the server refuses its certificate, and says so; 2. meanwhile it goes on sending, as its
    own part of the handshake has ended; 3. it reads the refusal, not that the connection broke."""
    monkeypatch.setattr(hello, "ALERT_SECONDS", PATIENCE)
    handlers = {methods.PULL: lambda frame: frame}
    server, port = serving.serve(handlers, "127.0.0.1:0", 1, NAME, AUTHORITY.issue("ps"))
    caller = AUTHORITY.issue("worker", valid=EXPIRED)
    address = ("127.0.0.1", port + ARRAYS_PORT)
    try:
        link = hello.encrypted(socket.create_connection(address, PATIENCE), caller, NAME)
        assert select.select([link.socket], [], [], PATIENCE)[0]  # it is refused
        for _ in range(20):
            link.send([bytes(100)], 100, PATIENCE)
            time.sleep(0.01)
        with pytest.raises(BrokenError, match="alert"):
            link.read(1, time.monotonic() + PATIENCE)
        link.close()
    finally:
        server.stop(None).wait()


def test_the_other_is_of_another_job(told):
    reason = told(OTHER.issue("ps"), AUTHORITY.issue("worker"))
    assert reason.startswith("its certificate is of another job: ")


def test_the_other_is_another_process(told):
    for other in (AUTHORITY.issue("ps", 1), AUTHORITY.issue("worker")):
        reason = told(other, AUTHORITY.issue("worker"))
        assert reason.startswith("by its certificate it is another process of the job")


def test_the_other_speaks_plain_text(told):
    assert told(None, AUTHORITY.issue("worker")).startswith("it answers without encryption: ")


def test_the_key_is_of_another_certificate(told):
    caller = dataclasses.replace(AUTHORITY.issue("worker"), key=OTHER.issue("worker").key)
    assert told(AUTHORITY.issue("ps"), caller) == "this process's key is not its certificate's"


def test_what_is_no_handshake_is_left_as_it_is():
    worker = AUTHORITY.issue("worker")
    for details in ("Connection refused", "Socket closed", ""):
        assert explained(details, worker) == explained(details, None) == details
