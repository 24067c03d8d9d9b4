"""Who is let in, and may call what: over real sockets, with real certificates."""

import contextlib
import datetime as dt
import itertools
import logging
import re
import socket
import ssl
import subprocess
import sys
import threading
import time

import grpc
import numpy as np
import pytest

from shoal.proto import methods, permissions
from shoal.proto import shoal_pb2 as pb
from shoal.proto.channels import rpc, serving
from shoal.proto.errors import PeerUnavailableError, WireError
from shoal.proto.identity import CLIENT, MASTER, ROLES, SERVER, WORKER, Caller
from shoal.proto.methods import Method
from shoal.proto.permissions import CALLERS, SPEAKERS, permitted
from shoal.proto.plane import hello
from shoal.proto.plane.client import Pool
from shoal.proto.plane.link import Link
from shoal.proto.plane.message import HELLO, PREFIX_BYTES, PROOF, REFUSAL, prefix
from shoal.proto.protocol import own_protocol
from shoal.proto.seldom import Seldom
from shoal.proto.wire import frames
from shoal.proto.wire.transport import ARRAYS_PORT, arrays_address, peer_name
from shoal.security.authority import Authority
from tests.tls_ways import both_tls

pytestmark = both_tls()

TOKEN = "token"
ALL = [each for each in vars(methods).values() if isinstance(each, Method)]
PATIENCE = 60.0


class Served:
    """Servers of all methods, one of each kind, that note the calls which came through."""

    def __init__(self, authority):
        self.came = []
        self.addresses, self._servers = {}, []
        for service, role in ((methods.SERVER, SERVER), (methods.MASTER, MASTER)):
            handlers = {each: self.handler(each) for each in ALL if each.service == service}
            server, port = serving.serve(
                handlers, "127.0.0.1:0", 4, peer_name(TOKEN, role), authority.issue(role)
            )
            self.addresses[role] = f"127.0.0.1:{port}"
            self._servers.append(server)

    def handler(self, method):
        answer = b"" if method.reply is bytes else method.reply()

        def handle(_request):
            self.came.append(method)
            return iter([answer]) if method.streaming else answer

        return handle

    def stop(self):
        for server in self._servers:
            server.stop(None).wait()


@pytest.fixture(scope="module")
def authority():
    return Authority.made("j1")


@pytest.fixture(scope="module")
def served(authority):
    made = Served(authority)
    yield made
    made.stop()


def place_of(message):
    """(the message, the field) where a request, or its label, names the process it speaks for."""
    fields = message.DESCRIPTOR.fields_by_name
    for name in ("worker", "server"):
        if name in fields and not fields[name].message_type:
            return message, name
    for name in ("caller", "identity", "base"):
        if name in fields:
            return place_of(getattr(message, name))
    return (message, "index") if "role" in fields else (message, "")


HEADERS = {methods.PULL: pb.PullRequest, methods.PUSH: pb.PushRequest}


def speech(method, speaker):
    """(request, label) of a call that speaks for a (role, index), if it names a process at all."""
    role, index = speaker
    label = None
    if method is methods.APPEND_LOG:
        label = pb.LogGroup(entries=[pb.LogEntry(server=index)])
    if method.request is bytes and method not in HEADERS:
        return b"bytes", label
    message = HEADERS.get(method, method.request)()
    inner, name = place_of(message)
    if name:
        setattr(inner, name, index)
    if method is methods.REPORT_FAILURE:
        message.role = role
    return (frames.encode(message, []) if method in HEADERS else message), label


@pytest.fixture
def call(served, connect):
    """Call a method as somebody."""

    def made(method, identity, patience=0.0, speaks_for=None):
        role = SERVER if method.service == methods.SERVER else MASTER
        peer = peer_name(TOKEN, role)
        connection = connect(
            served.addresses[role], peer=peer, identity=identity, patience=patience
        )
        caller = identity.caller if identity else Caller("j1", WORKER, 0)
        request, label = speech(method, speaks_for or (caller.role, caller.index))
        if method.streaming:
            return list(connection.stream(method, request))
        future = connection.start(method, request, label=label)
        return connection.result(method, future)

    return made


@pytest.fixture(autouse=True)
def every_line(monkeypatch):
    """Each refusal is logged, however many there are in a second."""
    monkeypatch.setattr(permissions, "REFUSALS", Seldom(0.0))


def test_the_table_has_every_method():
    assert set(CALLERS) == set(ALL)
    assert all(roles and roles <= set(ROLES) for roles in CALLERS.values())


@pytest.mark.parametrize("role", ROLES)
def test_a_role_is_let_in_to_its_calls_and_refused_all_others(
    role, served, call, authority, caplog
):
    identity = authority.issue(role, 7)
    for method in ALL:
        served.came.clear()
        caplog.clear()
        if permitted(method, role):
            call(method, identity)
            assert served.came == [method]
            continue
        with pytest.raises(WireError) as error:
            call(method, identity)
        assert error.value.kind == pb.NOT_PERMITTED
        assert f"{role}-7 of job j1 may not call {method.name}" in error.value.message
        assert served.came == []
        [line] = [each for each in caplog.records if each.levelno == logging.WARNING]
        assert f"refused {method.name} of {role}-7 of job j1" in line.getMessage()


def test_the_table_of_speakers_has_every_request_that_names_its_sender():
    named = {methods.APPEND_LOG}  # in its label
    for method in ALL:
        if CALLERS[method] & {WORKER, SERVER} and (
            method in HEADERS or (method.request is not bytes and place_of(method.request())[1])
        ):
            named.add(method)
    assert set(SPEAKERS) == named
    assert len(named) > 15


@pytest.mark.parametrize("role", [WORKER, SERVER])
def test_a_process_speaks_for_no_other(role, served, call, authority, caplog):
    for method in SPEAKERS:
        if not permitted(method, role):
            continue
        served.came.clear()
        caplog.clear()
        with pytest.raises(WireError) as error:
            call(method, authority.issue(role, 3), speaks_for=(role, 5))
        assert error.value.kind == pb.NOT_PERMITTED, method.name
        assert f"{role}-3 of job j1 may not speak for {role}-5" in error.value.message
        assert served.came == []
        assert f"it speaks for {role}-5" in caplog.text
        call(method, authority.issue(role, 5), speaks_for=(role, 5))
        assert served.came == [method]


def test_a_worker_does_not_report_the_failure_of_a_server(call, authority):
    with pytest.raises(WireError, match="may not speak for ps-3"):
        call(methods.REPORT_FAILURE, authority.issue(WORKER, 3), speaks_for=(SERVER, 3))


def test_a_server_sends_no_entry_for_the_log_of_another(served, connect, authority):
    group = pb.LogGroup(entries=[pb.LogEntry(server=3), pb.LogEntry(server=5)])
    name = peer_name(TOKEN, SERVER)
    connection = connect(served.addresses[SERVER], peer=name, identity=authority.issue(SERVER, 3))
    with pytest.raises(WireError, match="may not speak for ps-5"):
        connection.result(
            methods.APPEND_LOG, connection.start(methods.APPEND_LOG, b"", label=group)
        )


def test_a_refusal_is_permission_denied_to_tools_that_know_only_grpc(served, authority):
    with authority.issue(WORKER).channel(served.addresses[SERVER], "ps-0", []) as channel:
        stop = channel.unary_unary(methods.SHUTDOWN.path)
        with pytest.raises(grpc.RpcError) as error:
            stop(b"", metadata=(("shoal-peer", f"{TOKEN}/ps-0"),), timeout=PATIENCE)
    assert error.value.code() == grpc.StatusCode.PERMISSION_DENIED


def test_a_request_with_arrays_is_refused_before_a_byte_of_it_is_read(served, authority):
    """The caller never sends it."""
    served.came.clear()
    pool = Pool(served.addresses[SERVER], peer_name(TOKEN, SERVER), authority.issue(CLIENT))
    try:
        link = pool.connected()
        link.send([prefix(methods.PUSH.kind, 1 << 20)], PREFIX_BYTES, PATIENCE)
        end = time.monotonic() + PATIENCE
        kind, size = link.next_prefix(end)
        assert kind == REFUSAL
        detail = pb.ErrorDetail.FromString(bytes(link.read(size, end)))
        assert detail.kind == pb.NOT_PERMITTED
        link.close()
    finally:
        pool.close()
    assert served.came == []


def test_without_a_certificate_nobody_is_let_in(served, call, authority):
    served.came.clear()
    with pytest.raises(PeerUnavailableError):
        call(methods.PULL, None)  # plain text
    credentials = grpc.ssl_channel_credentials(authority.issue(WORKER).authority)
    named = [("grpc.ssl_target_name_override", "ps-0.j1.shoal")]
    with grpc.secure_channel(served.addresses[SERVER], credentials, named) as channel:
        pull = channel.unary_unary(methods.STATUS.path)
        with pytest.raises(grpc.RpcError) as error:
            pull(b"", timeout=PATIENCE)
    assert error.value.code() == grpc.StatusCode.UNAVAILABLE
    assert served.came == []


def test_another_jobs_certificate_is_refused(served, call, authority):
    served.came.clear()
    other = Authority.made("j1").issue(WORKER)  # which even says that it is this job's
    with pytest.raises(PeerUnavailableError):
        call(methods.PULL, other)
    # Also of a caller that trusts this job's authority.
    credentials = grpc.ssl_channel_credentials(
        authority.issue(WORKER).authority, other.key, other.certificate
    )
    named = [("grpc.ssl_target_name_override", "ps-0.j1.shoal")]
    with (
        grpc.secure_channel(served.addresses[SERVER], credentials, named) as channel,
        pytest.raises(grpc.RpcError) as error,
    ):
        channel.unary_unary(methods.STATUS.path)(b"", timeout=PATIENCE)
    assert error.value.code() == grpc.StatusCode.UNAVAILABLE
    assert served.came == []


def test_the_same_authoritys_certificate_for_another_job_is_refused(served, call, authority):
    other = Authority.from_key("j2", authority.key_pem)
    other._name = authority._name
    stranger = other.issue(WORKER)
    with pytest.raises((PeerUnavailableError, WireError)):
        call(methods.PULL, stranger)


def test_an_expired_certificate_is_refused(served, call, authority):
    served.came.clear()
    expired = authority.issue(WORKER, valid=dt.timedelta(hours=-1))
    with pytest.raises(PeerUnavailableError):
        call(methods.PULL, expired)
    assert served.came == []


@pytest.mark.parametrize("role", [WORKER, CLIENT, MASTER])
def test_who_serves_has_to_be_the_process_that_is_meant(role, connect, authority):
    """A worker's certificate, or that of another server, is no server's 0."""
    identity = authority.issue(role, 1)
    server, port = serving.serve(
        {methods.PULL: lambda frame: frame}, "127.0.0.1:0", 1, peer_name(TOKEN, "ps"), identity
    )
    try:
        connection = connect(
            f"127.0.0.1:{port}",
            peer=peer_name(TOKEN, "ps"),
            identity=authority.issue(WORKER),
            patience=0.0,
        )
        with pytest.raises(PeerUnavailableError):
            connection.call(methods.PULL, b"")
    finally:
        server.stop(None).wait()


def test_an_identity_calls_nobody_in_particular_never(authority):
    with pytest.raises(ValueError, match="is not said"):
        rpc.Connection("127.0.0.1:1", identity=authority.issue(WORKER))


def free_address():
    """host:port of a port that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"127.0.0.1:{free.getsockname()[1]}"


def serve_with_probes(handlers, name, identity):
    """(the server, where it answers probes); that port cannot be 0, as nobody would tell it."""
    for _ in range(100):
        health = free_address()
        with contextlib.suppress(OSError):  # taken by somebody else meanwhile
            return serving.serve(handlers, "127.0.0.1:0", 1, name, identity, health)[0], health
    raise AssertionError("no port stays free")


def test_probes_are_answered_without_a_certificate_and_get_nothing_else(authority, connect):
    came = []
    name = peer_name(TOKEN, "ps")
    server, health = serve_with_probes({methods.STATUS: came.append}, name, authority.issue(SERVER))
    try:
        with grpc.insecure_channel(health) as channel:
            check = channel.unary_unary("/grpc.health.v1.Health/Check")
            assert check(b"", timeout=PATIENCE) == b"\x08\x01"
        with pytest.raises(WireError) as error:
            connect(health, peer=name).call(methods.STATUS, pb.ServerStatusRequest())
        assert error.value.kind == pb.NOT_PERMITTED
        assert "without a certificate" in error.value.message
        assert came == []
    finally:
        server.stop(None).wait()


def test_bytes_that_were_recorded_are_worth_nothing(served, call, authority):
    """Of a call that was let in: sent again, they end the handshake and reach no handler."""
    recorded = []
    target = arrays_address(served.addresses[SERVER]).rpartition(":")
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def relay():
            near, _ = listener.accept()
            far = socket.create_connection((target[0], int(target[2])))

            def give_on(source, sink, seen):
                with contextlib.suppress(OSError):
                    while data := source.recv(1 << 16):
                        seen.append(data)
                        sink.sendall(data)

            back = threading.Thread(target=give_on, args=(far, near, []), daemon=True)
            back.start()
            give_on(near, far, recorded)
            with contextlib.suppress(OSError):
                far.shutdown(socket.SHUT_RDWR)
            back.join()
            near.close()
            far.close()

        thread = threading.Thread(target=relay)
        thread.start()
        served.came.clear()
        place = f"127.0.0.1:{listener.getsockname()[1] - ARRAYS_PORT}"
        pool = Pool(place, peer_name(TOKEN, SERVER), authority.issue(WORKER))
        gradient = frames.encode(pb.PushRequest(), [np.frombuffer(b"gradient", np.float32)])
        assert pool.begin(methods.PUSH, gradient, PATIENCE).result() == b""
        pool.close()
        thread.join()
    assert served.came == [methods.PUSH]
    assert b"gradient" not in b"".join(recorded)
    with socket.create_connection((target[0], int(target[2])), timeout=PATIENCE) as again:
        again.sendall(b"".join(recorded))
        with contextlib.suppress(ConnectionResetError):
            while again.recv(1 << 16):
                pass  # until the server closes the connection
    assert served.came == [methods.PUSH]
    call(methods.PUSH, authority.issue(WORKER))
    assert served.came == [methods.PUSH] * 2


def test_an_insecure_hello_that_was_recorded_is_worth_nothing():
    """Both ends draw a nonce for each: what was said to another proves nothing."""
    came = []

    def push(frame):
        came.append(bytes(frame))
        return b""

    name = peer_name(TOKEN, SERVER)
    server, port = serving.serve({methods.PUSH: push}, "127.0.0.1:0", 1, name)
    recorded = []
    send = Link.send

    def noting(self, buffers, size, seconds):
        recorded.extend(map(bytes, buffers))
        send(self, buffers, size, seconds)

    pool = Pool(f"127.0.0.1:{port}", name, None)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Link, "send", noting)
            pool.begin(methods.PUSH, b"gradient", PATIENCE).result()
        assert TOKEN.encode() not in b"".join(recorded)
        # Those of both ends are in it; the caller's are the first, third and last message.
        said = b"".join(recorded)
        starts = [each.start() for each in re.finditer(b"SHD1", said)] + [len(said)]
        messages = [said[a:b] for a, b in itertools.pairwise(starts)]
        calls = [each for each in messages if each[4] in (HELLO, PROOF, methods.PUSH.kind)]
        assert len(calls) == 3
        with socket.create_connection(("127.0.0.1", port + ARRAYS_PORT), PATIENCE) as again:
            again.sendall(b"".join(calls))
            answer = b""
            with contextlib.suppress(ConnectionResetError):
                while data := again.recv(1 << 16):
                    answer += data
        assert bytes([REFUSAL]) in answer
        assert came == [b"gradient"]
    finally:
        pool.close()
        server.stop(None).wait()


def hello_to(name, meant, protocol=None):
    """What comes of a connection of a process that means `meant` to one that is `name`."""
    handlers = {methods.PUSH: lambda frame: b""}
    server, port = serving.serve(handlers, "127.0.0.1:0", 1, name)
    pool = Pool(f"127.0.0.1:{port}", meant, None)
    try:
        with pytest.MonkeyPatch.context() as patch:
            if protocol is not None:
                patch.setattr(hello, "own_protocol", lambda: protocol)
            return bytes(pool.begin(methods.PUSH, b"", PATIENCE).result())
    finally:
        pool.close()
        server.stop(None).wait()


@pytest.mark.parametrize(
    ("name", "meant", "protocol", "kind", "words"),
    [
        ("t/ps-0", "t/ps-1", None, pb.WRONG_PEER, "this is ps-0, the call was for ps-1"),
        ("t/ps-0", "", None, pb.WRONG_PEER, "without a job's token"),
        ("t/ps-0", "u/ps-0", None, pb.WRONG_PEER, "another job's process is there"),
        ("", "u/ps-0", None, pb.WRONG_PEER, "another job's process is there"),
        ("t/ps-0", "t/ps-0", pb.Protocol(number=1), pb.OTHER_PROTOCOL, "use one version"),
        ("t/ps-0", "t/ps-0", pb.Protocol(), pb.OTHER_PROTOCOL, "without a protocol number"),
    ],
)
def test_a_hello_of_another_is_refused_with_a_typed_error(name, meant, protocol, kind, words):
    with pytest.raises(WireError, match=words) as error:
        hello_to(name, meant, protocol)
    assert error.value.kind == kind


def test_a_hello_of_the_job_is_answered():
    assert hello_to("t/ps-0", "t/ps-0") == b""
    assert hello_to("", "") == b""


def test_a_caller_that_has_not_the_token_is_refused():
    """It believes whatever it is told."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hello.hmac, "compare_digest", lambda one, other: True)
        assert hello_to("t/ps-0", "u/ps-0") == b""  # so the comparison is what keeps it out
    server, port = serving.serve({methods.PUSH: lambda _: b""}, "127.0.0.1:0", 1, "t/ps-0")
    try:
        with socket.create_connection(("127.0.0.1", port + ARRAYS_PORT), PATIENCE) as plain:
            link = Link(plain)
            end = time.monotonic() + PATIENCE
            said = pb.Hello(protocol=own_protocol(), meant="ps-0", nonce=b"n").SerializeToString()
            link.send([prefix(HELLO, len(said)), said], PREFIX_BYTES + len(said), PATIENCE)
            _, size = link.next_prefix(end)
            link.read(size, end)
            proof = pb.HelloProof(proof=bytes(32)).SerializeToString()
            link.send([prefix(PROOF, len(proof)), proof], PREFIX_BYTES + len(proof), PATIENCE)
            kind, size = link.next_prefix(end)
            detail = pb.ErrorDetail.FromString(bytes(link.read(size, end)))
            link.close()
        assert (kind, detail.kind) == (REFUSAL, pb.WRONG_PEER)
    finally:
        server.stop(None).wait()


TLS13_ONLY = """
import sys, threading
from pathlib import Path
import shoal.ROLE
from shoal.proto.identity import Caller, Identity
from shoal.proto import methods
from shoal.proto.channels import serving
identity = Identity.load(Path(sys.argv[1]), Caller("j1", "ps", 0))
server, port = serving.serve({methods.PUSH: bytes}, "127.0.0.1:0", 1, "", identity)
print(port, flush=True)
threading.Event().wait()
"""


@pytest.mark.parametrize("role", [SERVER, MASTER])
def test_a_process_that_serves_speaks_tls_13_only(role, authority, tmp_path):
    identity = authority.issue(SERVER)
    for name, pem in (
        ("ca.crt", identity.authority),
        ("tls.crt", identity.certificate),
        ("tls.key", identity.key),
    ):
        (tmp_path / name).write_bytes(pem)
    process = subprocess.Popen(
        [sys.executable, "-c", TLS13_ONLY.replace("ROLE", role), str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        port = int(process.stdout.readline())
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(cadata=identity.authority.decode())
        context.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
        context.set_alpn_protocols(["h2"])

        def handshake(port):
            with (
                socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as plain,
                context.wrap_socket(plain, server_hostname="ps-0.j1.shoal") as encrypted,
            ):
                return encrypted.version()

        for each in (port, port + ARRAYS_PORT):
            context.maximum_version = ssl.TLSVersion.MAXIMUM_SUPPORTED
            assert handshake(each) == "TLSv1.3"
            context.maximum_version = ssl.TLSVersion.TLSv1_2
            with pytest.raises((ssl.SSLError, ConnectionError)):
                handshake(each)
    finally:
        process.kill()
        process.communicate()


def test_every_refusal_says_who_may(served, call, authority):
    with pytest.raises(WireError) as error:
        call(methods.SHUTDOWN, authority.issue(WORKER, 3))
    assert re.search(r"only a master of the same job may$", error.value.message)
