"""What `shoal chaos` has a process of the job do to itself: hang, answer pings only."""

import math
import os
import threading
import time

import pytest

from shoal.proto import faults, methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.channels import rpc, serving
from shoal.proto.errors import PeerUnavailableError
from shoal.tools.chaos.half_sent import HalfSent

PATIENCE = 60.0


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """As in the process ps-0 of a job with faults."""
    monkeypatch.setattr(faults, "_FOLDER", str(tmp_path))
    monkeypatch.setattr(faults, "_PROCESS", "ps-0")
    return tmp_path


@pytest.fixture
def served():
    """Address of a server, and the pushes that it has handled."""
    pushed = []

    def push(frame):
        pushed.append(bytes(frame))
        return bytes(frame)

    handlers = {methods.PUSH: push, methods.STATUS: lambda _: pb.ServerStatus(version=7)}
    server, port = serving.serve(handlers, "127.0.0.1:0", 8)
    yield f"127.0.0.1:{port}", pushed
    server.stop(None).wait()


def test_a_process_hangs_at_a_point_once_and_for_so_long(folder):
    path = faults.arm(folder, "before-checkpoint-read", "ps-0", hang=0.3)
    faults.point("shard-begun")
    assert path.exists()
    before = time.monotonic()
    faults.point("before-checkpoint-read")
    assert time.monotonic() - before >= 0.3
    assert not path.exists()
    faults.point("before-checkpoint-read")


def test_a_process_that_is_to_hang_for_ever_has_removed_the_file(folder, monkeypatch):
    path = faults.arm(folder, "computing", "ps-0", hang=math.inf)

    class KilledError(Exception):
        pass

    def sleep(seconds):
        assert seconds > 60.0
        assert not path.exists()  # its successor goes on
        raise KilledError

    monkeypatch.setattr(faults.time, "sleep", sleep)
    with pytest.raises(KilledError):
        faults.point("computing")
    faults.point("computing")


def test_only_the_process_that_is_meant_finds_no_room(folder):
    path = faults.no_room_file(folder, "ps-1")
    path.touch()
    assert faults.has_room("ps-0")
    assert not faults.has_room("ps-1")
    path.unlink()
    assert faults.has_room("ps-1")


def test_a_process_that_answers_pings_only_handles_no_call_and_loses_none(folder, served):
    address, pushed = served
    path = faults.calls_file(folder, "ps-0")
    connection = rpc.Connection(address, deadline=PATIENCE, patience=0.0)
    path.write_text("1")  # of an earlier process
    assert connection.call(methods.PUSH, b"one") == b"one"
    path.write_text(str(os.getpid()))
    with pytest.raises(PeerUnavailableError, match="Deadline"):
        connection.call(methods.STATUS, pb.ServerStatusRequest(), deadline=0.5)
    late = threading.Thread(target=connection.call, args=(methods.PUSH, b"two"))
    late.start()
    late.join(0.5)
    assert late.is_alive()
    assert pushed == [b"one"]
    path.unlink()
    late.join()
    assert pushed == [b"one", b"two"]
    connection.close()


def test_half_sent_requests_leave_the_state_to_be_asked_for_and_end_with_their_sender(served):
    address, pushed = served
    half = HalfSent(address, "", 8)
    connection = rpc.Connection(address, deadline=PATIENCE, patience=0.0)
    status = connection.call(methods.STATUS, pb.ServerStatusRequest())
    assert status.version == 7
    half.close()
    assert connection.call(methods.PUSH, b"one") == b"one"
    assert pushed == [b"one"]
    connection.close()
