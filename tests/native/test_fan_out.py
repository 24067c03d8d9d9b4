"""Requests to many servers in C, over real sockets whose other ends say what a test wants."""

import signal
import socket
import struct
import subprocess
import sys
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.native import fan_out, values
from shoal.native.fan_out import FanOut
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError
from shoal.proto.plane.message import ANSWER, PREFIX_BYTES, REFUSAL, parse, prefix
from shoal.proto.wire import frames
from tests.examples import examples
from tests.fuzz.mutations import mutated
from tests.native import answer_reader
from tests.native.answer_reader import DENSE, DIMS, ROWS, message, pull_of

PATIENCE = 60.0


def pairs(count):
    """Sockets of this side, as numbers, and all of them; those of the other side."""
    made = [socket.socketpair() for _ in range(count)]
    return (
        np.array([near.fileno() for near, _ in made], np.int32),
        [near for near, _ in made],
        [far for _, far in made],
    )


def close(*sockets):
    for each in sockets:
        each.close()


def places(servers):
    return [np.zeros((servers * ROWS, dim), np.float32) for dim in DIMS] + [
        np.zeros(servers * size, np.float32) for size in DENSE
    ]


def whole_message(end):
    """One message from a socket, blocking."""
    with end.makefile("rb") as stream:
        start = stream.read(PREFIX_BYTES)
        return start + stream.read(parse(start)[1])


def test_plain_answers_are_taken_and_others_left():
    assert [answer_reader.check(each) for each in answer_reader.seeds()] == [True, True, False]
    with pytest.raises(WireError):
        answer_reader.check(answer_reader.refusal())


@given(st.randoms(use_true_random=False))
def test_any_bytes_are_an_answer_as_python_reads_it_or_come_back_as_they_came(chance):
    for _ in range(8):
        data = mutated([*answer_reader.seeds(), answer_reader.refusal()], chance)
        try:
            answer_reader.check(data)
        except WireError:
            continue


@given(st.data())
def test_answers_may_come_in_any_pieces_and_order(data):
    servers = data.draw(st.integers(1, 4))
    reply = pb.PullReply(version=5, has_dense=True, time=2.5, applied=1)
    answer = message(reply)
    cuts = [
        sorted(data.draw(st.lists(st.integers(0, len(answer)), max_size=5))) for _ in range(servers)
    ]
    order = data.draw(st.permutations([s for s in range(servers) for _ in range(6)]))
    numbers, near, far = pairs(servers)
    targets = places(servers)
    call = pull_of(targets, servers)
    pieces = [
        iter([answer[a:b] for a, b in zip([0, *cut], [*cut, len(answer)], strict=True)] + [b""] * 6)
        for cut in cuts
    ]

    def speak():
        for each in far:
            whole_message(each)
        for server in order:
            far[server].sendall(next(pieces[server]))

    speaker = threading.Thread(target=speak)
    speaker.start()
    call.run(numbers, PATIENCE)
    speaker.join()
    close(*near, *far)
    assert (call.status == fan_out.DONE).all()
    assert call.numbers[:, 1].tolist() == [5] * servers
    assert call.numbers[:, 3].view(np.float64).tolist() == [2.5] * servers
    for target, dim in zip(targets, DIMS, strict=False):
        one = np.arange(ROWS * dim, dtype=np.float32).reshape(ROWS, dim)
        np.testing.assert_array_equal(target, np.concatenate([one] * servers))
    np.testing.assert_array_equal(targets[-2], np.tile(np.arange(DENSE[0]), servers))


def test_each_failure_is_of_one_server():
    """0 answers, 1 refuses, 2 closes in its rows, 3 says nothing, 4 is not asked, 5 is
    reset, 6 says something that is no message."""
    numbers, near, far = pairs(7)
    numbers[4] = -1
    detail = pb.ErrorDetail(kind=pb.STALE_ROUTING, message="old").SerializeToString()
    refusal = prefix(REFUSAL, len(detail)) + detail
    far[0].sendall(message(pb.PullReply(version=3)))
    far[1].sendall(refusal)
    far[2].sendall(message(pb.PullReply(version=3))[:-8])
    far[2].shutdown(socket.SHUT_WR)
    far[5].close()
    far[6].sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    call = pull_of(places(7), 7)
    call.run(numbers, 0.2)
    close(*near, *far)
    assert call.status.tolist() == [
        fan_out.DONE,
        fan_out.UNREAD,
        fan_out.CLOSED,
        fan_out.LATE,
        0,
        fan_out.BROKEN,
        fan_out.UNREAD,
    ]
    assert call.kept(1) == refusal
    assert call.kept(6).startswith(b"HTTP/1.1")
    assert call.error(5) > 0
    assert call.numbers[:, 1].tolist() == [3, 0, 0, 0, 0, 0, 0]


def test_what_comes_behind_an_answer_is_not_lost():
    """Nobody may say more than was asked for: Python finds it where it reads next."""
    numbers, near, far = pairs(1)
    said = message(pb.PullReply()) + b"more"
    far[0].sendall(said)
    call = pull_of(places(1))
    call.run(numbers, PATIENCE)
    close(*near, *far)
    assert (call.status[0], call.kept(0)) == (fan_out.UNREAD, said)


def test_a_large_request_and_a_large_answer_pass_each_other():
    """More than the buffers of a socket hold; the other servers are done meanwhile."""
    n = 1 << 18
    offsets = np.array([0, 1, 2, n])
    rows = np.zeros((n, 2), np.float32)
    call = FanOut(3, 2, ANSWER, 1 << 30)
    call.specs(9)
    ids = np.arange(n)
    call.send(ids, offsets, pb.INT64)
    call.want(rows, offsets, pb.FLOAT32)
    call.answers(fields=6, specs=6)
    numbers, near, far = pairs(3)
    found = {}

    def serve(server):
        _, arrays = frames.decode(whole_message(far[server])[PREFIX_BYTES:], pb.PullRequest)
        found[server] = arrays[0]
        frame = frames.encode(
            pb.PullReply(), [np.repeat(arrays[0][:, None], 2, axis=1).astype(np.float32)]
        )
        far[server].sendall(prefix(ANSWER, len(frame)) + frame)

    threads = [threading.Thread(target=serve, args=(server,)) for server in range(3)]
    for each in threads:
        each.start()
    call.run(numbers, PATIENCE)
    for each in threads:
        each.join()
    close(*near, *far)
    assert (call.status == fan_out.DONE).all()
    np.testing.assert_array_equal(np.concatenate([found[s] for s in range(3)]), ids)
    np.testing.assert_array_equal(rows, np.repeat(ids[:, None], 2, axis=1))


def test_a_server_that_takes_nothing_is_given_up_and_one_of_too_much_is_not_begun():
    n = 1 << 20
    numbers, near, far = pairs(2)
    far[1].sendall(message(pb.PullReply()))
    call = FanOut(2, 2, ANSWER, 16 * n)
    call.specs(9)
    call.send(np.arange(n), np.array([0, n - 1, n]), pb.INT64)
    call.answers(fields=6, specs=6)
    call.run(numbers, 0.1)
    # The other one's answer has arrays that nobody wants.
    assert call.status.tolist() == [fan_out.UNTAKEN, fan_out.UNREAD]
    small = FanOut(2, 2, ANSWER, 1000)
    small.specs(9)
    small.send(np.arange(n), np.array([0, n - 1, n]), pb.INT64)
    small.answers(fields=6, specs=6)
    small.run(numbers, 0.1)
    assert small.status[0] == fan_out.UNSENT
    close(*near, *far)


def test_a_signal_ends_a_call_and_one_that_is_handled_does_not():
    """In the main thread, which waits for a server that says nothing."""
    numbers, near, far = pairs(1)
    handled = []

    def handle(*_):
        handled.append(1)
        if len(handled) == 1:
            signal.setitimer(signal.ITIMER_REAL, 0.02)
        else:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, handle)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        with pytest.raises(KeyboardInterrupt):
            pull_of(places(1)).run(numbers, PATIENCE)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        close(*near, *far)
    assert len(handled) == 2


def test_a_server_that_is_killed_ends_its_own_exchange():
    numbers, near, far = pairs(2)
    says = "import socket, sys; socket.socket(fileno=int(sys.argv[1])).recv(1); print(flush=True)"
    number = far[0].fileno()
    server = subprocess.Popen(
        [sys.executable, "-c", f"{says}; sys.stdin.read()", str(number)],
        pass_fds=[number],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    far[0].close()
    call = pull_of(places(2), 2)
    running = threading.Thread(target=call.run, args=(numbers, PATIENCE))
    running.start()
    server.stdout.readline()  # the request is there
    server.kill()
    far[1].sendall(message(pb.PullReply()))
    running.join(PATIENCE)
    server.communicate()
    close(*near, *far)
    assert call.status[0] in (fan_out.CLOSED, fan_out.BROKEN)
    assert call.status[1] == fan_out.DONE


def test_another_thread_ends_a_call_by_shutting_its_connections():
    numbers, near, far = pairs(2)
    call = pull_of(places(2), 2)
    running = threading.Thread(target=call.run, args=(numbers, PATIENCE))
    running.start()
    for each in far:
        whole_message(each)  # so both requests are out
    for each in near:
        each.shutdown(socket.SHUT_RDWR)
    running.join(PATIENCE)
    assert not running.is_alive()
    close(*near, *far)
    assert (call.status == fan_out.CLOSED).all()


def test_rows_of_16_bits_are_decoded_into_their_places():
    numbers, near, far = pairs(2)
    rows = np.zeros((4, 3), np.float32)
    exact = np.arange(12, dtype=np.float32).reshape(4, 3)
    for kind, name in ((pb.BFLOAT16, "bfloat16"), (pb.FLOAT16, "float16")):
        rows[:] = 0
        offsets = np.array([0, 1, 4])
        coded = values.encoded(exact, name)
        call = FanOut(2, 2, ANSWER, 1 << 20)
        call.specs(9)
        call.want(np.empty((4, 3), coded.dtype), offsets, kind, decoded=rows)
        call.answers(fields=6, specs=6)
        for server, part in enumerate((coded[:1], coded[1:])):
            frame = frames.encode(pb.PullReply(), [part])
            far[server].sendall(prefix(ANSWER, len(frame)) + frame)
        call.run(numbers, PATIENCE)
        assert (call.status == fan_out.DONE).all()
        np.testing.assert_array_equal(rows, exact)
    close(*near, *far)


def test_more_arrays_than_one_call_of_the_system_takes_are_sent_and_received():
    count = 600
    numbers, near, far = pairs(1)
    call = FanOut(1, 2, ANSWER, 1 << 24)
    call.specs(9)
    # Of an odd size: padding lies between them.
    sent = [np.full((1, 3), k, np.float32) for k in range(count)]
    rows = [np.zeros((1, 3), np.float32) for _ in range(count)]
    for array, target in zip(sent, rows, strict=True):
        call.send(array, np.array([0, 1]), pb.FLOAT32)
        call.want(target, np.array([0, 1]), pb.FLOAT32)
    call.answers(fields=6, specs=6)
    got = []

    def serve():
        got.append(whole_message(far[0]))
        frame = frames.encode(pb.PullReply(version=1), sent)
        far[0].sendall(prefix(ANSWER, len(frame)) + frame)

    server = threading.Thread(target=serve)
    server.start()
    call.run(numbers, PATIENCE)
    server.join()
    close(*near, *far)
    assert call.status[0] == fan_out.DONE
    frame = frames.encode(pb.PullRequest(), sent)
    assert got == [prefix(2, len(frame)) + frame]
    np.testing.assert_array_equal(np.concatenate(rows), np.concatenate(sent))


@given(
    st.lists(st.lists(st.floats(width=32), max_size=6), min_size=1, max_size=4),
    st.sampled_from(["bfloat16", "float16"]),
)
def test_parts_are_scaled_and_rounded_as_single_ones(parts, name):
    kind = {"bfloat16": pb.BFLOAT16, "float16": pb.FLOAT16}[name]
    gradients = np.array([x for part in parts for x in part], np.float32)[:, None]
    offsets = np.cumsum([0, *map(len, parts)])
    coded, scales = fan_out.rounded(gradients, offsets, kind)
    dtype = values.DTYPES[name]
    for k in range(len(parts)):
        part = gradients[offsets[k] : offsets[k + 1]]
        scale = values.scale_of(part, dtype)
        assert scales[k] == scale
        one = values.encoded(part if scale == 1.0 else part * np.float32(1.0 / scale), name)
        assert one.tobytes() == coded[offsets[k] : offsets[k + 1]].tobytes()


def test_what_does_not_fit_together_is_refused():
    ids, offsets = np.arange(4), np.array([0, 2, 4])
    call = FanOut(2, 2, ANSWER, 1000)
    with pytest.raises(ValueError, match="what answers have"):
        call.run(np.zeros(2, np.int32), 1.0)
    for wrong in ([0, 2, 5], [0, 3, 2], [-1, 2, 4]):
        with pytest.raises(ValueError, match="offsets"):
            call.send(ids, np.array(wrong), pb.INT64)
    with pytest.raises(ValueError, match="does not travel"):
        call.send(ids, offsets, pb.FLOAT32)
    with pytest.raises(ValueError, match="does not travel"):
        call.send(np.zeros((4, 0)), offsets, pb.INT64)
    with pytest.raises(ValueError, match="contiguous"):
        call.send(np.zeros((4, 4))[:, ::2], offsets, pb.INT64)
    with pytest.raises(ValueError, match="shape"):
        call.want(np.zeros((4, 2), np.uint16), offsets, pb.BFLOAT16, decoded=np.zeros((2, 2), "f4"))
    fixed = np.zeros((4, 2), np.float32)
    fixed.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        call.want(fixed, offsets, pb.FLOAT32)
    call.send(ids, offsets, pb.INT64, np.ones(2, np.int64))
    with pytest.raises(ValueError, match="come last"):
        call.send(ids, offsets, pb.INT64)
    with pytest.raises(ValueError, match="the same servers"):
        call.send(ids, offsets, pb.INT64, np.ones(2, np.int64))
    with pytest.raises(ValueError, match="fields"):
        call.answers(fields=9, specs=1)
    call.integers(3, np.zeros(2, np.int64))
    with pytest.raises(ValueError, match="rising"):
        call.specs(3)
    for packed in (b"\x18\x01", b"\x08", b"\x0b", b"\x09\x01", b"\x22\x05a"):
        with pytest.raises(ValueError, match="no fields of a header"):
            call.shared(packed)


def test_a_header_larger_than_the_room_is_pythons():
    numbers, near, far = pairs(1)
    said = prefix(ANSWER, 1 << 20) + struct.pack("<4sI", b"SHL1", 1 << 19)
    far[0].sendall(said)
    call = FanOut(1, 2, ANSWER, 1 << 30)
    call.specs(9)
    call.answers(fields=6, specs=6)
    call.run(numbers, PATIENCE)
    close(*near, *far)
    assert (call.status[0], call.kept(0)) == (fan_out.UNREAD, said)


def test_calls_of_several_threads_do_not_disturb_each_other():
    def worker(seed):
        rng = np.random.default_rng(seed)
        numbers, near, far = pairs(3)
        for _ in range(examples(50)):
            version = int(rng.integers(1, 1 << 40))
            for each in far:
                each.sendall(message(pb.PullReply(version=version)))
            call = pull_of(places(3), 3)
            call.run(numbers, PATIENCE)
            assert call.numbers[:, 1].tolist() == [version] * 3
            for each in far:
                whole_message(each)
        close(*near, *far)
        done.append(seed)

    done = []
    threads = [threading.Thread(target=worker, args=(seed,)) for seed in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sorted(done) == [0, 1, 2, 3]
