"""Real handshakes that fail, and what the caller is told."""

import dataclasses
import datetime as dt

import pytest

from shoal.proto import methods, serving
from shoal.proto.errors import PeerUnavailableError
from shoal.proto.handshakes import explained
from shoal.proto.transport import peer_name
from shoal.security.authority import Authority

EXPIRED = dt.timedelta(hours=-1)
NAME = peer_name("token", "ps")
AUTHORITY, OTHER = Authority.made("j1"), Authority.made("j1")


@pytest.fixture
def told(connect):
    """What a caller is told by a server; both by their identities."""
    servers = []

    def made(server, caller):
        started, port = serving.serve(
            {methods.PULL: lambda frame: frame}, "127.0.0.1:0", 1, NAME, server
        )
        servers.append(started)
        connection = connect(f"127.0.0.1:{port}", peer=NAME, identity=caller, patience=0.0)
        with pytest.raises(PeerUnavailableError) as error:
            connection.call(methods.PULL, b"")
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
