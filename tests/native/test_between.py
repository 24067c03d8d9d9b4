"""The way of pushes: who enters without Python and with it, and what is done between them."""

import threading

import numpy as np
import pytest

from shoal.native.answering import Answerer
from shoal.native.between import NEVER, Between
from shoal.native.pushes import PushRecord
from shoal.proto import shoal_pb2 as pb
from tests.native.test_answering import DIM, KIND, PUSH, Served
from tests.native.test_concurrency import together
from tests.native.test_pushing import push

CAP, EVERY = 60, 7


class Swept(Served):
    """An answerer whose table has a cap, and which is swept behind each 7th push at the latest."""

    def __init__(self):
        super().__init__()
        self.between = Between(self.moments, [self.table])
        self.between.cap([(CAP, NEVER)])
        self.between.now = 0
        self.wrong, self.parts, self.most = [], 0, 0
        self.say(0)
        self.answerer = Answerer(KIND, PUSH, [1.0])
        self.answerer.serve_model(
            [(self.table, False, False)],
            self.moments,
            between=self.between,
            sweep=self.sweep,
        )
        self.answerer.route(1, None)
        self.answerer.open()
        self.records = [PushRecord() for _ in range(3)]
        for worker, record in enumerate(self.records):
            self.answerer.know(worker, record)

    def say(self, step):
        self.between.say(until=NEVER, leap=0, due_from=step + EVERY, suspended=False)

    def sweep(self):
        """Remove all rows; all that began is applied, and nothing begins."""
        before = self.moments.version, self.moments.step
        self.most = max(self.most, len(self.table))
        for ids, *_ in list(self.table.export()):
            self.table.remove(ids)
        self.parts += 1
        step = self.moments.next_step()
        if before != (self.moments.version, step - 1) or before[0] + self.parts != step:
            self.wrong.append((before, self.parts, step))
        self.say(step)
        self.between.open()
        return True


def test_pushes_without_python_and_with_it_beside_sweeps_and_pulls():
    served, count = Swept(), 150

    def work(worker):
        connection, draw = served.connected(), np.random.default_rng(worker)
        for sequence in range(1, count + 1):
            ids = np.unique(draw.integers(0, 1000, 12))
            connection.send(push(worker, sequence, ids, event_time=10 * sequence + worker), PUSH)
            reply, _ = connection.receive(pb.PushReply)
            assert reply.applied
        connection.close()

    def python():
        draw = np.random.default_rng(9)
        for sequence in range(1, count + 1):
            ids = np.unique(draw.integers(0, 1000, 12))
            step, _ = served.between.enter(3, 0, 10 * sequence)
            ones = np.ones((ids.size, DIM), np.float32)
            served.table.update(ids, ones, learning_rate=-1.0, step=step)
            served.moments.count([(0, 0.0)], None, 0, (3, 0, sequence))
            if served.between.leave(True):
                served.sweep()

    def pull():
        connection = served.connected()
        for _ in range(100):
            rows = connection.pull(np.arange(50))[1][0]
            assert (rows == rows[:, :1]).all()
            assert served.between.now >= 0
        connection.close()

    together(lambda: work(0), lambda: work(1), lambda: work(2), python, pull)
    assert served.wrong == []
    assert served.moments.version == 4 * count
    assert served.parts >= 4 * count // (EVERY + 5)
    assert served.most <= CAP + 4 * 12
    assert served.between.now == 10 * count + 2
    assert [record.sequence for record in served.records] == [count] * 3
    assert not served.between.closed


@pytest.mark.parametrize(
    ("now", "time", "plain"),
    [
        (None, None, True),
        (None, 5, False),
        (100, 100, True),
        (100, 149, True),
        (100, 150, False),
        (100, 131, False),
        (100, 1, True),
    ],
    ids=["untimed", "the first", "the same", "later", "an entry", "a leap", "behind"],
)
def test_a_push_is_plain_where_its_time_moves_nothing_but_the_clock(now, time, plain):
    served = Swept()
    between = served.between
    between.now = now
    leap = 30 if time == 131 or time == 1 else 0
    between.say(until=150, leap=leap, due_from=NEVER, suspended=False)
    assert between.enter(0, 0, time) == ((1, 0) if plain else None)
    assert served.moments.step == plain
    assert between.now == (max(now, time) if plain and time is not None else now)
    assert between.behind == (time == 1)


def test_who_fails_leaves_the_way_open_for_the_next_one():
    served = Swept()
    between = served.between
    between.say(until=NEVER, leap=0, due_from=0, suspended=False)
    between.enter(0, 0, None)
    assert between.closed
    assert not between.leave(False)
    assert not between.closed
    between.enter(0, 0, None)
    assert between.leave(True)
    assert between.closed
    entered = threading.Thread(target=between.enter, args=(0, 0, None))
    entered.start()
    between.open()
    entered.join()
    assert served.moments.step == 3


def test_while_sweeps_are_suspended_no_cap_closes_the_way():
    served = Swept()
    between = served.between
    served.table.assign(np.arange(CAP + 1), np.ones((CAP + 1, DIM), np.float32))
    between.say(until=NEVER, leap=0, due_from=NEVER, suspended=True)
    between.enter(0, 0, None)
    assert not between.leave(True)
    between.say(until=NEVER, leap=0, due_from=NEVER, suspended=False)
    between.enter(0, 0, None)
    assert between.leave(True)
