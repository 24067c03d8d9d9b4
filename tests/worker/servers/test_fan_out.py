"""Calls to all servers below Python: byte for byte those of Python, and what is left to Python."""

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.native import values
from shoal.native.initializers import InitializerSpec
from shoal.native.optimizers import OptimizerSpec
from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import PeerUnavailableError, ServerAwayError, WireError
from shoal.proto.plane.message import REFUSAL, prefix
from shoal.proto.values.routing import Routing, slice_of
from shoal.proto.wire import frames
from shoal.worker.servers.calls import ServerCalls
from shoal.worker.servers.fan_out import FannedOut
from shoal.worker.servers.ids import group_tables
from shoal.worker.servers.in_flight import InFlightPushes
from shoal.worker.servers.pulling import Puller
from shoal.worker.servers.push_requests import PushPlan, split_by_owner
from shoal.worker.servers.pushing import Push, Pusher
from tests.worker.servers.recorded import Recorded, one_by_one, owners, same_bytes, whole

MOST = 4
"""Servers."""

HELD = [pb.FLOAT32, pb.BFLOAT16, pb.FLOAT16]
VALUE_TYPES = [pb.DATA_TYPE_UNSPECIFIED, *HELD]


def held_by(data, dims):
    """The types in which servers hold the rows of these tables."""
    return data.draw(st.lists(st.sampled_from(HELD), min_size=len(dims), max_size=len(dims)))


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "tls"])
def recorded(request):
    made = Recorded(MOST, tls=request.param)
    yield made
    made.close()


@st.composite
def models(draw):
    """A routing table, and of each table its dim and the ids of a batch; some share them."""
    servers = draw(st.integers(1, MOST))
    dense = draw(st.integers(1, servers))
    # Any of them may own nothing.
    slots = draw(st.lists(st.integers(0, servers - 1), min_size=1, max_size=8))
    absent = (
        draw(st.sets(st.integers(dense, servers - 1), max_size=1)) if dense < servers else set()
    )
    absent -= set(slots)
    routing = Routing(
        draw(st.integers(0, 2**40)), servers, owners(slots), dense, tuple(sorted(absent))
    )
    some = st.lists(st.integers(-(2**63), 2**63 - 1), max_size=12)
    pools = [np.array(each, np.int64) for each in draw(st.lists(some, min_size=1, max_size=3))]
    tables = draw(
        st.lists(st.tuples(st.integers(1, 5), st.integers(0, len(pools) - 1)), max_size=4)
    )
    return routing, [dim for dim, _ in tables], [pools[place] for _, place in tables]


numbers = st.one_of(st.just(0), st.integers(-2, 2**40))


@given(st.data(), models(), st.sampled_from(VALUE_TYPES), st.booleans(), st.booleans())
def test_pulls_are_those_of_python_byte_for_byte(
    recorded, data, model, value_type, training, whole_updates
):
    routing, dims, ids = model
    sizes = data.draw(st.tuples(st.integers(0, 9), st.integers(0, 5)))
    versions = data.draw(st.lists(numbers, min_size=routing.dense, max_size=routing.dense))
    newer = data.draw(st.lists(st.booleans(), min_size=routing.dense, max_size=routing.dense))
    told = data.draw(st.lists(st.integers(0, 2**50), min_size=MOST, max_size=MOST))
    exact = data.draw(st.booleans())
    held = held_by(data, dims)
    travels = [pb.FLOAT32 if exact else value_type or each for each in held]

    def answers(server):
        def answer(body):
            request, asked = frames.decode(body, pb.PullRequest)
            rng = np.random.default_rng(server)
            arrays = []
            for table, place in zip(request.tables, request.ids_of, strict=True):
                rows = rng.standard_normal((asked[place].size, dims[table]), np.float32)
                arrays.append(values.encoded(rows, values.NAMES[frames.DTYPES[travels[table]]]))
            has_dense = server < routing.dense and newer[server]
            if has_dense:
                for size in sizes:
                    own = slice_of(size, server, routing.dense)
                    arrays.append(rng.standard_normal(own.stop - own.start, np.float32))
            reply = pb.PullReply(
                version=told[server], has_dense=has_dense, time=server / 3, applied=told[-server]
            )
            return whole(frames.encode(reply, arrays))

        return answer

    for server, each in enumerate(recorded.servers):
        each.answer = answers(server)

    def pulled():
        recorded.forget()
        recorded.dense.set(*(np.full(size, 7, np.float32) for size in sizes))
        recorded.dense.versions = list(versions)
        puller = Puller(recorded, threading.Event(), value_type, whole_updates=whole_updates)
        puller.register(dims, held, 0, 0)
        found = puller.fetch(
            group_tables([[each] for each in ids], routing), routing, training=training, exact=exact
        )
        arrays = [*found.rows, found.trainable, found.state]
        rest = found.versions, found.times, found.applied, found.updates
        own = recorded.dense.versions, recorded.version, recorded._known_versions
        return recorded.noted, arrays, (rest, own)

    sent, arrays, rest = pulled()
    with one_by_one():
        again, others, same = pulled()
    assert sent == again
    assert [len(each) for each in sent[: routing.servers]] == [
        int(server in routing.present) for server in range(routing.servers)
    ]
    assert same_bytes(arrays, others)
    assert rest == same
    assert recorded.idle == [1] * MOST


@given(st.data(), models(), st.sampled_from(VALUE_TYPES))
def test_pushes_are_those_of_python_byte_for_byte(recorded, data, model, value_type):
    routing, dims, ids = model
    servers = routing.servers
    few = st.one_of(st.floats(width=32), st.sampled_from([0.0, 1e-12, 6e-8, 1.0, 7e4]))
    seed = data.draw(st.integers(0, 99))
    rng = np.random.default_rng(seed)
    tables = {}
    for table, (dim, own) in enumerate(zip(dims, ids, strict=True)):
        gradients = rng.standard_normal((own.size, dim), np.float32)
        with np.errstate(over="ignore"):
            gradients *= np.float32(data.draw(few))
        tables[table] = own, gradients

    def each(values):
        return np.array(data.draw(st.lists(values, min_size=servers, max_size=servers)))

    parts = split_by_owner(tables, routing)
    plan = PushPlan(
        parts=parts,
        common=pb.PushRequest(
            identity=pb.PushIdentity(
                worker=3, incarnation=1, sequence=data.draw(st.integers(1, 9))
            ),
            routing_epoch=routing.epoch,
            tables=parts.tables,
            ids_of=parts.ids_of,
            learning_rate=data.draw(st.sampled_from([0.0, 0.5, -0.0])),
            modulate_rate=data.draw(st.booleans()),
            task=data.draw(st.integers(0, 300)),
            records_done=data.draw(st.integers(0, 2**40)),
            hold=data.draw(st.integers(0, 2)),
            table_rates=data.draw(st.lists(st.floats(0, 1), max_size=3)),
            event_time=data.draw(st.sampled_from([None, 0, 5, -5])),
        ),
        dense=tuple(
            rng.standard_normal(data.draw(st.integers(0, 9))).astype(np.float32) for _ in range(2)
        ),
        slices=routing.dense,
        has_dense=each(st.integers(0, 1)).astype(np.int64),
        versions=each(numbers).astype(np.int64),
        times=each(st.sampled_from([0.0, -0.0, 2.5])).astype(np.float64),
        own_pushes=each(st.integers(0, 3)).astype(np.int64),
        value_types=[value_type or each for each in held_by(data, dims)],
    )
    for server in recorded.servers:
        server.answer = lambda _: whole(frames.encode(pb.PushReply(version=9, staleness=2), []))

    def sent(**how):
        recorded.forget()
        call = FannedOut(recorded, methods.PUSH, routing.present, plan.fan_out, plan.frame)
        call.run(**how)
        for server in call.left:
            call.finish(server)
        return recorded.noted, call.answered

    noted, answered = sent()
    with np.errstate(all="ignore"):
        others, _ = sent(one_by_one=True)
    assert noted == others
    assert answered == routing.present
    for server in routing.present:
        request, arrays = frames.decode(noted[server][0][16:], pb.PushRequest)
        assert len(arrays) == len(plan.parts.distinct) + len(dims) + 2 * request.has_dense


def test_parts_are_the_ids_of_each_server_in_their_order():
    routing = Routing(1, 3, owners([2, 0]))
    ids, others = np.arange(40), np.arange(5)
    tables = {
        0: (ids, np.arange(40.0, dtype=np.float32)[:, None]),
        2: (others, np.zeros((5, 1), np.float32)),
        4: (ids, np.arange(40.0, dtype=np.float32)[:, None]),
    }
    parts = split_by_owner(tables, routing)
    assert parts.ids_of == [0, 1, 0]
    assert not parts.some(1)
    for server in range(3):
        part = parts.of(server)
        assert part[0][0] is part[4][0]
        np.testing.assert_array_equal(part[0][0], part[0][1][:, 0])
        assert (np.diff(part[0][0]) > 0).all()
    both = parts.of_all([2, 0])
    assert sorted(both[0][0].tolist()) == list(range(40))
    assert both[0][0] is both[4][0]
    assert parts.of_all([1])[0][0].size == 0


# ---------------------------------------------------------------- what is not plain


def refusal(kind, words="no"):
    detail = pb.ErrorDetail(kind=kind, message=words).SerializeToString()
    return prefix(REFUSAL, len(detail)) + detail


def plain(_):
    return whole(frames.encode(pb.PushReply(version=9, staleness=2), []))


def push(number=1):
    return Push(
        {}, (np.zeros(0, "f4"),) * 2, 0.1, [0] * MOST, [0.0] * MOST, [0] * MOST, 1, 4, number=number
    )


@pytest.fixture(params=[False, True], ids=["plain", "tls"])
def calls(request):
    made = Recorded(MOST, tls=request.param)
    for each in made.servers:
        each.answer = plain
    yield made
    made.close()


def test_a_refusal_is_raised_and_the_others_acknowledgements_are_noted(calls):
    calls.servers[1].answer = lambda _: refusal(pb.FENCED, "replaced")
    pusher = Pusher(calls, InFlightPushes(), pb.FLOAT32)
    with pytest.raises(WireError, match="FENCED: replaced"):
        pusher.push(push())
    assert [each.identity.sequence for each in calls._acknowledged] == [1, 0, 1, 1]
    assert calls.idle == [1] * MOST
    assert [len(each) for each in calls.noted] == [1] * MOST


def test_an_answer_that_python_alone_knows_is_taken_by_it(calls):
    """A field beyond those that C knows; and what breaks its frame is refused as ever."""
    calls.servers[2].answer = lambda _: whole(
        frames.encode(pb.PushReply(version=40, staleness=7), [np.zeros(3)])
    )
    pusher = Pusher(calls, InFlightPushes(), pb.FLOAT32)
    assert pusher.push(push()) == 7
    assert calls._known_versions == [9, 9, 40, 9]
    assert pusher.acknowledged == 1
    calls.servers[2].answer = lambda _: whole(b"no frame")
    with pytest.raises(WireError, match="not a frame of PushReply"):
        pusher.push(push(2))


def test_a_server_that_ends_its_connection_is_away_and_the_others_have_answered(calls):
    """Nobody is where it was said to be: after its patience the push fails, for that server."""
    calls.servers[0].answer = lambda _: None
    pusher = Pusher(calls, InFlightPushes(), pb.FLOAT32)
    with pytest.raises(ServerAwayError, match="server 0 has been out of reach"):
        pusher.push(push())
    assert [each.away for each in calls._circuits] == [True, False, False, False]
    assert [each.identity.sequence for each in calls._acknowledged] == [0, 1, 1, 1]
    assert calls.idle == [0, 1, 1, 1]


def test_a_server_that_is_not_ready_is_asked_before_it_is_sent_the_push_again(calls):
    """Its refusal opens the circuit, as one that Python has read does."""
    calls.servers[3].answer = lambda _: refusal(pb.NOT_READY)
    asked = []

    def takes(*_):
        asked.append(calls._circuits[3].away)
        calls.servers[3].answer = plain
        return True

    calls._circuits[3]._takes = takes
    Pusher(calls, InFlightPushes(), pb.FLOAT32).push(push())
    assert asked == [True]
    first, second = calls.servers[3].noted
    assert first == second  # under its own sequence number
    assert not calls._circuits[3].away


def test_a_late_answer_is_given_up_and_the_push_sent_again(calls, monkeypatch):
    came, go_on = threading.Event(), threading.Event()

    def late(_):
        came.set()
        go_on.wait(60)

    calls.servers[1].answer = late
    calls._circuits[1]._connection.deadline = calls._circuits[0]._connection.deadline = 0.2
    with pytest.raises(ServerAwayError, match="server 1 has been"):
        Pusher(calls, InFlightPushes(), pb.FLOAT32).push(push())
    go_on.set()
    assert came.is_set()
    assert [each.identity.sequence for each in calls._acknowledged] == [1, 0, 1, 1]


def test_closing_ends_a_call_below_python(calls):
    """Also of a server that never answers."""
    came, go_on = threading.Event(), threading.Event()

    def never(_):
        came.set()
        go_on.wait(60)

    calls.servers[2].answer = never
    pusher = Pusher(calls, InFlightPushes(), pb.FLOAT32)
    failed = []

    def pushes():
        try:
            pusher.push(push())
        except PeerUnavailableError as error:
            failed.append(error)

    running = threading.Thread(target=pushes)
    running.start()
    assert came.wait(60)
    ServerCalls.close(calls)
    running.join(60)
    go_on.set()
    assert not running.is_alive()
    assert len(failed) == 1


def test_an_error_in_a_call_leaves_no_connection_that_is_half_used(calls):
    """As a signal's handler raises it."""

    class Interrupted(FannedOut):
        def _found(self, *_):
            raise KeyboardInterrupt

    calls.servers[2].answer = lambda _: refusal(pb.FENCED)
    plan = Pusher(calls, InFlightPushes(), pb.FLOAT32)._plan(
        push(), split_by_owner({}, calls.routing), calls.routing, set()
    )
    call = Interrupted(calls, methods.PUSH, range(MOST), plan.fan_out, plan.frame)
    with pytest.raises(KeyboardInterrupt):
        call.run()
    assert calls.idle == [1, 1, 0, 1]
    assert calls._pools[2]._links == set()


def test_another_thread_is_told_who_has_answered_while_one_is_waited_for(calls):
    came, go_on = threading.Event(), threading.Event()

    def slow(body):
        came.set()
        go_on.wait(60)
        return plain(body)

    calls.servers[0].answer = slow
    calls.servers[1].answer = lambda _: None
    plan = Pusher(calls, InFlightPushes(), pb.FLOAT32)._plan(
        push(), split_by_owner({}, calls.routing), calls.routing, set()
    )
    call = FannedOut(calls, methods.PUSH, range(MOST), plan.fan_out, plan.frame)
    running = threading.Thread(target=call.run)
    running.start()
    assert came.wait(60)
    assert [call.was_answered(each) for each in (3, 1, 2)] == [True, False, True]
    assert running.is_alive()
    go_on.set()
    assert call.was_answered(0)
    running.join(60)
    assert (call.answered, call.left) == ([0, 2, 3], [1])


def test_pulls_and_pushes_at_once_go_below_python_and_nothing_is_lost(
    server_group, cluster, monkeypatch
):
    """A thread pulls while another one pushes, of two workers, to three servers."""
    steps, below = 30, []
    run = FannedOut.run

    def noted(call, **how):
        run(call, **how)
        below.append(len(call.answered))

    monkeypatch.setattr(FannedOut, "run", noted)
    made = cluster(3)
    sgd = OptimizerSpec("sgd").to_json()
    table = pb.TableSpec(
        name="t", dim=2, initializer=InitializerSpec("zeros").to_json(), optimizer=sgd
    )
    spec = pb.ModelSpec(
        tables=[table],
        trainable=[pb.VariableSpec(name="w", shape=[5])],
        dense_optimizer=sgd,
    )
    ids = np.arange(100)
    groups = [server_group(made, worker=worker) for worker in range(2)]
    ends = []
    for group in groups:
        group.register(spec, np.zeros(5, np.float32), np.zeros(0, np.float32))
    pulled = groups[0].pull([[ids]], training=True)

    def pulls(group):
        for _ in range(steps):
            group.pull([[ids]], training=True)
        ends.append("pulls")

    def pushes(group):
        own = pulled.ids[0].unique
        for number in range(steps):
            group.push(
                Push(
                    {0: (own, np.ones((100, 2), np.float32))},
                    (np.ones(5, np.float32), np.zeros(0, np.float32)),
                    1.0,
                    pulled.versions,
                    pulled.times,
                    pulled.applied,
                    1,
                    0,
                    number=number + 1,
                )
            )
        ends.append("pushes")

    threads = [threading.Thread(target=do, args=(g,)) for g in groups for do in (pulls, pushes)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(120)
    assert sorted(ends) == ["pulls", "pulls", "pushes", "pushes"]
    last = groups[1].pull([[ids]], training=True)
    assert last.versions == [2 * steps] * 3
    np.testing.assert_array_equal(last.rows[0], np.full((100, 2), -2.0 * steps, np.float32))
    np.testing.assert_array_equal(last.trainable, np.full(5, -2.0 * steps, np.float32))
    # The first call of each connection was Python's.
    assert sum(below) > 3 * (4 * steps + 2) - 3 * 2 * 4


def test_dense_values_of_a_pull_that_is_made_again_are_asked_for_again(recorded):
    recorded.forget()
    routing = Routing(1, 3, owners([0, 1, 2]), 2)

    def answer(server):
        def said(body):
            if server == 2:
                return refusal(pb.STALE_ROUTING)
            _, asked = frames.decode(body, pb.PullRequest)
            rows = [np.zeros((each.size, 2), np.float32) for each in asked]
            dense = [np.full(2, 5, np.float32), np.zeros(0, np.float32)]
            return whole(frames.encode(pb.PullReply(version=7, has_dense=True), rows + dense))

        return said

    for server, each in enumerate(recorded.servers):
        each.answer = answer(server)
    recorded.dense.set(np.zeros(4, np.float32), np.zeros(0, np.float32))
    recorded.dense.versions = [3, 3]
    puller = Puller(recorded, threading.Event(), pb.FLOAT32, whole_updates=False)
    puller.register([2], [pb.FLOAT32], 0, 0)
    ids = np.arange(50, dtype=np.int64)
    with pytest.raises(WireError, match="STALE_ROUTING"):
        puller.fetch(group_tables([[ids]], routing), routing, training=True)
    assert recorded.dense.versions == [3, 3]
    assert recorded.dense.trainable.tolist() == [0.0] * 4
