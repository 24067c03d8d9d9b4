"""Pulls that are answered without Python: as Python answers or refuses them, over real sockets."""

import os
import threading
import time

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal.metrics.calls import Calls
from shoal.native import ids as native_ids
from shoal.native import values
from shoal.native.initializers import InitializerSpec
from shoal.proto import faults, methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.channels import rpc, serving
from shoal.proto.errors import WireError
from shoal.proto.permissions import check_speaker
from shoal.proto.plane import server as plane
from shoal.proto.plane.client import Pool
from shoal.proto.plane.link import BrokenError
from shoal.proto.plane.message import REFUSAL, prefix
from shoal.proto.values.routing import Routing
from shoal.proto.wire import frames
from shoal.proto.wire.transport import peer_name
from shoal.ps.service import ParameterServer
from shoal.security.authority import Authority
from tests.fuzz.mutations import mutated
from tests.native.strategies import any_id
from tests.ps.caller import SGD, Caller, model_spec
from tests.waiting import until

PATIENCE = 60.0


def tables():
    """Of 16 and 32 bits, of several widths, with a vocabulary, frozen, and with admission."""
    spec = model_spec(tables=("a", "b", "c", "d", "e", "f", "g"), optimizer=SGD)
    for table, dim in zip(spec.tables, (3, 16, 5, 300, 2, 2, 3), strict=True):
        table.dim = dim
        table.initializer = InitializerSpec("uniform").to_json()
    spec.tables[1].value_dtype = "bfloat16"
    spec.tables[6].value_dtype = "float16"
    spec.tables[2].vocabulary = 1 << 20
    spec.tables[3].frozen = True
    spec.tables[4].admit_after = spec.tables[5].admit_after = 2
    spec.tables[5].vocabulary = 1 << 20
    return spec


AUTHORITY, NAME = Authority.made("j1"), peer_name("token", "ps")


class Secure:
    """What is asked over a socket: plain, or with TLS as worker 0."""

    def __init__(self, handlers, tls):
        self.caller = None
        peer, server, caller = "", None, None
        if tls:
            peer, server, caller = NAME, AUTHORITY.issue("ps"), AUTHORITY.issue("worker")
            self.caller = caller.caller
        self.served, port = serving.serve(handlers, "127.0.0.1:0", 2, peer, server)
        self.pool = Pool(f"127.0.0.1:{port}", peer, caller)
        self.tls = tls

    def connection(self, connect, worker):
        identity = AUTHORITY.issue("worker", worker) if self.tls else None
        peer = NAME if self.tls else ""
        return connect(self.pool.address, peer=peer, identity=identity)

    def close(self):
        self.pool.close()
        self.served.stop(None).wait()


class Both:
    """One server of two that is asked over a socket, and the handler of Python beside it."""

    def __init__(self, tls):
        self.server = ParameterServer(0, Routing.even(2))
        self.server.registration.begin_anew()
        handlers = self.server.handlers()
        self._handler = handlers[methods.PULL].handler
        self._served, port = serving.serve(handlers, "127.0.0.1:0", 2)
        self.address = f"127.0.0.1:{port}"
        self.secure = Secure(handlers, tls)
        self.every = np.arange(4000)
        self.own = self.every[native_ids.slot_of(self.every) < 8192]

    def fill(self, caller):
        assert caller.register(tables()).server == 0
        size, state = self.server.model.dense.elements, self.server.model.dense.state_elements
        caller.initialize(np.arange(size), np.arange(state) + 0.5)
        random = np.random.default_rng(1)
        for position, table in enumerate(self.server.model.tables):
            rows = random.normal(scale=1e5, size=(self.own.size, table.dim)).astype(np.float32)
            self.server.model.assign(position, self.own, rows)
        for worker, sequence in ((0, 1), (1, 1), (1, 2)):
            caller.push(
                self.own[:2],
                np.ones((2, 3)),
                (np.ones(size), np.ones(state)),
                sequence,
                worker=worker,
                incarnation=worker,
            )

    @property
    def direct(self):
        """Pulls that were answered without Python."""
        return sum(self.server.answerer.durations(methods.PULL.kind)[0])

    def over_the_socket(self, frame):
        return self.secure.pool.begin(methods.PULL, frame, PATIENCE).result()

    def by_python(self, frame, at):
        """at: the time that the answer is to bear."""
        check_speaker(methods.PULL, self.secure.caller, memoryview(frame), "")
        self.server.model.time = lambda: at
        try:
            return self._handler(memoryview(frame)).joined()
        finally:
            del self.server.model.time

    def close(self):
        self.secure.close()
        self._served.stop(None).wait()


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "tls"])
def both(request):
    made = Both(request.param)
    connection = rpc.Connection(made.address)
    made.fill(Caller(connection))
    connection.close()
    yield made
    made.close()


def outcome(ask, *arguments):
    """The bytes of an answer, or kind and message of a refusal."""
    try:
        return bytes(ask(*arguments))
    except WireError as error:
        return error.kind, error.message


def assert_alike(both, frame):
    found = outcome(both.over_the_socket, frame)
    at = frames.header_of(found, pb.PullReply).time if isinstance(found, bytes) else 0.0
    assert found == outcome(both.by_python, frame, at)


small = st.integers(0, 4)
any_number = st.one_of(st.integers(0, 5), st.integers(0, 2**32 - 1))


@st.composite
def pulls(draw, both):
    """Mostly what a worker asks for, and everything else that the message has room for."""
    ids = st.sampled_from(both.own.tolist())
    if draw(st.booleans()) and draw(st.booleans()):
        ids = any_id
    arrays = draw(st.lists(st.lists(ids, max_size=60), max_size=4))
    count = draw(st.integers(0, 6)) if arrays or draw(small) == 0 else 0
    caller = None
    if draw(st.booleans()):
        caller = pb.PushIdentity(
            worker=draw(any_number), incarnation=draw(any_number), sequence=draw(any_number)
        )
    header = pb.PullRequest(
        caller=caller,
        routing_epoch=draw(st.sampled_from([1] * 9 + [0, 2, -1])),
        tables=draw(
            st.lists(st.sampled_from([0, 1, 2, 3, 6] * 5 + [7]), min_size=count, max_size=count)
        ),
        ids_of=[draw(st.integers(0, max(0, len(arrays) - 1))) for _ in range(count)],
        dense_version=draw(st.integers(-3, 5)),
        training=draw(st.booleans()),
        value_type=draw(
            st.sampled_from([0, 0, 0, pb.FLOAT32, pb.BFLOAT16, pb.FLOAT16] * 4 + [pb.INT64])
        ),
        whole_updates=draw(st.sampled_from([False] * 9 + [True])),
    )
    dtype = np.float32 if draw(st.integers(0, 30)) == 7 else np.int64
    return frames.encode(header, [np.array(each, np.int64).astype(dtype) for each in arrays])


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(data=st.data())
def test_answers_and_refusals_are_byte_for_byte_those_of_python(both, data):
    assert_alike(both, data.draw(pulls(both)))


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(data=st.data())
def test_so_are_those_of_damaged_requests(both, data):
    frame = bytearray(data.draw(pulls(both)))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, min(len(frame), 120)))
        if data.draw(st.booleans()):
            frame[place : place + 1] = bytes([data.draw(st.integers(0, 255))])
        else:
            del frame[place : place + data.draw(st.integers(1, 9))]
    assert_alike(both, bytes(frame))


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(data=st.data(), chance=st.randoms(use_true_random=False))
def test_so_are_those_of_cut_repeated_and_spliced_requests(both, data, chance):
    seeds = [data.draw(pulls(both)) for _ in range(2)]
    assert_alike(both, mutated(seeds, chance))


@pytest.mark.parametrize("size", range(2, 11))
def test_a_header_with_numbers_of_more_bytes_than_they_need(both, size):
    """Protobuf takes a tag or a length of up to five."""
    rest = bytes([0x80] * (size - 2) + [0])
    epoch, dense = b"\x10\1", b"\x28" + b"\xfe" + b"\xff" * 8 + b"\1"
    for header in (b"\x90" + rest + b"\1" + dense, epoch + dense + b"\x9a" + rest + b"\0"):
        assert_alike(both, frames.MAGIC + len(header).to_bytes(4, "little") + header)
    header = epoch + dense + b"\x1a\x80" + rest[:-1] + b"\0"
    assert_alike(both, frames.MAGIC + len(header).to_bytes(4, "little") + header)


def pull_of(ids, **header):
    header = {"routing_epoch": 1, "tables": [0], "ids_of": [0], "dense_version": -2} | header
    return frames.encode(pb.PullRequest(**header), [np.asarray(ids, np.int64)])


@pytest.mark.parametrize("count", [50, 2000], ids=["in C", "by Python"])
def test_rows_travel_as_they_are_held_where_no_type_is_named(both, count):
    """Tables of each dtype in one answer; a large one Python looks up in blocks."""
    frame = pull_of(np.resize(both.own, count), tables=[1, 0, 6, 3], ids_of=[0, 0, 0, 0])
    before = both.direct
    assert_alike(both, frame)
    assert both.direct == before + (count == 50)
    _, found = frames.decode(both.over_the_socket(frame), pb.PullReply)
    assert [rows.dtype for rows in found] == [np.uint16, np.float32, np.float16, np.float32]
    exact = pull_of(np.resize(both.own, count), tables=[1], ids_of=[0], value_type=pb.FLOAT32)
    _, (rows,) = frames.decode(both.over_the_socket(exact), pb.PullReply)
    np.testing.assert_array_equal(values.decode(found[0]), rows)


def test_plain_pulls_are_answered_without_python_and_counted(both):
    before, pulls_before = both.direct, both.server.pulls.answered
    calls = Calls()
    calls.counted(both.server.handlers())
    for number in range(1, 6):
        both.over_the_socket(pull_of(both.own[:50], dense_version=-1, training=True))
        assert both.direct == before + number
    assert both.server.pulls.answered == pulls_before + 5
    requests, seconds = calls.collect()
    counted = {tuple(each.labels.values()): each.value for each in requests.samples}
    assert counted["Pull", "answered"] == both.direct
    assert any(each.value == both.direct for each in seconds.samples if "le" in each.labels)


def test_a_large_answer_is_python_s_and_the_same(both):
    """Of 300 columns: more than is sent at once."""
    before = both.direct
    frame = pull_of(both.own[:1000], tables=[3])
    assert len(both.over_the_socket(frame)) > plane.ROOM_BYTES * 32
    assert both.direct == before
    assert_alike(both, frame)


def test_pulls_and_pushes_take_turns_on_one_connection(both, connect):
    caller = Caller(both.secure.connection(connect, 77))
    version = both.server.model.version
    before = sum(both.server.answerer.durations(methods.PUSH.kind)[0])
    calls = Calls()
    calls.counted(both.server.handlers())
    for sequence in range(1, 20):
        caller.push(both.own[:1], np.zeros((1, 3)), sequence=sequence, worker=77)
        identity = pb.PushIdentity(worker=77)
        reply, _ = caller.pull(both.own[:9], dense_version=-2, caller=identity)
        assert (reply.version, reply.applied) == (version + sequence, sequence)
    # All but the first push of the worker, which the metrics count too.
    direct = sum(both.server.answerer.durations(methods.PUSH.kind)[0])
    assert direct == before + 18
    requests, _ = calls.collect()
    counted = {tuple(each.labels.values()): each.value for each in requests.samples}
    assert counted["Push", "answered"] == direct


@pytest.fixture
def alone(cluster, connect):
    """One server with a model, and a caller of it."""
    made = cluster(1)
    caller = Caller(connect(made.addresses[0], patience=0.0))
    caller.register()
    caller.initialize(np.arange(5), [0.5, 0.25])
    caller.server, caller.address, caller.served = (
        made.servers[0],
        made.addresses[0],
        made.grpc_servers[0],
    )
    return caller


def refused(call):
    with pytest.raises(WireError) as caught:
        call()
    return caught.value.kind


def test_a_server_that_is_not_open_says_so_and_answers_once_it_is(alone):
    alone.pull([1])
    alone.server.take_calls(False)
    assert refused(lambda: alone.pull([1])) == pb.NOT_READY
    alone.server.take_calls()
    alone.pull([1])


def test_a_pull_by_an_older_table_is_refused_from_the_moment_of_a_newer_one(alone):
    alone.pull([1])
    alone.server.ownership.set_routing(Routing.even(1, epoch=2).to_message())
    assert refused(lambda: alone.pull([1])) == pb.STALE_ROUTING
    alone.epoch = 3
    assert refused(lambda: alone.pull([1])) == pb.NOT_READY
    alone.epoch = 2
    alone.pull([1])


def test_a_worker_that_has_not_met_a_restarted_server_is_sent_to(alone):
    alone.server.registration.workers.again = True
    who = pb.PushIdentity(worker=4, incarnation=1)
    assert refused(lambda: alone.pull([1], caller=who)) == pb.NOT_REGISTERED
    alone.connection.call(methods.REGISTER, pb.RegisterRequest(model=model_spec(), caller=who))
    alone.pull([1], caller=who)
    who.incarnation = 2
    assert refused(lambda: alone.pull([1], caller=who)) == pb.NOT_REGISTERED


@pytest.fixture
def synchronous(cluster, connect):
    """A server of --sync whose update 1 is applied, with its connection."""
    made = cluster(1, synchronous=True)
    caller = Caller(connect(made.addresses[0]))
    caller.register()
    caller.initialize(np.arange(5), [0.5, 0.25])
    caller.server = made.servers[0]
    hold(caller, 1)
    return caller


def hold(caller, number):
    """Have a gradient held, and an update made of it."""
    identity = pb.PushIdentity(worker=0, sequence=number)
    header = pb.PushRequest(identity=identity, routing_epoch=1, has_dense=True, hold=number)
    header.learning_rate = 1.0
    ones = [np.ones(5, np.float32), np.ones(2, np.float32)]
    caller.connection.call(methods.PUSH, frames.encode(header, ones))
    named = pb.GradientId(worker=0, number=number)
    request = pb.ApplyUpdateRequest(update=number, after=number - 1, gradients=[named])
    caller.connection.start(methods.APPLY_UPDATE, request).result()


def of_whole_updates(**header):
    return pull_of([1], routing_epoch=1, whole_updates=True, **header)


@pytest.mark.parametrize("whole", [False, True])
def test_pulls_of_sync_are_those_of_python(synchronous, whole):
    server = synchronous.server
    for version in (-2, -1, 0, 1):
        frame = pull_of([1, 2], routing_epoch=1, dense_version=version, whole_updates=whole)
        made = synchronous.connection.call(methods.PULL, frame)
        at = frames.decode(made, pb.PullReply)[0].time
        server.model.time = lambda at=at: at
        assert bytes(made) == server.pulls.answer(frame).joined()
        assert frames.decode(made, pb.PullReply)[0].update == 1
    assert sum(server.answerer.durations(methods.PULL.kind)[0]) == 4


def test_a_pull_waits_for_its_update_and_no_longer_than_a_second(synchronous):
    asked = synchronous.connection.start(methods.PULL, of_whole_updates(after=2))
    hold(synchronous, 2)
    assert frames.decode(asked.result(), pb.PullReply)[0].update == 2
    late = synchronous.connection.call(methods.PULL, of_whole_updates(after=9))
    assert frames.decode(late, pb.PullReply)[0].update == 2
    assert sum(synchronous.server.answerer.durations(methods.PULL.kind)[0]) == 2


def test_a_pull_of_whole_updates_waits_for_the_one_that_is_applied(synchronous):
    whole = synchronous.server._pending.whole
    with whole.writing():
        asked = synchronous.connection.start(methods.PULL, of_whole_updates())
        synchronous.pull([1])  # waits for nobody
        whole.update = 2
    assert frames.decode(asked.result(), pb.PullReply)[0].update == 2


def test_pushes_of_sync_are_python_s(synchronous):
    """A log counts its own entries then."""
    for sequence in (5, 6):
        synchronous.push([1], np.ones((1, 3)), (np.ones(5), np.ones(2)), sequence)
    assert synchronous.server.model.version == 3
    assert not sum(synchronous.server.answerer.durations(methods.PUSH.kind)[0])


@pytest.fixture(params=[False, True], ids=["plain", "tls"])
def linked(alone, request):
    """Make connections to the server of `alone`; its listener is in `alone.secure`."""
    alone.secure, made = Secure(alone.server.handlers(), request.param), []

    def link():
        made.append(alone.secure.pool.connected())
        return made[-1]

    yield link
    for each in made:
        each.close()
    alone.secure.close()


def send(link, data):
    link.send([data], len(data), PATIENCE)


@pytest.mark.parametrize("role", ["ps", "master", "client"])
def test_with_certificates_c_answers_workers_alone(alone, role):
    secure = Secure(alone.server.handlers(), tls=True)
    other = Pool(secure.pool.address, NAME, AUTHORITY.issue(role))
    try:
        before = sum(alone.server.answerer.durations(methods.PULL.kind)[0])
        pull = pull_of([1])
        kind = refused(other.begin(methods.PULL, pull, PATIENCE).result)
        assert kind == pb.NOT_PERMITTED
        assert sum(alone.server.answerer.durations(methods.PULL.kind)[0]) == before
        secure.pool.begin(methods.PULL, pull, PATIENCE).result()
        assert sum(alone.server.answerer.durations(methods.PULL.kind)[0]) == before + 1
    finally:
        other.close()
        secure.close()


def whole(frame):
    return prefix(methods.PULL.kind, len(frame)) + frame


@pytest.mark.parametrize("sent", [9, 16, 60])
def test_a_pull_of_which_the_rest_does_not_come_ends_its_connection(
    alone, linked, monkeypatch, sent
):
    monkeypatch.setattr(plane, "PART_SECONDS", 0.3)
    link = linked()
    data = whole(pull_of(np.arange(20)))
    send(link, data[:sent])
    with pytest.raises(BrokenError, match="closed by the other end"):
        link.next_prefix(time.monotonic() + PATIENCE)
    alone.pull([1])


def test_a_connection_that_is_idle_for_long_is_answered_after_it(alone, linked, monkeypatch):
    monkeypatch.setattr(plane, "PART_SECONDS", 0.1)
    link = linked()
    time.sleep(0.5)
    send(link, whole(pull_of([1])))
    assert link.next_prefix(time.monotonic() + PATIENCE)[0] != REFUSAL


def test_who_reads_no_answers_is_given_up_and_nobody_waits_for_it(alone, linked, monkeypatch):
    monkeypatch.setattr(plane, "ANSWER_SECONDS", 0.5)
    link, data = linked(), whole(pull_of(np.arange(4000)))

    def ask_on():
        while True:
            send(link, data)

    with pytest.raises(BrokenError):
        ask_on()
    alone.pull([1])


def test_stopping_ends_connections_that_wait_and_those_that_are_never_idle(alone, linked):
    idle, stopped = linked(), threading.Event()
    idle_until = time.monotonic() + PATIENCE

    def pull_for_ever():
        link, data = linked(), whole(pull_of([1]))
        try:
            while True:
                send(link, data)
                _, size = link.next_prefix(time.monotonic() + PATIENCE)
                link.read(size, time.monotonic() + PATIENCE)
        except BrokenError:
            stopped.set()

    before = alone.server.pulls.answered
    thread = threading.Thread(target=pull_for_ever)
    thread.start()
    until("pulls", lambda: alone.server.pulls.answered > before + 10)
    alone.secure.served.stop(PATIENCE).wait()
    thread.join(PATIENCE)
    assert stopped.is_set()
    with pytest.raises(BrokenError):
        idle.next_prefix(idle_until)


def test_a_process_that_is_to_handle_no_call_answers_no_pull(
    cluster, connect, monkeypatch, tmp_path
):
    monkeypatch.setattr(faults, "_FOLDER", str(tmp_path))
    monkeypatch.setattr(faults, "_PROCESS", "ps-0")
    wait, waits = faults._wait_until_gone, threading.Event()
    monkeypatch.setattr(faults, "_wait_until_gone", lambda path: (waits.set(), wait(path)))
    made = cluster(1)
    caller = Caller(connect(made.addresses[0]))
    caller.register()
    caller.initialize(np.arange(5), [0.5, 0.25])
    caller.pull([1])
    answered = made.servers[0].pulls.answered
    file = faults.calls_file(tmp_path, "ps-0")
    file.write_text(str(os.getpid()))
    frame = pull_of([1])
    pool = Pool(made.addresses[0], "", None)
    exchange = pool.begin(methods.PULL, frame, PATIENCE)
    try:
        assert waits.wait(PATIENCE)
        assert made.servers[0].pulls.answered == answered
    finally:
        file.unlink()
    exchange.result()
    pool.close()


@pytest.mark.slow
def test_loads_are_halved_before_one_goes_round(alone):
    """A hot slot of a long job would look cold."""
    answerer = alone.server.answerer
    hot, cold = np.zeros(1 << 20, np.int64), np.ones(1 << 18, np.int64)
    slots = native_ids.slot_of(np.array([0, 1]))
    before = 0
    for number in range(1 << 20):
        answerer.note_load([hot, cold])
        if number % 256:
            continue
        most, least = answerer.loads()[slots].tolist()
        if most < before:
            break
        before = most
    assert 1 << 30 <= most < 1 << 31
    assert most == pytest.approx(4 * least, rel=0.01)
