"""A server whose neighbour hangs and answers pings: real processes, and a test as the master."""

import random
import threading
import time
from collections import Counter

import numpy as np
import pytest

from shoal.native import ids as native_ids
from shoal.native.initializers import InitializerSpec
from shoal.proto import faults, methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.channels import rpc, serving
from shoal.proto.errors import WireError
from shoal.proto.values.routing import Routing, slice_of
from shoal.proto.wire import frames
from tests.ps.caller import model_spec
from tests.ps.logged import DIM, SIZE, STATE
from tests.ps.processes import start_server, write_job

pytestmark = pytest.mark.slow

# A row is minus the number of its updates.
SPEC = model_spec(DIM, ("counts",), SIZE, STATE, initial=InitializerSpec("zeros"), seed=1)

WORKERS = 12
"""More than a server has threads for pushes."""

SERVER_TIMEOUT = 24.0
PATIENCE = 120.0


class Servers:
    """Two processes of a job, and what its master does: it asks how they are."""

    def __init__(self, folder):
        self.folder = folder
        self.routing = Routing.even(2)
        self.addresses = {}
        self.there = threading.Event()
        self.master, port = serving.serve(
            {
                methods.GET_RESTORE: lambda _: pb.RestoreReply(),
                methods.REGISTER_SERVER: self._registered,
                methods.GET_ROUTING: self._located,
            },
            "127.0.0.1:0",
            4,
        )
        write_job(
            folder,
            servers="2",
            durability="peer",
            timeout_seconds=SERVER_TIMEOUT / 2,
        )
        self.processes = [start_server(folder, index, port) for index in range(2)]
        assert self.there.wait(PATIENCE)
        self.connections = [rpc.Connection(self.addresses[index]) for index in range(2)]

    def _registered(self, request):
        self.addresses[request.server] = request.address
        if len(self.addresses) == 2:
            self.there.set()
        return pb.RegisterServerReply(routing=self.routing.to_message())

    def _located(self, _):
        if len(self.addresses) < 2:
            raise WireError(pb.NOT_READY, "not all are there")
        addresses = [self.addresses[index] for index in range(2)]
        return pb.RegisterWorkerReply(routing=self.routing.to_message(), servers=addresses)

    def status(self, index):
        """As the master asks; without an answer in time the server would be killed."""
        request = pb.ServerStatusRequest()
        return self.connections[index].call(
            methods.STATUS, request, deadline=SERVER_TIMEOUT, patience=0.0
        )

    def wait_for(self, index, condition):
        end = time.monotonic() + PATIENCE
        while not condition(status := self.status(index)):
            assert time.monotonic() < end, status
            time.sleep(0.05)
        return status

    def close(self):
        for connection in self.connections:
            connection.close()
        for process in self.processes:
            process.kill()
            process.wait()
        self.master.stop(None).wait()


@pytest.fixture
def servers(tmp_path):
    made = Servers(tmp_path)
    yield made
    made.close()


def test_a_neighbour_that_hangs_costs_no_server_and_no_push(servers):
    for index, connection in enumerate(servers.connections):
        connection.call(methods.REGISTER, pb.RegisterRequest(model=SPEC))
        parts = []
        for size in (SIZE, STATE):
            own = slice_of(size, index, 2)
            parts.append(np.zeros(own.stop - own.start, np.float32))
        frame = frames.encode(pb.InitializeDenseRequest(), parts)
        connection.call(methods.INITIALIZE_DENSE, frame)
    owners = servers.routing.owners
    ids = np.arange(1, 200, dtype=np.int64)
    ids = ids[owners[native_ids.slot_of(ids)] == 0]
    acknowledged, expected = Counter(), Counter()
    stop = threading.Event()

    def work(worker):
        draw, connection = random.Random(worker), rpc.Connection(servers.addresses[0])
        while not stop.is_set():
            sequence = acknowledged[worker] + 1
            some = np.array(draw.sample(ids.tolist(), 4), np.int64)
            header = pb.PushRequest(
                identity=pb.PushIdentity(worker=worker, sequence=sequence),
                routing_epoch=1,
                tables=[0],
                ids_of=[0],
                learning_rate=1.0,
            )
            frame = frames.encode(header, [some, np.ones((4, DIM), np.float32)])
            connection.call(methods.PUSH, frame, patience=PATIENCE)
            acknowledged[worker] = sequence
            with lock:
                expected.update(some.tolist())
        connection.close()

    lock = threading.Lock()
    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(WORKERS)]
    for thread in threads:
        thread.start()
    servers.wait_for(0, lambda status: status.version > 50)
    assert servers.status(0).unprotected == ""
    hanging = faults.hold(servers.folder / "faults", "log-appending", "ps-1")
    # It answers all the time, and says that nothing protects its updates before any worker is
    # told that one is there.
    status = servers.wait_for(0, lambda status: status.unprotected)
    assert "ps-1, which keeps it, cannot be reached" in status.unprotected
    servers.wait_for(0, lambda now: now.version > status.version + 50)
    assert servers.status(1).unprotected == ""  # its own log is at ps-0
    hanging.unlink()
    servers.wait_for(0, lambda status: status.wants_checkpoint)  # another log has begun
    stop.set()
    for thread in threads:
        thread.join(PATIENCE)
    assert [process.poll() for process in servers.processes] == [None, None]
    assert servers.status(0).version == sum(acknowledged.values())
    counts = Counter()
    for frame in servers.connections[0].stream(methods.READ_TABLE, pb.ReadTableRequest(table=0)):
        _, (found, rows) = frames.decode(frame, pb.ReadTableReply)
        counts.update(dict(zip(found.tolist(), (-rows[:, 0]).astype(int).tolist(), strict=True)))
    assert counts == expected
