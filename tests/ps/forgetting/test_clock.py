"""The event clock: what moves it, what does not, and how old a step's rows are by it."""

import json
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.ps.forgetting.clock import CONFIRMING, RESOLUTION, SECOND, EventClock, Timeline
from tests.examples import examples

DAY = 86_400 * SECOND
SPAN = 7 * DAY


def clock_of(times, span=SPAN):
    clock = EventClock({0: span})
    for step, time in enumerate(times, 1):
        clock.note(step, time)
    return clock


def told(clock):
    """Its state, as a manifest brings it."""
    return json.loads(json.dumps(clock.state()))


@settings(max_examples=examples(300), deadline=None)
@given(
    span=st.sampled_from([1, 63, 64, 65, 1000, 6400]),
    rises=st.lists(st.integers(0, 40), min_size=1, max_size=80),
    late=st.lists(st.integers(0, 3), min_size=80, max_size=80),
)
def test_what_is_cut_is_older_than_the_span_and_all_that_is_a_64th_older(span, rises, late):
    """Whatever the times: nothing too early, and nothing later than the resolution."""
    line = Timeline(span)
    now, times = 0, {}
    line.base = now
    for step, rise in enumerate(rises, 1):
        # A push that is late counts as of the clock's time.
        before, now = now, now + (rise if late[step - 1] else 0)
        if now > before:
            line.advance(step, before, now)
        times[step] = now
        cut = line.cut(now)
        for each, time in times.items():
            if each < cut:
                assert time <= now - span
            elif time < now - span - line.resolution:
                pytest.fail(f"step {each} of time {time} is not cut at {now}")
            assert times[each] <= max(line.latest(each, now), times[each])
    assert len(line.entries) <= (RESOLUTION if span >= RESOLUTION else span) + 2


def test_the_list_stays_short_however_long_the_job():
    clock = clock_of(range(0, 1000 * DAY, DAY // 50))
    assert len(clock.lines[0].entries) <= RESOLUTION + 2
    assert clock.now == 1000 * DAY - DAY // 50


def test_the_clock_is_the_highest_time_and_a_back_fill_does_not_move_it():
    clock = clock_of([10 * DAY, 9 * DAY, 11 * DAY, 2 * DAY, 1 * DAY])
    assert clock.now == 11 * DAY
    assert clock.doubt == ""
    for step in range(6, 6 + CONFIRMING):
        clock.note(step, 3 * DAY)
    assert clock.now == 11 * DAY
    assert "the last 102 pushes is more than 1.8 days behind the latest" in clock.doubt
    clock.note(200, 11 * DAY)
    assert clock.doubt == ""


def test_one_push_from_the_future_does_not_move_it():
    clock = clock_of([DAY, DAY + 5, 4000 * DAY, DAY + 7])
    assert clock.now == DAY + 7
    assert clock.doubt == ""
    assert clock.lines[0].cut(clock.now) == 0


def test_a_jump_is_told_until_so_many_pushes_in_a_row_confirm_it():
    clock = clock_of([DAY])
    for step in range(2, CONFIRMING + 1):
        clock.note(step, 20 * DAY + step)
        assert clock.now == DAY
        assert f"of {step - 1} pushes is 19.0 days ahead of those before" in clock.doubt
    clock.note(CONFIRMING + 1, 22 * DAY)
    assert clock.doubt == ""
    assert clock.now == 20 * DAY + 2
    # Rows of the pushes that waited to be confirmed are of the new time.
    assert clock.lines[0].entries == [(2, DAY)]
    assert clock.lines[0].cut(clock.now) == 2
    assert clock.lines[0].latest(50, clock.now) == clock.now


def test_a_push_of_the_old_time_makes_a_jump_begin_anew():
    """As where one of two workers has records with wrong times."""
    clock = clock_of([DAY])
    for step in range(2, 3 * CONFIRMING):
        clock.note(step, 20 * DAY if step % 3 else DAY + step)
    assert clock.now < 2 * DAY


def test_what_is_far_behind_does_not_keep_a_jump_from_being_confirmed():
    """As where one worker fills in the past while the other's stream goes on after a pause."""
    clock = clock_of([100 * DAY])
    for step in range(2, 2 + 2 * CONFIRMING):
        clock.note(step, 120 * DAY if step % 2 else 3 * DAY)
    assert clock.now == 120 * DAY


def test_without_a_table_that_expires_it_is_the_highest_time():
    clock = EventClock({})
    for step, time in enumerate((5, 10**15, 7), 1):
        clock.note(step, time)
    assert clock.now == 10**15
    assert clock.doubt == ""


def test_at_most_one_sweep_is_due_for_each_entry():
    clock = clock_of(range(0, 8 * DAY, SPAN // RESOLUTION))
    line = clock.lines[0]
    assert line.due(clock.now)
    line.planned = line.entries[-1][0]
    assert not line.due(clock.now)
    line.planned, line.swept = 0, line.cut(clock.now)
    assert not line.due(clock.now)


@settings(max_examples=examples(60), deadline=None)
@given(seed=st.integers(0, 99), cut=st.integers(1, 299))
def test_a_restored_clock_goes_on_as_the_one_before(seed, cut):
    draw = random.Random(seed)
    time, times = 0, []
    for _ in range(300):
        time += draw.choice([0, DAY // 40, DAY // 9, DAY])
        times.append(time + draw.choice([0, 0, 0, -3 * DAY, 60 * DAY, 300 * DAY]))
    whole, half = clock_of(times), clock_of(times[:cut])
    again = EventClock({0: SPAN})
    again.restore(told(half))
    for step, each in enumerate(times[cut:], cut + 1):
        again.note(step, each)
    assert told(again) == told(whole)


def test_a_table_with_another_span_keeps_the_times_it_knows():
    clock = clock_of(range(0, 9 * DAY, DAY // 10))
    clock.lines[0].swept = clock.lines[0].planned = 30
    again = EventClock({0: 2 * DAY, 1: SPAN})
    again.restore(told(clock))
    line = again.lines[0]
    assert (line.swept, line.planned) == (0, 0)
    assert line.due(again.now)
    oldest = again.now - 2 * DAY
    assert oldest - 2 * DAY // 10 <= line.latest(line.cut(again.now) - 1, again.now) <= oldest
    assert again.lines[1].base == again.now


@settings(max_examples=examples(60), deadline=None)
@given(seed=st.integers(0, 99))
def test_steps_of_another_list_become_no_older_and_hardly_younger(seed):
    """Of two servers that were not called by the same pushes."""
    draw = random.Random(seed)
    time, clocks, times = 0, [EventClock({0: SPAN}) for _ in range(2)], [{}, {}]
    steps = [0, 0]
    for _ in range(400):
        time += draw.choice([0, DAY // 40, DAY // 9])
        for server in range(2):
            if draw.random() < 0.7:
                steps[server] += 1
                clocks[server].note(steps[server], time)
                times[server][steps[server]] = time
    ours, theirs = (clock.lines[0] for clock in clocks)
    now = max(clock.now for clock in clocks)
    known = [step for step in times[1] if not theirs.entries or step >= theirs.entries[0][0]]
    moved = ours.moved(np.array(known, np.int64), theirs, clocks[1].now, steps[0])
    for step, new in zip(known, moved.tolist(), strict=True):
        assert 0 <= new <= steps[0]
        latest = ours.latest(new, now)
        assert latest >= times[1][step]
        # The list has nothing finer than its entries.
        later = [entry for _, entry in ours.entries if entry >= theirs.latest(step, clocks[1].now)]
        assert latest <= (later[0] if later else now)
    same = ours.moved(np.arange(1, steps[0] + 1), ours, clocks[0].now, steps[0])
    assert same.tolist() == list(range(1, steps[0] + 1))
