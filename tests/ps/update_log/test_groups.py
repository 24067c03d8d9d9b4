"""M10: pushes that wait together go to the keeper of a log together, in their order."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.channels import serving
from shoal.proto.errors import WireError
from shoal.ps.update_log import groups as log_groups
from shoal.ps.update_log import peer_sink
from shoal.ps.update_log.groups import Groups, entries_of
from shoal.ps.update_log.peer_sink import PeerSink
from shoal.ps.update_log.peer_store import ENTRY_BYTES, PeerLogs
from shoal.ps.update_log.sinks import LogLostError, LogTakenError, Standing

PATIENCE = 120.0
"""Seconds that a test waits for an event."""


def entry(step, incarnation=1):
    return pb.LogEntry(log="a", server=0, incarnation=incarnation, step=step)


def frame(step, size=40):
    return step.to_bytes(8, "little") * (size // 8)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.sampled_from([8, 40, 800, 2 << 20, 6 << 20])),
        st.tuples(st.sampled_from(["answer", "answer", "lose", "disagree"]), st.just(0)),
    ),
    max_size=80,
)


@given(STEPS)
def test_entries_go_in_their_order_one_group_at_a_time_and_each_is_kept_once_it_is_answered(steps):
    groups, under_way, sent, handed, lost = Groups(), None, [], [], False
    for now, (step, size) in enumerate(steps):
        group = None
        if step == "add":
            try:
                kept = groups.add(entry(len(handed) + 1), frame(len(handed), size), now)
            except LogLostError:
                assert lost
                continue
            handed.append((kept, frame(len(handed), size), now))
        elif step == "answer" and under_way is not None:
            answered, under_way = under_way, None
            groups.answered(answered, answered.last)
        elif step == "lose" or (step == "disagree" and under_way is not None):
            if step == "disagree":
                with pytest.raises(LogLostError, match="has 0 of"):
                    groups.answered(under_way, 0)
            groups.lose(LogLostError("lost"))
            lost, under_way = True, None
            assert groups.next() is None
        if not lost and under_way is None and len(handed) > len(sent):
            group = groups.next()
        if group is not None:
            assert under_way is None
            under_way = group
            assert group.label.first == len(sent) + 1
            assert group.since == handed[len(sent)][2]
            found = [bytes(each) for _, each in entries_of(group.label, group.body().joined())]
            assert found == [each[1] for each in handed[len(sent) : group.last]]
            places = [each.step for each in group.label.entries]
            assert places == list(range(len(sent) + 1, group.last + 1))
            assert len(found) <= log_groups.GROUP_ENTRIES
            assert len(group.body()) <= log_groups.GROUP_BYTES or len(found) == 1
            sent += found
        answered = len(sent) - (len(under_way.waiting) if under_way else 0)
        for place, (kept, *_) in enumerate(handed):
            if lost:
                assert kept.done()
            else:
                assert kept.done() == (place < answered)
        # Nobody is left behind: what waits is waited for.
        assert lost or under_way is not None or len(sent) == len(handed)


class Keeper:
    """A server that keeps a log, and does with each call to append what `then` does."""

    def __init__(self):
        self.held = PeerLogs()
        self.groups = []
        self.then = lambda number, keep: keep()
        calls = {
            methods.BEGIN_LOG: self.held.begin,
            methods.APPEND_LOG: self.append,
            methods.DROP_LOG: self.held.drop,
            methods.TAKE_LOG: self.held.take,
        }
        self.server, port = serving.serve(calls, "127.0.0.1:0", 1)
        self.address = f"127.0.0.1:{port}"
        self.sinks = []

    def append(self, labelled):
        self.groups.append([each.step for each in labelled[0].entries])
        return self.then(len(self.groups), lambda: self.held.append(labelled))

    def sink(self, incarnation=1, seconds=240.0):
        where = lambda *_: self.address  # noqa: E731
        made = PeerSink(0, incarnation, lambda: 1, lambda _: "", where, where, 10.0, seconds)
        self.sinks.append(made)
        return made

    def begun(self, **options):
        sink = self.sink(**options)
        sink.begin(pb.LogBase(log="a", server=0, incarnation=1))
        return sink

    def steps(self):
        return [step for step, _ in self.held._logs[0].entries()]

    def close(self):
        for each in self.sinks:
            each.close()
        self.server.stop(None).wait()


@pytest.fixture
def keeper():
    made = Keeper()
    yield made
    made.close()


def test_pushes_that_wait_for_an_answer_go_in_one_call_and_its_answer_releases_all(keeper):
    first, go_on = threading.Event(), threading.Event()

    def then(number, keep):
        if number == 1:
            first.set()
            assert go_on.wait(PATIENCE)
        return keep()

    keeper.then = then
    sink = keeper.begun()
    waits = [sink.append(entry(1), frame(1))]
    assert first.wait(PATIENCE)
    waits += [sink.append(entry(step), frame(step)) for step in range(2, 9)]
    go_on.set()
    for wait in waits:
        wait()
    assert keeper.groups == [[1], list(range(2, 9))]
    assert keeper.steps() == list(range(1, 9))
    taken = keeper.sink(incarnation=2).take()
    found = [(each.step, bytes(push)) for each, push in taken.entries]
    assert found == [(step, frame(step)) for step in range(1, 9)]


def test_a_group_whose_answer_was_lost_is_kept_once(keeper, monkeypatch):
    monkeypatch.setattr(peer_sink, "APPEND_PATIENCE", PATIENCE)

    def then(number, keep):
        kept = keep()
        if number == 1:
            raise WireError(pb.NOT_READY, "the answer does not arrive")
        return kept

    keeper.then = then
    sink = keeper.begun()
    sink.append(entry(1), frame(1))()
    sink.append(entry(2), frame(2))()
    assert keeper.groups == [[1], [1], [2]]
    assert len(keeper.held) == 2 * (ENTRY_BYTES + len(frame(1)))


@pytest.mark.parametrize(
    "fault", [pytest.param("hangs", marks=pytest.mark.slow), "dies", "is taken over"]
)
def test_all_pushes_that_wait_are_released_when_the_log_is_lost(keeper, fault):
    first, go_on = threading.Event(), threading.Event()

    def then(_, keep):
        first.set()
        assert go_on.wait(PATIENCE)
        return keep()

    keeper.then = then
    sink = keeper.begun(seconds=4.0 if fault == "hangs" else 240.0)
    waits = [sink.append(entry(1), frame(1))]
    assert first.wait(PATIENCE)
    waits += [sink.append(entry(step), frame(step)) for step in range(2, 6)]
    stopped = None
    if fault == "dies":
        stopped = keeper.server.stop(None)
    elif fault == "is taken over":
        assert list(keeper.sink(incarnation=2).take().entries) == []
        go_on.set()
    expected = LogTakenError if fault == "is taken over" else LogLostError
    for wait in waits:
        with pytest.raises(expected):
            wait()
    with pytest.raises(expected):
        sink.append(entry(6), frame(6))
    go_on.set()
    if stopped is not None:
        stopped.wait()
    assert len(keeper.groups) == 1  # of a lost log nothing more is sent


def test_a_log_that_lacks_entries_is_no_log_any_more(keeper):
    """The keeper says how far the log is, so that neither of the two is mistaken unnoticed."""
    sink = keeper.begun()
    sink.append(entry(1), frame(1))()
    groups = [
        (pb.LogGroup(first=3, entries=[entry(3)], sizes=[40]), frame(3)),
        (pb.LogGroup(first=1, entries=[entry(1), entry(2)], sizes=[40, 40]), frame(1) + frame(2)),
    ]
    for group in groups:
        with pytest.raises(WireError, match=r"NO_LOG.*has 1 entries"):
            keeper.held.append(group)
    for sizes in ([40], [40, 41], [-1, 81]):
        label = pb.LogGroup(first=2, entries=[entry(2), entry(3)], sizes=sizes)
        with pytest.raises(WireError, match=r"BAD_REQUEST.*2 entries"):
            keeper.held.append((label, frame(2) + frame(3)))
    keeper.then = lambda _, keep: pb.AppendLogReply(position=keep().position + 1)
    with pytest.raises(LogLostError, match="has 3 of the 2 updates"):
        sink.append(entry(2), frame(2))()


def test_who_takes_a_log_counts_from_its_own_first_entry(keeper):
    sink = keeper.begun()
    for step in (1, 2):
        sink.append(entry(step), frame(step))()
    successor = keeper.sink(incarnation=2)
    for _ in range(2):  # the first answer may be lost
        taken = successor.take()
        assert [each.step for each, _ in taken.entries] == [1, 2]
    successor.adopt(taken.base, 0, Standing())
    successor.append(entry(3, incarnation=2), frame(3))()
    assert keeper.steps() == [1, 2, 3]


def test_a_neighbour_that_was_replaced_at_its_address_gets_a_new_connection(keeper, monkeypatch):
    """K8: an old one may look for its name only half a minute later."""
    made, connection = [], peer_sink.Connection

    def noted(*arguments, **options):
        made.append(connection(*arguments, **options))
        return made[-1]

    monkeypatch.setattr(peer_sink, "Connection", noted)
    monkeypatch.setattr(peer_sink, "APPEND_PATIENCE", 0.0)
    sink = keeper.begun()
    sink.append(entry(1), frame(1))()
    keeper.server.stop(None).wait()
    with pytest.raises(LogLostError):
        sink.append(entry(2), frame(2))()
    for connections in (2, 3):
        with pytest.raises(LogLostError):
            sink.reach()
        assert len(made) == connections


@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from([8, 800, 1 << 15])), max_size=30))
def test_a_log_has_what_is_above_the_steps_it_let_go_of_in_its_order_also_while_it_is_read(drawn):
    held, expected = PeerLogs(), []
    held.begin(pb.BeginLogRequest(base=pb.LogBase(log="a", server=0)))
    reading = []
    for place, (step, size) in enumerate(drawn, start=1):
        label = pb.LogGroup(first=place, entries=[entry(step, 0)], sizes=[size])
        held.append((label, frame(place, size)))
        expected.append((step, frame(place, size)))
        if size == 8:
            gone = pb.DropLogRequest(log="a", server=0, step=step // 2)
            held.drop(gone)
            expected = [each for each in expected if not gone.step or each[0] > gone.step]
        reading.append(held._logs[0].entries())  # a buffer that is read cannot grow
    found = [(step, bytes(push)) for step, (_, push) in held._logs[0].entries()]
    assert found == sorted(expected, key=lambda each: each[0])
    assert len(held) == sum(ENTRY_BYTES + len(push) for _, push in found)
