"""A server that restores: a real process, and a test as the master.

Its port is open before anything is restored, so that probes and the master find somebody; what
it is asked for it does not have yet, and says so.
"""

import signal

import grpc
import numpy as np
import pytest

from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError
from shoal.proto.values.routing import Routing
from shoal.proto.wire import frames
from shoal.ps.saved.recovery import RegisteredWorkers
from shoal.tools.chaos import faulty
from shoal.tools.chaos.faults import CHECKPOINTS, FAIL
from tests.ps.groups import IDS, Group, spec
from tests.ps.restoring_server import PATIENCE, Restoring


@pytest.fixture
def saved(tmp_path):
    group = Group(1)
    group.push(1)
    group.save(tmp_path / "checkpoints", 3)
    return {"root": str(tmp_path / "checkpoints"), "checkpoints": [3], "nonces": [""]}


@pytest.fixture
def restoring(tmp_path, saved):
    server = Restoring(tmp_path, **saved)
    yield server
    server.close()


def refused(restoring, method, request):
    with pytest.raises(WireError) as caught:
        restoring.call(method, request)
    return caught.value


@pytest.mark.slow
def test_a_server_that_restores_answers_and_says_that_it_is_not_ready(restoring):
    # It may have told of its beginning, too.
    while not (told := restoring.progress.get(timeout=PATIENCE)).progress.done:
        pass
    assert (told.server, told.incarnation) == (0, 1)
    assert told.progress.what == "restore checkpoint 3"
    assert told.progress.done < told.progress.total
    # As a probe of Kubernetes asks.
    with grpc.insecure_channel(restoring.address) as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        assert check(b"", timeout=60) == b"\x08\x01"
    assert not restoring.call(methods.STATUS, pb.ServerStatusRequest()).registered
    caller = pb.PushIdentity(worker=0, sequence=1)
    push = frames.encode(pb.PushRequest(identity=caller, routing_epoch=1), [])
    pull = frames.encode(pb.PullRequest(routing_epoch=1), [])
    for method, request in (
        (methods.REGISTER, pb.RegisterRequest(model=spec(), caller=caller)),
        (methods.INITIALIZE_DENSE, frames.encode(pb.InitializeDenseRequest(), [])),
        (methods.PULL, pull),
        (methods.PUSH, push),
        (methods.ASSIGN_ROWS, frames.encode(pb.AssignRowsRequest(), [])),
        # What it has restored by now is not what it will have.
        (methods.STATUS, pb.ServerStatusRequest(pushes=True)),
        (methods.FENCE, pb.FenceRequest(worker=0, incarnation=0)),
        (methods.APPLY_UPDATE, pb.ApplyUpdateRequest(update=1)),
        (methods.BEGIN_CHECKPOINT, pb.BeginCheckpointRequest(number=4, nonce="0" * 16)),
        (methods.COMPLETE_CHECKPOINT, pb.CompleteCheckpointRequest(number=3)),
        (methods.SET_ROUTING, Routing.even(1).to_message()),
    ):
        error = refused(restoring, method, request)
        assert error.kind == pb.NOT_READY, method
        assert "it is to restore checkpoint 3 first" in error.message
    with pytest.raises(WireError, match="NOT_READY"):
        next(restoring.connection.stream(methods.READ_TABLE, pb.ReadTableRequest(table=0)))
    # A log of another server's it does not have, and will not.
    assert [*restoring.connection.stream(methods.TAKE_LOG, pb.TakeLogRequest(server=1))] == []
    assert restoring.registered.empty()

    restoring.go_on()
    request = restoring.registered.get(timeout=PATIENCE)
    assert request.address == restoring.address
    assert "it has restored checkpoint 3" in request.restored
    assert request.checkpoint == 3
    assert [push.identity.sequence for push in request.has] == [1]
    while told.progress.what:  # the last word is that nothing is being restored any more
        told = restoring.progress.get(timeout=PATIENCE)
    restoring.call(methods.REGISTER, pb.RegisterRequest(model=spec()))
    (first, *_) = restoring.connection.stream(methods.READ_TABLE, pb.ReadTableRequest(table=0))
    assert np.isin(frames.decode(first, pb.ReadTableReply)[1][0], IDS).all()


@pytest.mark.slow
def test_a_server_that_is_told_to_end_while_it_restores_ends(restoring):
    restoring.progress.get(timeout=PATIENCE)
    restoring.process.send_signal(signal.SIGTERM)
    restoring.go_on()
    assert restoring.process.wait(PATIENCE) == 0
    assert "told to end before it could serve" in restoring.log.read_text()
    assert restoring.registered.empty()


def test_of_the_workers_that_a_server_met_it_keeps_the_newest_incarnation():
    meetings, told = RegisteredWorkers(), []
    meetings.again, meetings.tell = True, told.append
    for incarnation in range(500):
        who = pb.PushIdentity(worker=3, incarnation=incarnation, sequence=7)
        with pytest.raises(WireError, match=r"NOT_REGISTERED.*worker 3"):
            meetings.require(who)
        for _ in range(2):
            meetings.meet(pb.LastPush(identity=who))
        meetings.require(who)
    assert [push.identity.incarnation for push in told] == list(range(500))
    assert len(meetings._met) == 1


def in_trouble(folder, saved):
    """Storage that fails at each call, below the checkpoints; where these are by its URL."""
    root = saved["root"]
    (folder / "faults").mkdir()
    faulty.fault_file(folder / "faults", CHECKPOINTS).write_text(f"{FAIL}\n1\n{root}")
    return saved | {"root": faulty.PREFIX + root}


@pytest.mark.slow
def test_a_server_waits_for_storage_and_says_so(tmp_path, saved):
    server = Restoring(tmp_path, **in_trouble(tmp_path, saved))
    try:
        while not (told := server.progress.get(timeout=PATIENCE).progress).what:
            pass
        assert told.what.startswith("wait for storage: OSError: [Errno 5] the storage fails")
        faulty.fault_file(tmp_path / "faults", CHECKPOINTS).unlink()
        server.go_on()
        assert server.registered.get(timeout=PATIENCE).restored == "it has restored checkpoint 3"
    finally:
        server.close()


@pytest.mark.slow
def test_a_server_whose_storage_stays_away_has_the_job_end_as_one_to_be_resumed(tmp_path, saved):
    server = Restoring(tmp_path, patience=0.1, **in_trouble(tmp_path, saved))
    try:
        told = server.failed.get(timeout=PATIENCE)
        assert server.process.wait(PATIENCE) == 1
    finally:
        server.close()
    assert (told.role, told.index, told.incarnation) == ("ps", 0, 1)
    assert told.failure.kind == pb.ENVIRONMENT
    assert "--storage-patience-seconds 0.1" in told.failure.message
    assert f"shoal train --resume {tmp_path}" in told.failure.message
    assert server.registered.empty()
