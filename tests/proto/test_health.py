"""What a probe of Kubernetes asks a server, and hears."""

import threading

import grpc

from shoal.proto.channels import serving
from shoal.proto.wire import transport
from tests.waiting import until


def test_a_server_says_that_it_serves_without_a_token():
    server, port = serving.serve({}, "127.0.0.1:0", 1, transport.peer_name("token", "ps", 1))
    try:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            check = channel.unary_unary("/grpc.health.v1.Health/Check")
            assert check(b"", timeout=10) == b"\x08\x01"
    finally:
        server.stop(None).wait()


def test_a_server_that_has_stopped_leaves_no_threads():
    before = set(threading.enumerate())
    server, _ = serving.serve({}, "127.0.0.1:0", 3, "token/ps-1")
    started = set(threading.enumerate()) - before
    assert sum(each.name.startswith("rpc") for each in started) > 3
    server.stop(None).wait()
    until("the end of its threads", lambda: not any(each.is_alive() for each in started))
