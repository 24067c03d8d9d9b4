"""The state of a server's own log, its account and its size: random events, without I/O."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.base.transitions import InvalidTransitionError
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError
from shoal.ps.update_log.space import LogSpace
from shoal.ps.update_log.unprotected import TRANSITIONS, LogState, Protection

EVENTS = {
    "begun, saved": (lambda log, name: log.begun(name, protects=True), LogState.PROTECTING),
    "begun": (lambda log, name: log.begun(name, protects=False), LogState.BASELESS),
    "based": (lambda log, _: log.based(), LogState.PROTECTING),
    "unlogged": (lambda log, name: log.unlogged(f"unlogged by {name}"), LogState.LOST),
}
"""Events that always lead to one state, or are errors."""

PATHS = {
    LogState.EMPTY: [],
    LogState.LOST: ["unlogged"],
    LogState.BASELESS: ["unlogged", "begun"],
    LogState.PROTECTING: ["begun, saved"],
}


def at(state):
    log = Protection(lambda: 0.0)
    for number, event in enumerate(PATHS[state]):
        EVENTS[event][0](log, f"log {number}")
    assert log.state is state
    return log


@pytest.mark.parametrize(("state", "event"), [*itertools.product(LogState, EVENTS)])
def test_an_event_leads_where_the_table_says_or_is_an_error_of_ours(state, event):
    do, target = EVENTS[event]
    log = at(state)
    if target in TRANSITIONS.after(state):
        do(log, "next")
        assert log.state is target
    else:
        before = vars(log).copy()
        with pytest.raises(InvalidTransitionError, match=f"{state.name} to {target.name}"):
            do(log, "next")
        assert vars(log) == before


def test_no_state_leads_back_to_the_beginning_and_none_is_an_end():
    for state in LogState:
        assert LogState.EMPTY not in TRANSITIONS.after(state)
        assert LogState.LOST in TRANSITIONS.after(state) or state is LogState.LOST
        assert LogState.PROTECTING in TRANSITIONS.after(state)


STEPS = st.tuples(st.sampled_from([*EVENTS, "lost", "lost, late", "exposed"]), st.integers(0, 9))


@given(st.lists(STEPS))
def test_the_account_is_of_the_times_without_protection(steps):
    now = times = 0
    without, began = 0, None
    log = Protection(lambda: now)
    for number, (event, seconds) in enumerate(steps):
        now += seconds
        name, written = log.name, log.written
        try:
            if event == "lost":
                log.lost(name, "the keeper is gone")
                exposes = written
            elif event == "lost, late":
                log.lost(f"{name}, an earlier one", "the keeper is gone")
                exposes = False
            elif event == "exposed":
                if log.state is LogState.PROTECTING:
                    continue  # never done to a log that is written
                log.exposed("no log was begun")
                exposes = True
            else:
                EVENTS[event][0](log, f"log {number}")
                exposes = event == "unlogged"
        except InvalidTransitionError:
            exposes = False
        if exposes and began is None:
            began, times = now, times + 1
        if log.state is LogState.PROTECTING and began is not None:
            without, began = without + now - began, None
        assert (log.times, log.seconds) == (times, without)
        assert bool(log.why) == (began is not None)
        assert log.written == (log.state in (LogState.BASELESS, LogState.PROTECTING))
        if log.state in (LogState.LOST, LogState.BASELESS):
            assert log.why
        assert log.writes(log.name) == log.written
        assert not log.writes("another")


def test_a_beginning_is_told_only_if_it_lasts_or_something_else_happens():
    now = 0.0
    log = Protection(lambda: now)
    log.unlogged("rows were loaded", told_after=60.0)
    log.begun("first", protects=False)
    now = 59.0
    assert (log.told, log.times) == ("", 0)
    now = 60.0
    assert (log.told, log.times) == ("rows were loaded", 1)
    log.based()
    assert (log.told, log.times, log.seconds) == ("", 1, 60.0)

    again = Protection(lambda: now)
    again.unlogged("rows were loaded", told_after=60.0)
    assert again.why
    again.begun("second", protects=True)
    assert (again.why, again.times, again.seconds) == ("", 0, 0.0)

    lost = Protection(lambda: now)
    lost.unlogged("rows were loaded", told_after=60.0)
    lost.begun("third", protects=False)
    lost.lost("third", "its keeper is gone")
    assert (lost.told, lost.times) == ("rows were loaded", 1)


@given(
    st.integers(1, 100),
    st.lists(st.tuples(st.sampled_from(["add", "drop", "hold"]), st.integers(0, 60))),
)
def test_a_log_takes_what_fits_and_one_push_whatever_its_size(bound, steps):
    space, held = LogSpace(bound), []
    for step, (event, size) in enumerate(steps, start=1):
        if event == "add":
            space.add(step, size)
            held.append((step, size))
        elif event == "drop":
            space.drop(step - size)
            held = [each for each in held if each[0] > step - size]
        else:
            space.hold(held[1:], after=0)
            held = held[1:]
        space.reserved = size
        assert space.bytes == sum(each for _, each in held)
        assert space.nearly_full == (2 * space.bytes > bound)
        taken = space.bytes + space.reserved
        if taken and taken + size > bound:
            with pytest.raises(WireError, match="--log-mb") as refused:
                space.check(size)
            assert refused.value.kind == pb.NOT_READY
        else:
            space.check(size)


@given(st.integers(1, 100), st.lists(st.integers(0, 300)), st.booleans())
def test_a_log_may_grow_with_the_tables_and_never_falls_below(bound, tables, grows):
    space = LogSpace(bound, grows=grows)
    space.add(1, 1)
    most = bound
    for each in tables:
        space.beside(each)
        most = max(most, 2 * each) if grows else bound
        space.check(most - 1)
        with pytest.raises(WireError, match="--log-mb"):
            space.check(most)
