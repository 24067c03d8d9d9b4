"""Rows that move between servers over real sockets, by the master's own calls."""

import threading

import numpy as np
import pytest

from shoal.master.calls.move_slots import MovingError, Servers, SlotMover
from shoal.master.calls.servers import Place, ServerConnections
from shoal.master.work.ids import ServerId
from shoal.native.ids import slot_of
from shoal.native.optimizers import OptimizerSpec
from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.channels.rpc import Connection
from shoal.proto.errors import CallError, WireError
from shoal.proto.values.routing import Routing
from shoal.proto.wire import frames
from shoal.ps import moved_rows, service
from shoal.ps.model import rows
from shoal.ps.model.tables import ServerModel
from tests.ps.caller import Caller, model_spec
from tests.waiting import until

IDS = np.arange(3000, dtype=np.int64)
SPEC = model_spec(optimizer=OptimizerSpec("adam").to_json())


def some(sequence):
    """The ids of a push that has not all of them."""
    return IDS[sequence % 7 :: 7].copy()


class World:
    """Two servers, of which the first has all slots at first, and what a master knows of them."""

    def __init__(self, cluster, connect, spec=SPEC):
        owners = np.zeros(16384, np.uint16)
        self.routing = Routing(1, 2, owners)
        self.cluster = cluster(2)
        self.cluster.reroute(self.routing)
        self.servers = self.cluster.servers
        for server in self.servers:
            server.moves.connect = lambda _, address: Connection(address)
        self.callers = [
            Caller(connect(address, patience=0.0)) for address in self.cluster.addresses
        ]
        for server, caller in zip(self.servers, self.callers, strict=True):
            caller.register(spec)
            elements = server.model.dense.elements, server.model.dense.state_elements
            caller.initialize(np.zeros(elements[0]), np.zeros(elements[1]))
        places = {
            ServerId(index): Place(address, 0)
            for index, address in enumerate(self.cluster.addresses)
        }
        self.there = Servers(places, {}, ())
        self.connections = ServerConnections("")
        self.mover = SlotMover(self.connections, threading.Event())
        moved = owners.copy()
        moved[::2] = 1
        self.after = Routing(2, 2, moved)
        self.attempt = 0

    def push(self, sequence, ids=IDS, servers=(0, 1)):
        """A push of worker 0 to these servers, the rows to their owner."""
        owners = self.callers_routing().owners[slot_of(ids)]
        for server in servers:
            own = ids[owners == server]
            dense = self.servers[server].model.dense
            parts = [np.ones(dense.elements), np.zeros(dense.state_elements)]
            self.callers[server].push(
                own, np.full((own.size, 3), sequence), dense=parts, sequence=sequence, rate=0.1
            )

    def callers_routing(self):
        return self.routing if self.callers[0].epoch == 1 else self.after

    def move(self, commit=lambda places: None):
        self.attempt += 1
        return self.mover.move(
            self.routing, self.after.to_message(), self.attempt, self.there, commit
        )

    def settle(self, routing):
        self.mover.settle(lambda: (routing.to_message(), self.attempt), lambda: self.there.all)

    def rows(self, server):
        """Id -> values, slots, of what a server has."""
        found = {}
        for ids, values, slots, *_ in self.servers[server].model.tables[0].export():
            for at, key in enumerate(ids.tolist()):
                found[key] = values[at].tolist(), {k: v[at].tolist() for k, v in slots.items()}
        return found


@pytest.fixture
def world(cluster, connect):
    made = World(cluster, connect)
    yield made
    made.connections.close()


def test_rows_move_with_their_slots_and_the_table_is_the_new_one(world):
    for sequence in (1, 2, 3):
        world.push(sequence)
    before = world.rows(0)
    moved = world.move()
    world.settle(world.after)
    gone = world.after.owners[slot_of(IDS)] == 1
    assert moved.slots == 8192
    assert moved.rows == gone.sum()
    assert world.rows(0) | world.rows(1) == before
    assert set(world.rows(1)) == set(IDS[gone].tolist())
    for caller in world.callers:
        caller.epoch = 2
    world.push(4)
    assert set(world.rows(0)) | set(world.rows(1)) == set(IDS.tolist())


def test_rows_above_a_cap_go_when_a_move_ends_although_no_push_comes(cluster, connect):
    """No sweep is made while slots move, and the job may be over with that."""
    spec = pb.ModelSpec()
    spec.CopyFrom(SPEC)
    spec.tables[0].max_rows = 1_000
    world = World(cluster, connect, spec)
    world.push(1, IDS[:900])
    world.move()
    for caller in world.callers:
        caller.epoch = 2
    world.push(2, IDS[900:1_500])
    tables = [server.model.tables[0] for server in world.servers]
    assert all(len(table) > 500 for table in tables)
    world.settle(world.after)
    assert [400 < len(table) <= 500 for table in tables] == [True, True]
    world.push(3, IDS[:20])
    assert set(world.rows(0)) | set(world.rows(1)) >= set(range(20))
    world.connections.close()


def test_a_pull_of_whole_updates_sees_all_or_nothing_of_the_sweep_behind_a_move(world, monkeypatch):
    """It comes in the middle of the sweep, and is answered once that is over."""
    world.push(1)
    server = world.servers[0]
    request = pb.PullRequest(
        routing_epoch=2, tables=[0], ids_of=[0], dense_version=-2, whole_updates=True
    )
    own = IDS[world.after.owners[slot_of(IDS)] == 0]
    frame = frames.encode(request, [own])
    came, answered = threading.Event(), threading.Event()

    def pull():
        server.pulls.answer(frame)
        answered.set()

    puller = threading.Thread(target=pull)
    check = server.pulls._answers.check
    monkeypatch.setattr(server.pulls._answers, "check", lambda: (came.set(), check()))

    def settle(record):
        puller.start()
        assert came.wait(60)
        seen.append(answered.wait(0.3))

    seen = []
    monkeypatch.setattr(server.model, "settle", settle)
    world.move()
    world.settle(world.after)
    puller.join(60)
    assert seen == [False]
    assert answered.is_set()


def test_what_is_pushed_while_rows_move_moves_too(world):
    """Rounds and the freeze, under pushes that do not stop."""
    world.push(1)
    done = threading.Event()

    def go_on():
        sequence = 2
        while not done.is_set():
            # As a worker: each server is waited for by itself.
            taken = [_applied(world, sequence, server) for server in (0, 1)]
            if all(taken):
                sequence += 1
            else:
                for caller in world.callers:
                    caller.epoch = 2
        pushed.append(sequence - 1)

    pushed = []
    thread = threading.Thread(target=go_on)
    thread.start()
    world.move()
    world.settle(world.after)
    epoch = world.callers[0]
    until("a push by the new table", lambda: epoch.epoch == 2)
    done.set()
    thread.join()
    twin = ServerModel(SPEC, 0, 1, 16384)
    for sequence in range(1, pushed[0] + 1):
        ids = IDS if sequence == 1 else some(sequence)
        gradients = np.full((ids.size, 3), sequence, np.float32)
        twin.tables[0].update(ids, gradients, learning_rate=0.1, step=sequence)
    found = world.rows(0) | world.rows(1)
    for ids, values, *_ in twin.tables[0].export():
        for at, key in enumerate(ids.tolist()):
            assert found[key][0] == values[at].tolist()


def test_a_push_that_one_server_has_is_let_in_at_the_other_before_the_decision(world):
    world.push(1)
    world.push(2, servers=(0,))
    repeated = threading.Thread(target=lambda: until("let in", lambda: _pushed(world, 2, 1)))
    decided = []

    def commit(_):
        decided.append([server.last_pushes()[0].identity.sequence for server in world.servers])

    repeated.start()
    world.move(commit)
    repeated.join()
    assert decided == [[2, 2]]


def _applied(world, sequence, server):
    """Push to a server until it takes the push, or says that the table is old."""
    while True:
        try:
            world.push(sequence, some(sequence), servers=(server,))
        except CallError as error:
            if isinstance(error, WireError) and error.kind == pb.STALE_ROUTING:
                return False
        else:
            return True


def _pushed(world, sequence, server):
    try:
        world.push(sequence, servers=(server,))
    except CallError:
        return False
    return True


def test_a_push_whose_answer_was_lost_is_not_applied_again_by_another_table(world):
    world.push(1)
    world.move()
    world.settle(world.after)
    before = world.rows(0)
    world.push(1, servers=(0,))  # by the table of before
    assert world.rows(0) == before
    with pytest.raises(WireError) as refused:
        world.push(2, servers=(0,))
    assert refused.value.kind == pb.STALE_ROUTING


def test_a_move_that_is_not_decided_leaves_all_as_it_was(world):
    world.push(1)
    before = world.rows(0)

    def refuse(_):
        raise MovingError("not now")

    with pytest.raises(MovingError, match="not now"):
        world.move(refuse)
    assert world.rows(1)
    with pytest.raises(CallError):
        world.push(2)
    world.settle(world.routing)
    assert world.rows(0) == before
    assert world.rows(1) == {}
    world.push(2)
    world.move()
    world.settle(world.after)
    assert set(world.rows(0)) | set(world.rows(1)) == set(IDS.tolist())


def test_rows_of_no_move_or_of_other_slots_are_refused(world):
    world.push(1)
    head = pb.TakeRowsRequest(epoch=2, attempt=1)
    ((_, _, frame), *_) = moved_rows.moving(
        world.servers[0].model, head, [np.ones(16384, bool)], since=0
    )
    to = world.callers[1].connection
    with pytest.raises(WireError, match="no move to epoch 2 is under way here"):
        to.call(methods.TAKE_ROWS, frame)
    begin = pb.BeginMoveRequest(table=world.after.to_message(), attempt=1)
    to.call(methods.BEGIN_MOVE, begin)
    with pytest.raises(WireError, match="slots that do not move"):
        to.call(methods.TAKE_ROWS, frame)
    short = frames.encode(head, [IDS])
    with pytest.raises(WireError, match="rows of table 0"):
        to.call(methods.TAKE_ROWS, short)
    assert world.rows(1) == {}
    table = Routing(7, 2, world.after.owners).to_message()
    with pytest.raises(WireError, match="a move to epoch 7 from epoch 1"):
        to.call(methods.BEGIN_MOVE, pb.BeginMoveRequest(table=table))


def test_counted_ids_move_and_go_on_counting(cluster, connect):
    SPEC.tables[0].admit_after = 3
    try:
        world = World(cluster, connect)
        world.push(1)
        world.push(2)
        world.move()
        world.settle(world.after)
        counting = [server.model.tables[0].counting for server in world.servers]
        gone = int((world.after.owners[slot_of(IDS)] == 1).sum())
        assert counting == [IDS.size - gone, gone]
        for caller in world.callers:
            caller.epoch = 2
        world.push(3)
        assert [len(server.model.tables[0]) for server in world.servers] == counting
        world.connections.close()
    finally:
        SPEC.tables[0].admit_after = 0


def test_a_pull_whose_rows_move_while_it_is_taken_is_broken_off(world, monkeypatch):
    """It would be answered the initial values of rows that have gone."""
    monkeypatch.setattr(rows, "BLOCK_BYTES", 1 << 10)
    world.push(1)
    server = world.servers[0]
    request = pb.PullRequest(routing_epoch=1, tables=[0], ids_of=[0], dense_version=-2)
    request.training = True
    answer = iter(server.pulls.answer(frames.encode(request, [IDS])).buffers)
    assert next(answer)
    world.move()
    world.settle(world.after)
    with pytest.raises(WireError, match="STALE_ROUTING"):
        next(answer)


def test_an_id_that_moves_while_it_is_looked_for_is_asked_for_again(world, monkeypatch):
    world.push(1)
    server, find_id = world.servers[0], service.find_id

    def moves_first(*arguments):
        world.move()
        world.settle(world.after)
        return find_id(*arguments)

    monkeypatch.setattr(service, "find_id", moves_first)
    with pytest.raises(WireError, match="NOT_READY: rows were moved meanwhile"):
        server.find_id(pb.FindIdRequest(table="items", id=int(IDS[0])))


def test_a_move_that_begins_again_keeps_the_rows_that_came(world):
    """A call of the master that was answered late is repeated, and may be handled later still."""
    world.push(1)
    before = world.rows(0)
    begin = pb.BeginMoveRequest(table=world.after.to_message(), attempt=1)

    def late(_):
        world.callers[1].connection.call(methods.BEGIN_MOVE, begin)

    world.move(late)
    world.settle(world.after)
    assert world.rows(0) | world.rows(1) == before


def test_an_attempt_that_was_called_off_does_not_begin_again(world):
    begin = pb.BeginMoveRequest(table=world.after.to_message(), attempt=1)
    connection = world.callers[1].connection
    connection.call(methods.BEGIN_MOVE, begin)
    end = pb.EndMoveRequest(table=world.routing.to_message(), attempt=1)
    connection.call(methods.END_MOVE, end)
    with pytest.raises(WireError, match="attempt 1 of a move is over"):
        connection.call(methods.BEGIN_MOVE, begin)
    assert not world.servers[1].moves.under_way


@pytest.mark.parametrize("size", [1 << 30, 1])
def test_rows_move_to_any_number_of_servers(world, monkeypatch, size):
    """size: of the memory for rows that are gathered side by side."""
    monkeypatch.setattr(moved_rows, "TARGETS_BYTES", size)
    world.push(1)
    model = world.servers[0].model
    count = 100 if size > 1 else 5
    owner = slot_of(IDS) % count
    targets = [np.arange(16384) % count == each for each in range(count)]
    found = {}
    for target, many, frame in moved_rows.moving(model, pb.TakeRowsRequest(), targets, since=0):
        _, (ids, *_) = moved_rows.rows_in(model, frame.joined(), targets[target])
        assert many == ids.size
        found.setdefault(target, []).extend(ids.tolist())
    assert {key: sorted(ids) for key, ids in found.items()} == {
        each: IDS[owner == each].tolist() for each in range(count)
    }


def test_rows_that_are_set_while_a_move_begins_are_set_again(world, monkeypatch):
    server, begin = world.servers[0], pb.BeginMoveRequest(attempt=1)
    begin.table.CopyFrom(world.after.to_message())
    assign = server.model.assign

    def begins_first(*arguments):
        server.moves.begin(begin)
        assign(*arguments)

    monkeypatch.setattr(server.model, "assign", begins_first)
    frame = frames.encode(
        pb.AssignRowsRequest(routing_epoch=1), [IDS, np.ones((IDS.size, 3), "f4")]
    )
    with pytest.raises(WireError, match="NOT_READY: rows are being moved"):
        server.assign_rows(frame)
