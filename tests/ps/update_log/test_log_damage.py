"""Logs that are not as they were written: what can be done again is, and the rest is told."""

import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.proto import shoal_pb2 as pb
from shoal.proto.wire import frames
from shoal.ps.model.dense import DenseSlices
from shoal.ps.model.gradients import Ticket
from shoal.ps.update_log.peer_store import ENTRY_BYTES
from shoal.ps.update_log.records import HEAD_BYTES, Damage, Record, read_records, records_at
from tests.examples import examples
from tests.ps.logged import Faults, World, content, lost, numbers
from tests.ps.update_log.written_log import PUSHES, Written


@pytest.fixture(scope="module", params=[(0, False), (3, False), (3, True)], ids=str)
def written(request, tmp_path_factory):
    made = Written(tmp_path_factory.mktemp("job"), *request.param)
    yield made
    made.job.close()


@settings(max_examples=examples(60))
@given(data=st.data())
def test_a_damaged_log_gives_a_beginning_and_says_where_it_ends(written, data):
    """Bytes changed, taken out, cut off, zeroed, or a whole segment gone."""
    which = data.draw(st.integers(0, len(written.segments) - 1))
    path, whole = written.segments[which], written.bytes[which]
    at = data.draw(st.integers(0, len(whole) - 1))
    count = data.draw(st.integers(1, 400))
    how = data.draw(st.sampled_from(["flip", "zero", "take out", "cut", "remove"]))
    if how == "flip":
        damaged = bytearray(whole)
        damaged[at] ^= data.draw(st.integers(1, 255))
        path.write_bytes(damaged)
    elif how == "zero":
        path.write_bytes(whole[:at] + bytes(len(whole[at : at + count])) + whole[at + count :])
    elif how == "take out":
        path.write_bytes(whole[:at] + whole[at + count :])
    elif how == "cut":
        path.write_bytes(whole[:at])
    else:
        path.unlink()
    try:
        server, unprotected = written.restart()
        version = server.model.version
        if server.model.dense.initialized:
            assert content(server.model) == written.contents[version]
        # The register is exact: what the workers know of and it lacks is what is lost.
        assert lost(server) == PUSHES - version
        assert server.model.dense.initialized or not version
        # Only what a write that was cut off would leave as well is not told by the file: that
        # is the end of its last segment.
        end = how in ("cut", "remove", "take out", "zero") and which == len(written.segments) - 1
        if version < PUSHES and not end:
            assert "its log" in unprotected
            assert str(path.parent) in unprotected or "reach back" in unprotected
    finally:
        written.mend()


def test_damage_in_the_middle_is_told_by_file_place_and_cost(tmp_path):
    written = Written(tmp_path, 0, complete=False)
    (segment,) = written.segments
    places = [len(b"".join(each)) for each in _parts(segment)]
    data = bytearray(written.bytes[0])
    at = sum(places[:3])  # the base, and two updates
    data[at + 70] ^= 1
    segment.write_bytes(data)
    server, unprotected = written.restart()
    assert server.model.version == 2
    assert unprotected == (
        f"its log is damaged: {segment} at byte {at}; 6 updates from there on cannot be done again"
    )
    assert lost(server) == 6
    written.job.close()


def _parts(segment):
    """The bytes of each record of a segment that is whole."""
    for each in read_records(segment):
        assert isinstance(each, Record)
        yield [bytes(HEAD_BYTES), each.label, each.frame]


def test_a_record_that_is_gone_when_it_is_read_again_is_told(tmp_path):
    written = Written(tmp_path, 0, complete=False)
    (segment,) = written.segments
    places = [each.offset for each in read_records(segment)]
    assert [each.offset for each in records_at(segment, places[::-1])] == places[::-1]
    with pytest.raises(OSError, match=f"another process changes it at byte {places[1] + 1}"):
        list(records_at(segment, [places[0], places[1] + 1]))
    written.job.close()


def test_damage_that_a_later_part_of_the_log_does_not_need_costs_nothing(tmp_path):
    """Before the cut of a checkpoint that is complete, and was not let go of yet."""
    written = Written(tmp_path, 3, complete=True)
    first, data = written.segments[0], bytearray(written.bytes[0])
    data[len(data) // 2] ^= 1
    first.write_bytes(data)
    assert any(isinstance(each, Damage) for each in read_records(first))
    server, unprotected = written.restart()
    assert (content(server.model), unprotected) == (written.contents[-1], "")
    assert lost(server) == 0
    written.job.close()


def test_a_length_that_points_beyond_the_file_is_damage_and_not_its_end(tmp_path):
    written = Written(tmp_path, 0, complete=False)
    (segment,) = written.segments
    data = bytearray(written.bytes[0])
    at = sum(len(b"".join(each)) for each in list(_parts(segment))[:3])
    data[at + 14] = 255  # of the length of the push
    segment.write_bytes(data)
    server, unprotected = written.restart()
    assert server.model.version == 2
    assert f"{segment} at byte {at}; 6 updates" in unprotected
    written.job.close()


# ------------------------------------------------------------ entries that cannot be done again


def test_an_entry_that_no_server_takes_ends_the_log_and_not_the_server(tmp_path):
    """As an earlier version may have logged it before it was refused."""
    job = World(1, tmp_path, Faults())
    draw = random.Random(7)
    for ids in numbers(3):
        job.push(0, ids, draw)
    before = content(job.servers[0].model)
    header = pb.PushRequest(
        identity=pb.PushIdentity(worker=1, sequence=1), routing_epoch=1, tables=[0], ids_of=[0]
    )
    arrays = [np.array([1.0, 2.0]), np.ones((2, 3), np.float32)]  # ids of float64
    job.logs[0].append(Ticket(4, 0), frames.encode(header, arrays))()
    job.push(0, numbers(1)[0], draw)
    job.kill(0)
    job.start(0)
    job.meet(0)
    assert content(job.servers[0].model) == before
    unprotected = job.status(0).unprotected
    assert "its log is damaged: the update of step 4" in unprotected
    assert "ids are int64" in unprotected
    assert "2 updates from there on cannot be done again" in unprotected
    assert lost(job.servers[0]) == 1
    # A new log begins, and the server goes on.
    job.look_after()
    job.checkpoint()
    assert job.status(0).unprotected == ""
    job.close()


def test_an_entry_that_is_applied_in_part_leaves_nothing_in_the_model(tmp_path, monkeypatch):
    job = World(1, tmp_path, Faults())
    draw = random.Random(7)
    contents = []
    for turn, ids in enumerate(numbers(6)):
        if turn == 2:
            job.checkpoint()
        job.push(turn % 2, ids, draw)
        contents.append(content(job.servers[0].model))
    job.kill(0)
    update, calls = DenseSlices.update, Counter()

    def failing(dense, gradient, rate, step):
        calls[step] += 1
        if step == 5:  # its rows are updated by now
            raise MemoryError("no memory for it")
        update(dense, gradient, rate, step)

    monkeypatch.setattr(DenseSlices, "update", failing)
    job.start(0)
    job.meet(0)
    assert content(job.servers[0].model) == contents[3]
    assert calls == {3: 2, 4: 2, 5: 1}
    unprotected = job.status(0).unprotected
    assert "the update of step 5" in unprotected
    assert "MemoryError" in unprotected
    assert "2 updates from there on cannot be done again" in unprotected
    assert lost(job.servers[0]) == 2
    job.close()


def test_a_server_that_takes_its_log_over_lets_go_of_what_its_checkpoint_has(tmp_path):
    """Of which its earlier incarnation was not told any more."""
    job = World(2, tmp_path, Faults())
    draw = random.Random(7)
    for ids in numbers(3):
        job.push(0, ids, draw)
    job.checkpoint("complete")
    for ids in numbers(2):
        job.push(0, ids, draw)
    job.kill(0)
    job.start(0)
    job.meet(0)
    job.same()
    held = job.servers[1].held_logs._logs[0]
    assert [step for step, _ in held.entries()] == [4, 5]
    assert [(each.worker, each.sequence) for each in held.base.applied] == [(0, 3)]
    status = job.status(0)
    assert status.log_bytes == sum(ENTRY_BYTES + len(frame) for _, (_, frame) in held.entries())
    for ids in numbers(2):
        job.push(1, ids, draw)
    job.kill(0)
    job.start(0)
    job.meet(0)
    job.same()
    assert lost(job.servers[0]) == 0
    job.close()
