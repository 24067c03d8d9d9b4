"""Gradients that a server holds, and the updates made of them, over real gRPC."""

import threading

import numpy as np
import pytest

from shoal.native.whole import WholeUpdates
from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError
from shoal.proto.wire import frames
from shoal.ps.model.pushes import PushRegister
from tests.ps.caller import Caller

PATIENCE = 120


class Server(Caller):
    """One server with the model of model_spec(): dense values 0 to 4, rows of ones."""

    def hold(
        self,
        number,
        ids,
        gradients,
        dense=1.0,
        worker=0,
        incarnation=0,
        sequence=None,
        pulled=0,
        table_rates=(),
    ):
        identity = pb.PushIdentity(
            worker=worker, incarnation=incarnation, sequence=sequence or number
        )
        header = pb.PushRequest(
            identity=identity,
            routing_epoch=self.epoch,
            tables=[0],
            ids_of=[0],
            has_dense=True,
            learning_rate=1.0,
            hold=number,
            pulled_version=pulled,
            table_rates=table_rates,
        )
        arrays = [np.asarray(ids, np.int64), np.asarray(gradients, np.float32)]
        arrays += [np.full(5, dense, np.float32), np.full(2, dense, np.float32)]
        frame = self.connection.call(methods.PUSH, frames.encode(header, arrays))
        return frames.decode(frame, pb.PushReply)[0].applied

    def update(self, number, *gradients, dropped=(), after=0):
        """Apply the gradients (worker, number) of incarnation 0."""

        def named(pairs):
            return [pb.GradientId(worker=worker, number=each) for worker, each in pairs]

        request = pb.ApplyUpdateRequest(
            update=number, after=after, gradients=named(gradients), dropped=named(dropped)
        )
        return self.connection.call(methods.APPLY_UPDATE, request).version

    def fence(self, worker, incarnation, *kept):
        request = pb.FenceRequest(worker=worker, incarnation=incarnation, kept=kept)
        return self.connection.call(methods.FENCE, request)

    def pending(self):
        return self.connection.call(methods.STATUS, pb.ServerStatusRequest()).pending

    def values(self, *ids):
        header, (rows, trainable, state) = self.pull(list(ids))
        return header.version, rows[:, 0].tolist(), trainable.tolist(), state.tolist()


@pytest.fixture
def server(cluster, connect):
    made = Server(connect(cluster(1, synchronous=True).addresses[0]))
    made.register()
    made.initialize(np.arange(5), [0.0, 0.0])
    return made


def ones(value):
    return [[value] * 3]


def test_what_is_held_changes_nothing_until_an_update_averages_it(server):
    server.hold(1, [7], ones(1.0), dense=1.0, worker=0)
    server.hold(1, [7], ones(2.0), dense=3.0, worker=1)
    assert server.values(7) == (0, [1.0], [0, 1, 2, 3, 4], [0, 0])
    assert server.pending() == 2
    assert server.update(1, (0, 1), (1, 1)) == 1
    # Values minus the mean gradient; statistics plus the mean change.
    assert server.values(7) == (1, [-0.5], [-2, -1, 0, 1, 2], [2, 2])
    assert server.pending() == 0


def test_a_row_that_one_gradient_lacks_is_divided_by_their_number_too(server):
    server.hold(1, [7], ones(1.0), worker=0)
    server.hold(1, [8], ones(3.0), worker=1)
    server.update(1, (0, 1), (1, 1))
    assert server.values(7, 8)[1] == [0.5, -0.5]


def test_an_update_has_the_rates_of_its_newest_gradient(server):
    server.hold(1, [7], ones(1.0), worker=0, table_rates=[0.5])
    server.update(1, (0, 1))
    server.hold(2, [7], ones(1.0), dense=1.0, worker=0, pulled=1, table_rates=[0.25])
    server.hold(1, [7], ones(3.0), dense=1.0, worker=1, table_rates=[0.5])
    assert server.values(7)[1] == [0.5]
    server.update(2, (0, 2), (1, 1))
    assert server.values(7)[:3] == (2, [0.0], [-2, -1, 0, 1, 2])


def test_an_update_is_applied_once(server):
    server.hold(1, [7], ones(1.0))
    server.hold(2, [7], ones(1.0))
    assert server.update(1, (0, 1)) == 1
    assert server.update(1, (0, 1)) == 1
    assert server.values(7)[1] == [0.0]
    assert server.pending() == 1


def test_a_retried_push_is_held_once(server):
    assert server.hold(1, [7], ones(1.0))
    assert not server.hold(1, [7], ones(1.0))
    server.update(1, (0, 1))
    assert server.values(7)[1] == [0.0]
    assert not server.hold(1, [7], ones(1.0))


def test_parts_of_one_gradient_count_once(server):
    """As where slots moved between two parts of a push."""
    server.hold(1, [7], ones(1.0), sequence=1)
    server.hold(1, [8], ones(1.0), sequence=2, dense=0.0)
    server.hold(1, [8], ones(2.0), worker=1, dense=0.0)
    server.update(1, (0, 1), (1, 1))
    assert server.values(7, 8)[1] == [0.5, -0.5]


def test_an_update_of_what_is_not_held_or_out_of_order_is_refused_and_changes_nothing(server):
    server.hold(1, [7], ones(1.0))
    with pytest.raises(WireError, match="gradient 1 of worker 5, which this server does not hold"):
        server.update(1, (0, 1), (5, 1))
    with pytest.raises(WireError, match="comes after update 1, and this server is at update 0"):
        server.update(2, (0, 1), after=1)
    assert server.values(7)[:2] == (0, [1.0])
    assert server.update(1, (0, 1)) == 1


def test_dropped_gradients_and_those_of_the_dead_are_held_no_longer(server):
    server.hold(1, [7], ones(1.0), worker=0)
    server.hold(1, [7], ones(1.0), worker=1)
    server.update(1, (1, 1), dropped=[(0, 1)])
    assert server.pending() == 0
    for number in (2, 3):
        server.hold(number, [7], ones(1.0), worker=0)
    server.fence(0, 0, 2)
    assert server.pending() == 1
    with pytest.raises(WireError, match="FENCED"):
        server.hold(4, [7], ones(1.0), worker=0)
    # A successor counts from 1 anew.
    assert server.hold(1, [7], ones(1.0), worker=0, incarnation=1)
    server.update(2, (0, 2))
    assert server.pending() == 1


def test_wrong_shapes_are_refused_before_they_are_pending(server):
    with pytest.raises(WireError, match="gradients of shape"):
        server.hold(1, [7, 8], ones(1.0))
    assert server.pending() == 0


def test_a_checkpoint_does_not_take_what_is_held_for_applied():
    register = PushRegister()

    def push(sequence, hold):
        identity = pb.PushIdentity(worker=0, sequence=sequence)
        request = pb.PushRequest(identity=identity, task=3, records_done=9, hold=hold)
        with register.admit(request) as fresh:
            assert fresh

    push(1, hold=0)
    push(2, hold=2)
    with register.paused() as applied:
        assert [(each["sequence"], each["records_done"]) for each in applied] == [(1, 9)]


def test_no_update_is_applied_while_a_checkpoint_pauses():
    register = PushRegister()
    entered = threading.Event()

    def update():
        with register.updating():
            entered.set()

    thread = threading.Thread(target=update)
    with register.paused():
        thread.start()
        assert not entered.wait(0.05)
    assert entered.wait(PATIENCE)
    thread.join()


def test_a_writer_waits_for_readers_and_readers_for_the_writer():
    lock = WholeUpdates(PATIENCE)
    order = []
    steps = [threading.Event() for _ in range(2)]

    def write():
        steps[0].set()
        with lock.writing():
            order.append("write")

    def read():
        steps[1].set()
        with lock.reading():
            order.append("read")

    with lock.reading(), lock.reading():
        writer = threading.Thread(target=write)
        writer.start()
        steps[0].wait(PATIENCE)
        while not lock.claimed:  # it stands in line
            steps[1].wait(0.001)
        reader = threading.Thread(target=read)
        reader.start()
        steps[1].wait(PATIENCE)
        assert order == []
    writer.join(PATIENCE)
    reader.join(PATIENCE)
    assert order == ["write", "read"]


def test_an_update_that_failed_fails_again_until_it_can_be_applied(server):
    server.hold(1, [7], ones(1.0))
    for _ in range(2):
        with pytest.raises(WireError, match="BAD_REQUEST: update 1 is made of 0 gradients"):
            server.update(1)
        with pytest.raises(WireError, match="BAD_REQUEST: update 1 is made of 2 gradients"):
            server.update(1, (0, 1), (0, 1))
    assert server.pending() == 1
    assert server.update(1, (0, 1)) == 1
    assert server.values(7)[1] == [0.0]
