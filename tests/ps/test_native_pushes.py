"""Pushes applied without Python: by every rule, refusal and count those of a server without it."""

import contextlib
import threading

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal.proto import faults, methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError
from shoal.proto.values.routing import Routing
from shoal.proto.wire import frames
from shoal.ps.push_samples import PushSamples
from shoal.ps.service import ParameterServer
from shoal.ps.update_log.file_sink import RECORD_BYTES
from shoal.ps.update_log.sinks import LogTakenError
from tests.fuzz.mutations import mutated
from tests.ps.twins import (
    DIMS,
    OPTIMIZERS,
    OWN,
    Server,
    Twins,
    begun,
    model_spec,
    push_frame,
    pushes,
    seeds,
)

ONES = [(0, OWN[:4], np.ones((4, DIMS[0]))), (1, OWN[2:5], np.ones((3, DIMS[1])))]
DENSE = np.full(5, 0.5), np.full(2, 0.125)
any_optimizer = st.sampled_from(sorted(OPTIMIZERS))
quiet = settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)


@quiet
@given(data=st.data())
def test_any_pushes_come_to_what_python_makes_of_them(data):
    spec = model_spec(
        [data.draw(any_optimizer) for _ in range(3)],
        data.draw(st.sampled_from(["float32", "bfloat16", "float16"])),
        data.draw(st.sampled_from([1, 2])),
    )
    twins = Twins(spec, initialized=data.draw(st.integers(0, 9)) > 0)
    for sequence in range(1, data.draw(st.integers(2, 10))):
        twins.push(data.draw(pushes(sequence)))
        if data.draw(st.integers(0, 15)) == 5:
            worker, upto = data.draw(st.integers(0, 2)), data.draw(st.integers(0, 1))
            twins.each(lambda server, w=worker, u=upto: server._pushes.fence(w, u))
    if data.draw(st.integers(0, 9)) == 5:
        twins.each(ParameterServer.close)
        twins.push(data.draw(pushes(20)))
    twins.same()


@quiet
@given(data=st.data(), chance=st.randoms(use_true_random=False))
def test_so_do_damaged_ones(data, chance):
    twins = begun()
    twins.push(mutated([*seeds(), data.draw(pushes(2))], chance))
    twins.same()


@pytest.mark.parametrize("frame", seeds())
def test_the_whole_pushes_that_mutations_begin_with_are_applied(frame):
    twins = begun()
    twins.push(frame)
    assert twins.applied_natively == 1
    twins.same()


PLAIN = {
    "rows and dense values": {},
    "rates of their own": {"table_rates": [0.5, 0.25]},
    "a modulated rate": {"modulate_rate": True, "own_pushes": 1},
    "16 bits": {"value_types": [pb.BFLOAT16, pb.BFLOAT16]},
    "16 bits with scales": {"value_types": [pb.FLOAT16, pb.FLOAT16], "scales": [2.0, 0.5]},
    "16 bits of one table": {"value_types": [pb.FLOAT32, pb.FLOAT16], "scales": [1.0, 0.5]},
    "a task": {"task": 2**40, "records_done": 7, "pulled_time": 1.5},
}


@pytest.mark.parametrize("header", PLAIN.values(), ids=PLAIN)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_python_has_no_part_in_what_a_worker_sends_but_in_the_first_push(header, optimizer):
    twins = Twins(model_spec([optimizer] * 3))
    for sequence in range(2, 7):
        twins.push(push_frame(ONES, DENSE, sequence=sequence, **header))
    assert twins.applied_natively == 4
    twins.same()


def test_a_push_of_many_tables_is_python_s():
    """More than C has room for; and the model may have them all the same."""
    table = model_spec().tables[0]
    spec = model_spec()
    spec.tables.extend(
        pb.TableSpec(
            name=f"t{k}",
            dim=DIMS[0],
            initializer=table.initializer,
            optimizer=table.optimizer,
        )
        for k in range(300)
    )
    twins = Twins(spec)
    one = np.ones((1, DIMS[0]))
    for sequence in range(1, 4):
        twins.push(push_frame([(k, OWN[:1], one) for k in range(2, 302)], sequence=sequence))
    assert twins.applied_natively == 0
    for sequence in range(4, 6):
        twins.push(push_frame([(k, OWN[:1], one) for k in range(2, 202)], sequence=sequence))
    assert twins.applied_natively == 2
    twins.same()


def test_steps_go_on_beyond_the_eras_that_rows_tell_apart():
    twins = Twins(model_spec())
    twins.each(lambda server: server.model.moments.restore(7, 2**32 - 3, {}))
    for sequence in range(1, 7):
        twins.push(push_frame(ONES[:1], sequence=sequence))
    assert twins.applied_natively == 5
    twins.same()


@pytest.mark.parametrize(
    "option", [{"synchronous": True}, {"finite_only": False}], ids=["sync", "not only finite"]
)
def test_what_a_server_is_told_holds_without_python_too(option):
    server = ParameterServer(0, Routing.even(2), **option)
    server.registration.begin_anew()
    handlers = server.handlers()
    handlers[methods.REGISTER](pb.RegisterRequest(model=model_spec()))
    first = [np.zeros(5, np.float32), np.zeros(2, np.float32)]
    handlers[methods.INITIALIZE_DENSE](frames.encode(pb.InitializeDenseRequest(), first))
    bad = [(0, OWN[:1], np.full((1, DIMS[0]), np.nan))]
    handlers[methods.PUSH](memoryview(push_frame(ONES)))
    assert (server.answerer.push(push_frame(bad, sequence=2)) is None) == server._check_finite
    assert (server.answerer.push(push_frame(ONES, sequence=3)) is None) == server._synchronous


@quiet
@given(data=st.data())
def test_logged_pushes_are_in_the_log_as_those_of_python(tmp_path_factory, data):
    twins = Twins(model_spec(), logs=tmp_path_factory.mktemp("logs"))
    for sequence in range(1, data.draw(st.integers(2, 10))):
        twins.push(data.draw(pushes(sequence)))
    twins.same()
    assert twins.native.logged() == twins.python.logged()


def test_plain_pushes_are_logged_without_python_s_checks(tmp_path):
    twins = Twins(model_spec(), logs=tmp_path)
    sent = [push_frame(ONES, DENSE, sequence=sequence) for sequence in range(1, 6)]
    for frame in sent:
        twins.push(frame)
    assert twins.applied_natively == 4
    expected = [(step, step - 1, frame) for step, frame in enumerate(sent, 1)]
    assert twins.native.logged() == twins.python.logged() == expected


def test_a_push_without_room_in_the_log_is_refused_and_changes_nothing(tmp_path):
    frame = push_frame(ONES, DENSE)
    twins = Twins(model_spec(), logs=tmp_path, bound=3 * (RECORD_BYTES + len(frame)))
    outcomes = [twins.push(push_frame(ONES, DENSE, sequence=each)) for each in range(1, 6)]
    assert twins.applied_natively == 2
    assert [each[0] for each in outcomes[3:]] == [pb.NOT_READY] * 2
    twins.same()
    assert len(twins.native.logged()) == 3


def test_a_push_to_a_log_that_another_incarnation_has_is_the_last_one(tmp_path):
    """It is applied, and neither answered nor taken again."""
    made = Server(model_spec(), native=True, logs=tmp_path)
    made.push(push_frame(ONES, sequence=1))

    def taken():
        raise LogTakenError("another one writes it")

    made.sink.append = lambda entry, frame: taken
    for sequence in (2, 2, 3):
        (kind, _), native = made.push(push_frame(ONES, sequence=sequence))
        assert (kind, native) == (pb.NOT_READY, False)
    assert made.server.stopped.is_set()
    assert made.server.model.version == 2
    assert made.content()[3][3][0] == 2
    with made.server._pushes.paused() as applied:
        assert [each["sequence"] for each in applied] == [1]


def test_an_error_of_ours_while_a_push_is_kept_ends_the_server(tmp_path, monkeypatch):
    made = Server(model_spec(), native=True, logs=tmp_path)
    ended = []
    monkeypatch.setattr(made.server._unbroken, "_end", lambda: ended.append(True))
    made.push(push_frame(ONES, sequence=1))

    def fails():
        raise ZeroDivisionError

    made.sink.append = lambda entry, frame: fails
    with pytest.raises(ZeroDivisionError):
        made.push(push_frame(ONES, sequence=2))
    assert ended == [True]


def test_where_a_process_is_to_die_at_a_point_the_push_comes_there(tmp_path, monkeypatch):
    monkeypatch.setattr(faults, "_FOLDER", str(tmp_path))
    monkeypatch.setattr(faults, "_PROCESS", "ps-0")
    server = Server(model_spec(), native=True)
    for sequence in (1, 2):
        assert server.push(push_frame(ONES, sequence=sequence))[1] == (sequence == 2)
    for sequence, name in enumerate(
        ("push-received", "push-logged", "push-half-applied", "push-applied@ps-0"), 3
    ):
        (tmp_path / name).touch()
        assert server.server.answerer.push(push_frame(ONES, sequence=sequence)) is None
        (tmp_path / name).unlink()
    assert server.push(push_frame(ONES, sequence=9))[1]


def test_a_push_that_is_due_to_be_looked_at_is_python_s():
    made = Server(model_spec(), native=True)
    server, now = made.server, [100.0]
    samples = PushSamples(server, 2, clock=lambda: now[0])
    made.handlers = samples.watching(made.handlers)
    made.push(push_frame(ONES, sequence=1))
    assert samples.seen["a"].gradients.count
    assert samples._tables["a"].pushes == 1
    assert samples._due == 101.0
    # It is told by the machine's clock, which is beyond that.
    server.answerer.leave_from(float("inf"))
    assert made.push(push_frame(ONES, sequence=2))[1]
    server.answerer.leave_from(0.0)
    now[0] = 101.0
    assert not made.push(push_frame(ONES, sequence=3))[1]
    assert samples._tables["a"].pushes == 2


def test_pushes_of_many_workers_beside_fences_pauses_and_those_of_python():
    """Each is applied once; a pause finds version and register of one moment."""
    spec = model_spec(("sgd", "sgd", "sgd"))
    server = Server(spec, native=True)
    workers, pushes_of = 6, 150
    ended, wrong = threading.Event(), []
    rows = [(0, OWN[:9], np.ones((9, DIMS[0])))]
    dense = np.ones(5), np.ones(2)

    def work(worker):
        for sequence in range(1, pushes_of + 1):
            frame = push_frame(
                rows,
                dense,
                worker=worker,
                sequence=sequence,
                learning_rate=-1.0,
                own_pushes=0,
                pulled_version=2**40,
            )
            for _ in range(1 + sequence % 2):  # each second one comes twice
                server.push(frame)

    def disturb():
        while not ended.is_set():
            for since in (-np.inf, np.inf):
                server.server.answerer.leave_from(since)
                with server.server._pushes.paused() as applied:
                    version = server.server.model.version
                    known = sum(each["sequence"] for each in applied)
                if version != known:
                    wrong.append((version, known))
            with contextlib.suppress(WireError):
                server.server._pushes.fence(99, 1)

    beside = threading.Thread(target=disturb)
    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(workers)]
    for each in (beside, *threads):
        each.start()
    for each in threads:
        each.join()
    ended.set()
    beside.join()
    assert not wrong
    model, total = server.server.model, workers * pushes_of
    assert (model.version, model.step) == (total, total)
    assert server.server._pushes.duplicates == total / 2
    found = dict(
        zip(*[each.tolist() for each in next(iter(model.tables[0].export()))[::4]], strict=True)
    )
    assert found == dict.fromkeys(OWN[:9].tolist(), total)
    np.testing.assert_array_equal(model.dense.block.values, np.arange(5) + total)
    np.testing.assert_array_equal(model.dense.state, np.ones(2) + total)
    assert model.distributions()[0].count == total
