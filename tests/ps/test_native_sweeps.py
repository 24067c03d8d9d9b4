"""Sweeps between pushes that are applied without Python: as between those that Python applies."""

import threading

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal.native import ids as native_ids
from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.channels import rpc, serving
from shoal.proto.values.routing import Routing
from shoal.proto.wire import frames
from shoal.ps.forgetting import caps, planning, sweeps
from shoal.ps.forgetting.clock import CONFIRMING, SECOND
from shoal.ps.service import ParameterServer
from shoal.ps.update_log.file_sink import FileSink
from shoal.ps.update_log.space import LogSpace
from tests.examples import examples
from tests.ps.twins import DIMS, OPTIMIZERS, OWN, Server, Twins, model_spec, push_frame

SPAN = 64
CAP = 30
quiet = settings(
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    deadline=None,
)


def living(expire_after=SPAN, max_rows=2 * CAP, **options):
    """The tables of model_spec, of which the first expires and the second has a cap."""
    spec = model_spec(**options)
    spec.tables[0].expire_after = expire_after
    spec.tables[1].max_rows = max_rows
    return spec


def rows(draw):
    """Ids and gradients of both tables, some of which come again and again."""
    made = []
    for position, dim in enumerate(DIMS):
        ids = draw(st.lists(st.integers(0, OWN.size - 1), max_size=8, unique=True))
        seed = np.random.default_rng(draw(st.integers(0, 1000)))
        made.append((position, OWN[ids], seed.normal(size=(len(ids), dim))))
    return made


def state(server):
    """Sweeps, clock and what was removed."""
    lifecycle = server.server.model.lifecycle
    removed = [
        (each.step, each.event_time, each.eviction, each.ids.tolist())
        for position in range(2)
        for each in lifecycle.removals.pending(position)
    ]
    return lifecycle.state(), removed


@pytest.mark.parametrize("sliced", [False, True])
@settings(quiet, max_examples=examples(60))
@given(data=st.data())
def test_any_history_comes_to_what_python_makes_of_it(sliced, data, tmp_path_factory):
    """Pushes of any time, moves that suspend sweeps, other caps; and a log that is done again.

    sliced: plans are made in slices, as those of large tables are.
    """
    with pytest.MonkeyPatch.context() as patch:
        if sliced:
            patch.setattr(planning, "SLICE", 6)
            patch.setattr(planning, "EVERY", 2)
            patch.setattr(caps, "NEAR", 5)
            patch.setattr(caps, "FREE", 2)
            patch.setattr(sweeps, "PART_FILL", 3)
        any_history(data.draw, tmp_path_factory)


def any_history(draw, tmp_path_factory):
    spec = living(
        optimizers=[draw(st.sampled_from(sorted(OPTIMIZERS))) for _ in range(3)],
        value_dtype=draw(st.sampled_from(["float32", "bfloat16", "float16"])),
        admit_after=draw(st.sampled_from([1, 2])),
    )
    logs = tmp_path_factory.mktemp("logs") if draw(st.booleans()) else None
    twins = Twins(spec, logs=logs)
    now = 0
    rises = st.sampled_from([0, 0, 1, 7, SECOND // 2, SECOND, 5 * SECOND, 15 * SECOND, -9 * SECOND])
    for sequence in range(1, draw(st.integers(2, 60))):
        chance = draw(st.integers(0, 40))
        if chance == 0:
            suspended = draw(st.booleans())
            twins.each(lambda server, how=suspended: server.model.suspend_sweeps(how))
        if chance == 1:
            slots = draw(st.sampled_from([4096, 8192]))
            twins.each(lambda server, of=slots: server.model.lifecycle.own(of))
        now += draw(rises)
        times = [now, max(0, now - 40 * SECOND), now + 10**5 * SECOND, None, -5, 2**62]
        at = times[draw(st.sampled_from([0] * 20 + [1, 1, 2, 3, 4, 5]))]
        timed = {} if at is None else {"event_time": at}
        twins.push(
            push_frame(rows(draw), worker=draw(st.integers(0, 2)), sequence=sequence, **timed)
        )
        assert state(twins.native) == state(twins.python)
    twins.same()
    if logs is not None:
        expected = whole(twins.native)
        logged = [each.logged() for each in (twins.native, twins.python)]
        assert logged[0] == logged[1]
        assert again(spec, logs / "native-True") == expected


def whole(server):
    """All that a log brings back."""
    tables, vectors, pushes, numbers = server.content()[:4]
    lifecycle, removed = state(server)
    if lifecycle["planning"] is not None:
        # Where a log is done again it is counted at once.
        lifecycle["planning"] |= {"whole": None, "counts": None}
    return tables, vectors, pushes, numbers[:2], lifecycle | {"owing": False}, removed


def again(spec, folder):
    """What a server is that does a log again: its content, and its sweeps."""
    made = Server.__new__(Server)
    made.server = ParameterServer(0, Routing.even(2))
    made.sink = FileSink(folder, 0, 1, sync=False)
    made.server.keep_log(made.sink, 1, LogSpace(1 << 30), made.server.stopped.set)
    made.server.registration.restore(pb.RestoreReply(again=True, replay=True))
    made.sink.close()
    return whole(made)


def test_a_stream_s_pushes_are_python_s_only_where_the_clock_has_an_entry():
    twins = Twins(living())
    one = [(0, OWN[:1], np.ones((1, DIMS[0])))]
    for sequence in range(1, 1001):
        # A hundredth of the list's resolution each.
        twins.push(push_frame(one, sequence=sequence, event_time=sequence * SECOND // 100))
    # The first push of the worker, the first time, and an entry a second.
    assert 985 <= twins.applied_natively <= 991
    twins.same()


def test_so_are_those_of_a_back_fill_and_those_of_a_jump_that_is_not_confirmed():
    twins = Twins(living())
    one = [(0, OWN[:1], np.ones((1, DIMS[0])))]
    times = [100 * SECOND, 10 * SECOND] + [SECOND] * CONFIRMING + [500 * SECOND] * 5
    for sequence, time in enumerate(times, 1):
        twins.push(push_frame(one, sequence=sequence, event_time=time))
        assert state(twins.native) == state(twins.python)
    assert twins.applied_natively == 1 + CONFIRMING
    assert "5 pushes is" in twins.native.server.model.lifecycle.clock.doubt


def test_a_cap_is_kept_whoever_applies_the_push_that_exceeds_it():
    twins = Twins(living(max_rows=20))
    for sequence in range(1, 30):
        ids = OWN[sequence * 4 : sequence * 4 + 4]
        twins.push(push_frame([(1, ids, np.ones((4, DIMS[1])))], sequence=sequence))
        assert len(twins.native.server.model.tables[1]) <= 10
        assert state(twins.native) == state(twins.python)
    assert twins.applied_natively == 28
    assert twins.native.server.model.lifecycle.removed[1].evicted > 80


def test_a_push_that_fails_on_its_way_to_the_log_leaves_the_way_open(tmp_path, monkeypatch):
    """Its ticket is lost, a sweep that it was to have behind it comes behind the next one."""
    made = Server(living(), native=True, logs=tmp_path)
    one = [(0, OWN[:1], np.ones((1, DIMS[0])))]
    made.push(push_frame(one, sequence=1, event_time=0))
    log, between = made.server._log, made.server.model.lifecycle.between
    between.say(until=10**9, leap=0, due_from=0, suspended=False)

    def failing(*_, **__):
        raise MemoryError("no memory for an entry")

    with monkeypatch.context() as patched:
        patched.setattr(log, "append", failing)
        assert made.server.answerer.push(push_frame(one, sequence=2, event_time=1)) is None
    assert not between.closed
    assert made.push(push_frame(one, sequence=2, event_time=2))[1]
    assert not between.closed


@pytest.mark.parametrize("error", [MemoryError, ZeroDivisionError])
def test_a_sweep_that_fails_behind_a_push_ends_the_server(monkeypatch, error):
    made = Server(living(max_rows=4), native=True)
    ended = []
    monkeypatch.setattr(made.server._unbroken, "_end", lambda: ended.append(True))
    made.push(push_frame([(1, OWN[:1], np.ones((1, DIMS[1])))], sequence=1))

    def failing(*_):
        raise error("in the middle of a sweep")

    monkeypatch.setattr(made.server.model.lifecycle, "_note", failing)
    with pytest.raises(error):
        made.push(push_frame([(1, OWN[:9], np.ones((9, DIMS[1])))], sequence=2))
    assert ended == [True]


@pytest.mark.parametrize("logged", [True, False])
def test_connections_that_push_while_sweeps_are_due_lose_nothing(tmp_path, logged):
    """Each push counts once, the cap is kept, and the log done again is the server bit for bit."""
    spec = living(optimizers=("sgd", "adam", "sgd"))
    made = Server(spec, native=True, logs=tmp_path if logged else None)
    served, port = serving.serve(made.handlers, "127.0.0.1:0", 8)
    workers, count, over = 4, 150, []
    cap, _ = made.server.model.lifecycle._caps.most(1)
    start = threading.Barrier(workers)
    hot = OWN[:3]
    random_ids = np.arange(10**6)
    random_ids = random_ids[native_ids.slot_of(random_ids) < 8192]

    def work(worker):
        connection = rpc.Connection(f"127.0.0.1:{port}")
        draw = np.random.default_rng(worker)
        start.wait()
        try:
            for sequence in range(1, count + 1):
                # Of no other worker: of two that meet in a row, the order would tell.
                ids = np.unique(draw.choice(random_ids[worker::workers], 12))
                tables = [
                    (0, np.union1d(ids, hot), np.ones((np.union1d(ids, hot).size, DIMS[0]))),
                    (1, ids, np.ones((ids.size, DIMS[1]))),
                ]
                frame = push_frame(
                    tables,
                    worker=worker,
                    sequence=sequence,
                    learning_rate=-1.0,
                    pulled_version=2**40,
                    event_time=sequence * SECOND + worker,
                )
                reply, _ = frames.decode(connection.call(methods.PUSH, frame), pb.PushReply)
                assert reply.applied
                # Those of the others that are under way.
                if len(made.server.model.tables[1]) > cap + 12 * workers:
                    over.append(sequence)
        finally:
            connection.close()

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(workers)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    served.stop(None).wait()
    model = made.server.model
    assert not over
    assert model.version == workers * count
    assert len(model.tables[1]) <= cap
    assert sum(made.server.answerer.durations(methods.PUSH.kind)[0]) > count
    uses = model.tables[0].find(int(hot[0]))[3]
    assert uses == workers * count
    lifecycle = model.lifecycle
    assert lifecycle.removed[0].expired > 500
    assert lifecycle.removed[1].evicted > 500
    # Each part of a sweep has a step of its own, and so has each push.
    parts = len({each[0] for each in state(made)[1]})
    assert model.step >= workers * count + parts
    if logged:
        expected = whole(made)
        made.sink.close()
        assert again(spec, tmp_path / "native-True") == expected
