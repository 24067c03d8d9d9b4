"""Elements of the dense variables that move between servers, which are killed in between.

A twin of one server has all of them and gets the same pushes: rules work element by element.
"""

import threading

import numpy as np
import pytest

from shoal.checkpoints.folders import begin, complete
from shoal.master.calls.move_slots import MovingError, Servers, SlotMover
from shoal.master.calls.servers import Place, ServerConnections
from shoal.master.work.ids import ServerId
from shoal.native.ids import slot_of
from shoal.proto import faults, methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.channels.rpc import Connection
from shoal.proto.errors import WireError
from shoal.proto.values.routing import Routing, holder_index, slice_of
from shoal.proto.wire import frames
from shoal.ps.saved.checkpoint import cut, write_shard
from shoal.ps.service import ParameterServer
from shoal.ps.update_log.file_sink import FileSink
from tests.ps.logged import DIM, SIZE, SPEC, STATE, Faults, World, lost

pytestmark = pytest.mark.slow

IDS = np.arange(40, dtype=np.int64)


class Divided(World):
    """Servers with logs, whose dense variables are divided anew.

    peers: logs are in the memory of other servers, and not in files.
    """

    def __init__(self, count, folder, *, peers=False, **options):
        self.peers = peers
        super().__init__(count, folder, Faults(), **options)
        self.whole = ParameterServer(0, Routing.even(1))
        self.whole.registration.register(pb.RegisterRequest(model=SPEC))
        self.whole.registration.initialize_dense(self.first_values(0, Routing.even(1)))
        self.connections_of_master = ServerConnections("")
        self.mover = SlotMover(self.connections_of_master, threading.Event())
        self.attempt_of_move = self.pushed = 0
        self.draw = np.random.default_rng(1)

    def close(self):
        super().close()
        self.connections_of_master.close()

    def _sink(self, index):
        if self.peers:
            return self.at_peer(index)
        return FileSink(self.folder / "log", index, self.incarnations[index], sync=False)

    def _locate(self, keeper):
        # Also while others are away.
        if not self.addresses[keeper]:
            raise WireError(pb.NOT_READY, "it is away")
        return self.addresses[keeper]

    def start(self, index, *, replay=True):
        super().start(index, replay=replay)
        self.servers[index].moves.connect = lambda _, address: Connection(address)

    def first_values(self, index, routing):
        parts = [
            np.full(SIZE, 0.5, np.float32)[slice_of(SIZE, index, routing.dense)],
            np.full(STATE, 1.0, np.float32)[slice_of(STATE, index, routing.dense)],
        ]
        return frames.encode(pb.InitializeDenseRequest(), parts)

    def frame_of(self, index, routing, gradients, change, worker=0):
        ids = IDS[routing.owners[slot_of(IDS)] == index]
        header = pb.PushRequest(
            identity=pb.PushIdentity(worker=worker, sequence=self.pushed),
            routing_epoch=routing.epoch,
            tables=[0],
            ids_of=[0],
            has_dense=True,
            learning_rate=0.1,
        )
        parts = [
            gradients[slice_of(SIZE, index, routing.dense)],
            change[slice_of(STATE, index, routing.dense)],
        ]
        rows = np.full((ids.size, DIM), self.pushed, np.float32)
        return frames.encode(header, [ids, rows, *parts])

    def push_all(self):
        self.pushed += 1
        given = [self.draw.normal(size=size).astype(np.float32) for size in (SIZE, STATE)]
        for index in range(self.routing.servers):
            self.call(index, methods.PUSH, self.frame_of(index, self.routing, *given))
            self.sequences[0, index] = self.pushed
        self.whole.push(self.frame_of(0, Routing.even(1), *given))

    def table(self, dense):
        owners = (np.arange(16384) % dense).astype(np.uint16)
        return Routing(self.routing.epoch + 1, len(self.servers), owners, dense)

    def divide(self, dense, commit=None, joining=()):
        """Move slots and slices to the first `dense` servers. joining: those that are new."""
        after = self.table(dense)

        def decide(_):
            self.routing = after
            self.unsaved = True
            if commit is not None:
                commit()

        places = {
            ServerId(k): Place(each, self.incarnations[k]) for k, each in enumerate(self.addresses)
        }
        new = {ServerId(k): places.pop(ServerId(k)) for k in joining}
        there = Servers(places, new, ())
        self.attempt_of_move += 1
        before = self.routing
        self.mover.move(before, after.to_message(), self.attempt_of_move, there, decide)
        self.settle()

    def settle(self):
        for index in range(len(self.servers)):
            request = pb.EndMoveRequest(
                table=self.routing.to_message(), attempt=self.attempt_of_move
            )
            self.call(index, methods.END_MOVE, request)

    def save(self):
        """Take a checkpoint of which the servers do not hear."""
        self.checkpoint(until="complete")

    def check(self):
        """All is where the table has it, and as the twin has it."""
        whole = self.whole.model.dense
        for server in self.servers:
            dense = server.model.dense
            trainable, state = dense.slices_among(self.routing.dense)
            assert dense.servers == self.routing.dense
            np.testing.assert_array_equal(dense.block.values, whole.block.values[trainable])
            for name, slot in whole.block.slots.items():
                np.testing.assert_array_equal(dense.block.slots[name], slot[trainable])
            np.testing.assert_array_equal(dense.state, whole.state[state])


@pytest.fixture
def divided(tmp_path):
    made = []

    def make(count=3, **options):
        made.append(Divided(count, tmp_path, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.mark.parametrize("again", [(), (0,), (1,), (2,), (0, 1, 2)])
def test_slices_move_with_their_slots_and_are_there_after_a_death(divided, again):
    world = divided()
    world.push_all()
    for dense in (2, 1, 3):
        world.divide(dense)
        world.check()
        world.push_all()
        for index in again:
            world.start_again(index)
        world.check()
        world.push_all()
    world.check()


def test_logs_at_servers_end_with_a_move_and_protect_from_the_next_checkpoint_on(divided):
    """Server 1's log was at server 2, and is at server 0 then."""
    world = divided(4, peers=True)
    world.push_all()
    world.save()
    world.push_all()
    world.divide(2)
    world.push_all()
    for index in range(4):
        status = world.status(index)
        # For a minute nothing is told: a checkpoint follows.
        assert (status.unprotected, status.wants_checkpoint) == ("", True)
    world.save()
    world.told()
    assert not any(world.status(index).wants_checkpoint for index in range(4))
    for index in (3, 2, 1):  # the last one keeps logs
        world.push_all()
        world.start_again(index)
        assert lost(world.servers[index]) == 0
        world.check()


@pytest.mark.parametrize("heard", [False, True])
@pytest.mark.parametrize("dies", [0, 1, 2])
def test_a_death_between_a_move_and_its_checkpoint_costs_what_no_checkpoint_has(
    divided, dies, heard
):
    """Of servers that got slots and slices, and of one that has none any more; its log is there."""
    world = divided(3, peers=True)
    world.push_all()
    world.save()
    saved = world.whole.model.dense.block.values.copy()
    world.push_all()
    if heard:
        world.divide(2)
        world.push_all()
        world.kill(dies)
    else:
        settle, world.settle = world.settle, lambda: None
        world.divide(2, lambda: world.kill(dies))
        world.settle = settle
    world.start(dies)
    world.meet(dies)
    assert lost(world.servers[dies]) == world.pushed - 1
    dense = world.servers[dies].model.dense
    ours = slice_of(SIZE, dies, 2)
    np.testing.assert_array_equal(dense.block.values, saved[ours])
    world.settle()
    world.look_after()  # who had a log at it notices
    world.look_after()
    world.save()
    world.told()
    assert not any(world.status(index).unprotected for index in range(3))
    world.pushed += 1
    given = [np.ones(size, np.float32) for size in (SIZE, STATE)]
    world.call(dies, methods.PUSH, world.frame_of(dies, world.routing, *given))
    values = dense.block.values.copy()
    world.sequences[0, dies] = world.pushed
    world.start_again(dies)
    assert lost(world.servers[dies]) == 0
    np.testing.assert_array_equal(world.servers[dies].model.dense.block.values, values)


def test_slices_are_restored_from_a_checkpoint_and_a_log_that_goes_on_from_it(divided):
    world = divided()
    world.push_all()
    world.save()
    world.push_all()
    world.divide(1)
    world.push_all()
    world.start_again(0)
    world.check()
    world.save()
    world.push_all()
    world.divide(2)
    world.push_all()
    for index in range(3):
        world.start_again(index)
    world.check()


def test_a_log_that_begins_before_the_checkpoint_may_have_pushes_of_other_slices(divided):
    world = divided()
    world.push_all()
    world.divide(1)
    world.push_all()
    world.save()
    world.push_all()
    for _ in range(2):
        for index in range(3):
            world.start_again(index)
        world.check()
        world.push_all()
    world.check()


def test_a_move_that_was_decided_holds_for_a_server_that_died_before_it_heard(divided):
    world = divided()
    world.push_all()

    def all_die():
        for index in range(3):
            world.kill(index)

    world.settle = lambda: None
    world.divide(1, all_die)
    for _ in range(3):
        for index in range(3):
            world.kill(index)
            world.start(index)
            world.meet(index)
        world.check()
        world.push_all()
    world.check()


def test_a_move_that_was_given_up_leaves_the_slices_as_they_were(divided):
    world = divided()
    world.push_all()
    before = world.routing

    def refuse():
        world.routing = before
        raise MovingError("not now")

    for _ in range(2):
        with pytest.raises(MovingError, match="not now"):
            world.divide(1, refuse)
        world.settle()
        world.check()
        world.push_all()
        world.start_again(0)
        world.check()
    world.divide(2)
    world.push_all()
    world.start_again(0)
    world.check()


def test_slices_of_an_attempt_that_failed_are_in_nobody_s_way(divided):
    world = divided(4)
    world.divide(3)
    world.push_all()
    before = world.routing

    def refuse():
        world.routing = before
        raise MovingError("not now")

    with pytest.raises(MovingError, match="not now"):
        world.divide(2, refuse)
    world.settle()
    world.push_all()
    # By the same epoch; the first server needs no elements for it.
    world.divide(4)
    world.push_all()
    world.start_again(0)
    world.check()


def test_a_log_of_a_resumed_job_goes_on_from_a_checkpoint_that_was_divided_otherwise(divided):
    world = divided()
    world.push_all()
    world.save()
    for index in range(3):
        world.kill(index)
    world.routing = Routing(5, 3, world.table(1).owners, 1)
    for index in range(3):
        world.start(index, replay=False)
        world.meet(index)
    world.look_after()
    assert world.status(0).wants_checkpoint
    world.push_all()
    world.check()
    world.start_again(0)
    world.check()
    assert world.servers[0].had[0].identity.sequence == 2


def test_without_a_log_the_pushes_are_known_that_all_shards_have(divided):
    """Of another division: their worker is there still, and would send them again."""
    world = divided()
    world.push_all()
    world.save()
    world.divide(1)
    world.kill(0)
    for each in (world.folder / "log").glob("ps-0000.*"):
        each.unlink()
    world.start(0)
    assert world.servers[0].had[0].identity.sequence == 1


def test_where_the_log_is_lost_the_slices_are_those_of_the_checkpoint(divided):
    world = divided()
    world.push_all()
    world.save()
    saved = world.whole.model.dense.block.values.copy()
    world.push_all()
    world.divide(1)
    world.kill(0)
    for each in (world.folder / "log").glob("ps-0000.*"):
        each.unlink()
    world.start(0)
    dense = world.servers[0].model.dense
    assert (dense.servers, dense.elements) == (1, SIZE)
    np.testing.assert_array_equal(dense.block.values, saved)


def test_a_pull_by_the_table_of_before_gets_no_other_slices(divided):
    """Not even one that came before the new table, and is answered after it."""
    world = divided()
    world.push_all()
    world.divide(1)
    model = world.servers[0].model
    assert model.moment(0, 0, -1, epoch=2).dense[0].size == SIZE
    with pytest.raises(WireError, match="the dense slices have moved since epoch 1"):
        model.moment(0, 0, -1, epoch=1)
    assert model.moment(0, 0, -2, epoch=1).dense is None


def test_a_push_that_was_looked_at_before_a_move_is_not_applied_after_it(divided, monkeypatch):
    world = divided(2)
    world.push_all()
    there, go_on, refused = threading.Event(), threading.Event(), []

    def wait(name, first=None):
        if name == "push-received":
            there.set()
            go_on.wait()

    monkeypatch.setattr(faults, "point", wait)

    def push():
        given = np.ones(SIZE, np.float32), np.ones(STATE, np.float32)
        # Of a worker that C does not know: it would not come to the point.
        frame = world.frame_of(1, world.routing, *given, worker=1 << 20)
        try:
            world.servers[1].push(frame)
        except WireError as error:
            refused.append(error.kind)

    world.pushed += 1
    late = threading.Thread(target=push)
    late.start()
    assert there.wait(60.0)
    world.divide(1)
    go_on.set()
    late.join()
    assert refused == [pb.STALE_ROUTING]
    world.pushed -= 1
    world.push_all()
    world.check()


@pytest.mark.parametrize("first", [0, 1])
def test_without_a_log_rows_that_came_have_the_pushes_of_the_shard_with_fewest(divided, first):
    """Shards of a checkpoint are cut each at its own moment: here with a push in between."""
    world = divided(2)
    world.push_all()
    attempt = begin(world.root, 1, "job")
    shards = {}
    for index in (first, 1 - first):
        server = world.servers[index]
        at = cut(server.model, server._pushes)
        shards[index] = write_shard(attempt, index, world.routing, server.model, at)
        world.push_all()
    complete(attempt, [shards[0], shards[1]], {})
    world.kept.append(1)
    world.divide(2)  # only rows move
    for index in range(2):
        world.kill(index)
        for each in (world.folder / "log").glob(f"ps-{index:04d}.*"):
            each.unlink()
        world.start(index)
        assert [each.identity.sequence for each in world.servers[index].had] == [1]


def test_a_server_keeps_no_logs_that_are_others_to_keep_by_a_new_table(divided):
    """It stays in the job, and would keep them until that ends."""
    world = divided(4, peers=True)
    world.push_all()
    for dense in (2, 3):
        world.divide(dense)
        world.push_all()
        kept = [{*server.held_logs._logs} for server in world.servers]
        keepers = [holder_index(index, dense) for index in range(4)]
        assert kept == [{i for i, at in enumerate(keepers) if at == each} for each in range(4)]
        assert [len(server.held_logs) > 0 for server in world.servers] == [*map(bool, kept)]
