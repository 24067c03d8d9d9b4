"""Entries of a log, many in a message."""

from hypothesis import given
from hypothesis import strategies as st

from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.channels import serving
from shoal.ps.update_log import batches
from shoal.ps.update_log.batches import packed, unpacked
from shoal.ps.update_log.peer_sink import PeerSink
from shoal.ps.update_log.peer_store import PeerLogs


def labelled(entries):
    return [(entry.SerializeToString(), frame) for entry, frame in entries]


@given(st.lists(st.tuples(st.integers(0, 2**40), st.binary(max_size=300)), max_size=40))
def test_what_is_unpacked_is_what_was_packed_in_messages_of_a_bounded_size(drawn):
    entries = [(pb.LogEntry(log="a", step=step), frame) for step, frame in drawn]
    messages = [message.joined() for message in packed(labelled(entries))]
    assert [len(message) for message in packed(labelled(entries))] == list(map(len, messages))
    assert [each for message in messages for each in unpacked(message)] == entries
    assert len(messages) <= 1


def test_a_log_of_many_small_pushes_is_taken_in_few_messages(connect):
    """M9: over a real socket; two messages an entry before."""
    held = PeerLogs()
    base = pb.LogBase(log="a", server=0)
    held.begin(pb.BeginLogRequest(base=base))
    pushes = [step.to_bytes(8, "little") * 128 for step in range(1, 5001)]
    for step, frame in enumerate(pushes, 1):
        entry = pb.LogEntry(log="a", server=0, step=step, staleness=step % 3)
        held.append((pb.LogGroup(first=step, entries=[entry], sizes=[len(frame)]), frame))
    messages = []

    def take(request):
        for message in held.take(request):
            messages.append(len(message))
            yield message

    server, port = serving.serve({methods.TAKE_LOG: take}, "127.0.0.1:0", 1)
    address = f"127.0.0.1:{port}"
    where = lambda *_: address  # noqa: E731
    sink = PeerSink(0, 1, lambda: 1, lambda _: "", where, where, 10.0, 60.0)
    try:
        taken = sink.take()
        assert taken.base.log == "a"
        found = list(taken.entries)
    finally:
        sink.close()
        server.stop(None).wait()
    assert [bytes(frame) for _, frame in found] == pushes
    assert [entry.step for entry, _ in found] == list(range(1, 5001))
    assert len(messages) == 1 + 3  # the base, and 5 MiB
    assert max(messages) < batches.BATCH_BYTES + (1 << 18)
