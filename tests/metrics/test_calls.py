"""The calls of a real server are counted by how they end, and timed."""

import numpy as np
import pytest

from shoal.metrics.calls import Calls
from shoal.metrics.durations import BOUNDS
from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.channels import serving
from shoal.proto.errors import WireError
from shoal.proto.values.routing import Routing
from shoal.ps.service import ParameterServer
from tests.jobs.running import until
from tests.ps.caller import Caller


@pytest.fixture
def calls():
    return Calls()


@pytest.fixture
def caller(calls, connect):
    """A caller of a server whose calls are counted."""
    server = ParameterServer(0, Routing.even(1))
    server.registration.begin_anew()
    made, port = serving.serve(calls.counted(server.handlers()), "127.0.0.1:0", threads=2)
    yield Caller(connect(f"127.0.0.1:{port}"))
    made.stop(None).wait()


def wait_for(calls, call, outcome, count):
    """Wait until so many calls are counted: an answer is there before its end is."""

    def counted():
        return samples(calls).get(("shoal_requests_total", call, outcome)) == count

    until(f"{count} calls of {call}", counted)


def samples(calls):
    """{(name, call, outcome or bound)} of all that were counted."""
    return {
        (each.name, *each.labels.values()): each.value
        for family in calls.collect()
        for each in family.samples
    }


def test_calls_are_counted_by_how_they_end(caller, calls):
    assert samples(calls) == {}
    caller.register()
    caller.initialize(np.arange(5), [0.5, 0.25])
    for _ in range(3):
        caller.pull([1, 2])
    caller.push([1], [[1, 2, 3]])
    stale = pb.FenceRequest(worker=1, incarnation=1)
    caller.connection.call(methods.FENCE, stale)
    with pytest.raises(WireError):
        Caller(caller.connection, epoch=0).pull([1])
    wait_for(calls, "Pull", "answered", 3)
    found = samples(calls)
    assert found["shoal_requests_total", "Pull", "answered"] == 3
    assert found["shoal_requests_total", "Pull", "refused"] == 1
    assert found["shoal_requests_total", "Push", "answered"] == 1
    assert found["shoal_requests_total", "Fence", "answered"] == 1
    assert found["shoal_request_seconds_count", "Pull"] == 4
    assert found["shoal_request_seconds_bucket", "Pull", "+Inf"] == 4
    assert found["shoal_request_seconds_sum", "Pull"] > 0
    counts = [found["shoal_request_seconds_bucket", "Pull", str(bound)] for bound in BOUNDS]
    assert counts == sorted(counts)


def test_a_stream_is_counted_when_it_ends(caller, calls):
    caller.register()
    caller.initialize(np.arange(5), [0.5, 0.25])
    caller.push([1, 2], [[1, 2, 3], [4, 5, 6]])
    parts = caller.connection.stream(methods.READ_TABLE, pb.ReadTableRequest(table=0))
    assert list(parts)
    wait_for(calls, "ReadTable", "answered", 1)


def test_an_error_of_a_handler_is_a_failed_call(calls):
    def broken(request):
        raise RuntimeError("a bug")

    handlers = calls.counted({methods.STATUS: broken})
    with pytest.raises(RuntimeError, match="a bug"):
        handlers[methods.STATUS](pb.ServerStatusRequest())
    assert samples(calls)["shoal_requests_total", "Status", "failed"] == 1
