"""A job whose servers publish, move rows, sweep and die, called as its master and workers do."""

from __future__ import annotations

import random
import threading

import numpy as np

from shoal.config.job import JobConfig
from shoal.files.storage import LocalStorage
from shoal.master.calls.move_slots import Servers, SlotMover
from shoal.master.calls.publish import DeltaPublisher, Position, PublishError
from shoal.master.calls.servers import Place, ServerConnections
from shoal.master.work.ids import ServerId
from shoal.native import ids as native_ids
from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.channels.rpc import Connection
from shoal.proto.values.routing import Routing
from shoal.proto.wire import frames
from shoal.ps.forgetting.clock import SECOND
from shoal.ps.update_log.file_sink import FileSink
from tests.deltas.published import write_model
from tests.deltas.reader import Reader
from tests.ps.logged import DIM, SPEC, DiedError, Faults, World

IDS = np.arange(400, dtype=np.int64) * 9973

SPAN = 64
"""Seconds after which rows expire."""


class PublishingWorld(World):
    """Servers with logs in files, and a master that publishes."""

    def __init__(self, folder, draw: random.Random, servers=3, **table):
        spec = pb.ModelSpec()
        spec.CopyFrom(SPEC)
        spec.tables[0].MergeFrom(pb.TableSpec(**table))
        self.draw = draw
        self.numbers = np.random.default_rng(draw.randrange(1 << 30))
        self.now = 0.0
        self.publish = str(folder / "live")
        self.live = LocalStorage(self.publish)
        self.points = []
        super().__init__(servers, folder, Faults(), spec=spec)
        self.config = JobConfig(
            model_def="m.m", training_data="t", publish=self.publish, token="token"
        )
        write_model(self.live, spec, self.config.job_id)
        self.calls = ServerConnections("")
        self.mover = SlotMover(self.calls, threading.Event())
        self.moves = 0
        self.publisher = DeltaPublisher(self.config, self.calls)
        self.newest = 0  # by the journal

    def _sink(self, index):
        return FileSink(self.folder / f"log-{index}", index, self.incarnations[index], sync=False)

    def start(self, index, *, replay=True):
        super().start(index, replay=replay)
        self.servers[index].moves.connect = lambda _, address: Connection(address)

    def close(self):
        self.calls.close()
        super().close()

    # ------------------------------------------------------------ the worker

    def push(self, among=IDS):
        """A push of some ids to all servers."""
        self.now += self.draw.choice([0, 0.4, 3, 10])
        ids = self.numbers.choice(among, self.draw.randint(1, 30), replace=False)
        owner = self.routing.owners[native_ids.slot_of(ids)]
        sequence = self.sequences[0, 0] = self.sequences.get((0, 0), 0) + 1
        for index in range(len(self.servers)):
            self.sequences[0, index] = sequence
            self._push_to(index, ids[owner == index], sequence)

    def _push_to(self, index, ids, sequence):
        dense = self.servers[index].model.dense
        lives = self.spec.tables[0].expire_after
        header = pb.PushRequest(
            identity=pb.PushIdentity(worker=0, sequence=sequence),
            routing_epoch=self.routing.epoch,
            tables=[0],
            ids_of=[0],
            has_dense=True,
            learning_rate=0.1,
            event_time=int(self.now * SECOND) if lives else None,
        )
        shapes = (ids.size, DIM), (dense.elements,), (dense.state_elements,)
        arrays = [self.numbers.normal(size=shape).astype(np.float32) for shape in shapes]
        self.call(index, methods.PUSH, frames.encode(header, [ids, *arrays]))

    def set_rows(self):
        """Set some rows of a server as they are, without a push."""
        index = self.draw.randrange(len(self.servers))
        owner = self.routing.owners[native_ids.slot_of(IDS)]
        ids = IDS[owner == index][self.numbers.integers(5) :: 40].copy()
        rows = self.numbers.normal(size=(ids.size, DIM)).astype(np.float32)
        header = pb.AssignRowsRequest(routing_epoch=self.routing.epoch, table=0)
        self.call(index, methods.ASSIGN_ROWS, frames.encode(header, [ids, rows]))

    # ------------------------------------------------------------ deaths and moves

    def die(self, index=None, *, replay=True):
        """A server dies and is started again, with its log or without."""
        if index is None:
            index = self.draw.randrange(len(self.servers))
        self.kill(index)
        self.start(index, replay=replay)
        self.meet(index)
        self.initialize(index, self.caller(index, methods.INITIALIZE_DENSE))

    def places(self):
        both = zip(self.addresses, self.incarnations, strict=True)
        return {ServerId(index): Place(*each) for index, each in enumerate(both)}

    def move(self):
        """Slots move from one server to another; a checkpoint follows."""
        source, target = self.draw.sample(range(len(self.servers)), 2)
        own = np.flatnonzero(self.routing.owners == source)
        owners = self.routing.owners.copy()
        some = self.draw.choice([1, 2, 3])
        owners[own[::some] if self.draw.random() < 0.5 else own[: own.size // some]] = target
        self.move_to(owners)

    def move_to(self, owners):
        """Slots move to these servers; a checkpoint follows."""
        after = Routing(self.routing.epoch + 1, len(self.servers), owners)
        self.moves += 1
        self.push()  # which all of them have
        there = Servers(self.places(), {}, ())
        message = after.to_message()
        self.mover.move(self.routing, message, self.moves, there, lambda _: None)
        self.routing = after
        self.mover.settle(lambda: (message, self.moves), self.places)
        self.checkpoint()

    # ------------------------------------------------------------ the master

    def publishes(self, tries=1):
        """Publish; True if that was done."""
        for _ in range(tries):
            try:
                position = Position(self.routing, 0, self.newest)
                self.newest = self.publisher.publish(self.places(), position).number
            except (PublishError, RuntimeError):  # the latter of a server that has died
                continue
            except DiedError:
                self.new_master()
                continue
            return True
        return False

    def publishes_while(self, name, happens):
        """Publish; once a process has come to a point, something happens there.

        True if that was done.
        """
        once = threading.Lock()

        def point(found, **_):
            if found == name and once.acquire(blocking=False):
                happens()

        self.points.append(point)
        try:
            return self.publishes()
        finally:
            self.points.remove(point)

    def come(self, name, first=lambda: None):
        """In place of `faults.point`."""
        for each in self.points:
            each(name, first=first)

    def new_master(self):
        """The master dies, and another one goes on."""
        self.publisher = DeltaPublisher(self.config, self.calls)

    # ------------------------------------------------------------ what came of it

    def assert_follows(self, reader: Reader):
        """What the reader has is what the servers have, bit for bit."""
        rows, trainable, state = {}, {}, {}
        for index, server in enumerate(self.servers):
            model = server.model
            for ids, values, *_ in model.tables[0].export():
                owned = self.routing.owners[native_ids.slot_of(ids)] == index
                rows.update(zip(ids[owned].tolist(), map(bytes, values[owned]), strict=True))
            parts = model.dense.block.values, model.dense.state
            for at, values, into in zip(model.dense.slices, parts, (trainable, state), strict=True):
                into.update(zip(range(at.start, at.stop), values.tolist(), strict=True))
        assert reader.rows.get(0, {}) == rows
        assert reader.dense == {"trainable": trainable, "state": state}
