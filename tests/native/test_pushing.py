"""Pushes applied without Python, on a socket of their own, beside all that may be under way."""

import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from shoal.native.pushes import PushRecord
from shoal.proto import shoal_pb2 as pb
from shoal.proto.wire import frames
from tests.native.test_answering import DIM, KIND, PUSH, Served, request
from tests.native.test_concurrency import together


def push(worker, sequence, ids, *, rate=-1.0, dense=True, **header):
    """The frame of a push whose gradients are ones."""
    message = pb.PushRequest(
        identity=pb.PushIdentity(worker=worker, sequence=sequence),
        routing_epoch=1,
        tables=[0],
        ids_of=[0],
        has_dense=dense,
        learning_rate=rate,
        pulled_version=2**40,
        **header,
    )
    ones = [np.ones((len(ids), DIM)), np.ones(3), np.ones(5)][: 1 + 2 * dense]
    return frames.encode(
        message, [np.asarray(ids, np.int64), *(each.astype(np.float32) for each in ones)]
    )


@pytest.fixture
def served():
    made = Served()
    made.records = [PushRecord() for _ in range(4)]
    for worker, record in enumerate(made.records):
        made.answerer.know(worker, record)
    return made


def test_pushes_pulls_fences_and_counts_beside_one_another(served):
    """Rows, dense values, versions and records say the same at the end, and in each moment."""
    ids, steps = np.arange(40), 200

    def work(worker):
        connection = served.connected()
        for sequence in range(1, steps + 1):
            connection.send(push(worker, sequence, ids), PUSH)
            reply, _ = connection.receive(pb.PushReply)
            assert reply.applied
            header, (rows, _, state) = connection.pull(ids, caller=pb.PushIdentity(worker=worker))
            assert header.applied == sequence
            assert header.version >= reply.version
            assert (state == header.version).all()
            assert (rows == rows[:, :1]).all()
        connection.close()

    def look():
        for _ in range(300):
            with served.records[1] as record:
                assert record.records_done == record.task == 0
                before = record.sequence
                assert served.moments.version >= before
            served.moments.distributions()
            served.answerer.durations(PUSH)

    def count():
        for _ in range(steps):
            served.table.update(
                ids,
                np.ones((40, DIM), np.float32),
                learning_rate=-1.0,
                step=served.moments.ticket(3, 0)[0],
            )
            served.moments.count([(0, 0.0)], np.ones(5, np.float32), 0, (3, 0, 1))

    together(lambda: work(0), lambda: work(1), lambda: work(2), look, count)
    total = 4 * steps
    assert served.moments.version == served.moments.step == total
    assert (served.table.lookup(ids) == total).all()
    assert (served.block.values == 3 * steps).all()
    assert (served.moments.state() == total).all()
    assert [record.sequence for record in served.records] == [steps] * 3 + [0]
    staleness, age = served.moments.distributions()
    assert staleness[1] == age[1] == total
    assert sum(served.answerer.durations(PUSH)[0]) == 3 * steps
    assert sum(served.answerer.durations(KIND)[0]) == 3 * steps


@pytest.mark.parametrize(
    "frame",
    [push(0, 1, [1]), push(1, 1, [1]), push(0, 2, [1], hold=1), push(9, 1, [1]), request([1])],
    ids=["applied before", "fenced", "to be held", "a worker without a record", "a pull"],
)
def test_what_is_no_plain_push_is_returned_as_it_came(served, frame):
    with served.records[0] as record:
        record.sequence = 1
    with served.records[1] as record:
        record.fenced = 0
    connection = served.connected()
    connection.send(frame, PUSH)
    for_python, start, end = connection.result()
    assert for_python
    assert bytes(connection.buffer[start + 16 : end]) == frame
    assert served.moments.version == served.moments.step == 0
    connection.close()


def test_after_the_end_of_pushes_there_is_none(served):
    assert served.answerer.push(push(0, 1, [1])) is not None
    served.answerer.take_pushes(False)
    assert served.answerer.push(push(0, 2, [1])) is None
    assert served.records[0].sequence == 1


SHORT_OF_MEMORY = """
    import resource
    import numpy as np
    from shoal.native.answering import Answerer
    from tests.native.test_answering import KIND, PUSH, Served
    from tests.native.test_pushing import DIM, PushRecord, push

    served, ended = Served(), []
    served.answerer = Answerer(KIND, PUSH, [1.0], broken=ended.append)
    served.answerer.serve_model([(served.table, False, False)], served.moments)
    served.answerer.route(1, None)
    served.answerer.open()
    record = PushRecord()
    served.answerer.know(0, record)
    size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    frame = push(0, 1, range(50_000))
    resource.setrlimit(resource.RLIMIT_AS, (size + (8 << 20), resource.RLIM_INFINITY))
    try:
        served.answerer.push(frame)
    except MemoryError as error:
        assert ended == [error], ended
        assert record.sequence == 0
        print("ended itself:", error)
"""


@pytest.mark.skipif(
    "SHOAL_SANITIZED" in os.environ, reason="sanitizers reserve more than all of it"
)
def test_a_push_that_finds_no_memory_for_its_rows_ends_the_server():
    """In a process of its own, whose memory is limited."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SHORT_OF_MEMORY)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "ended itself: a part of a push was applied" in done.stdout
