"""The checkpoint under way, those that are kept, and the last one: random events, without I/O."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.base.transitions import InvalidTransitionError
from shoal.master.job.checkpoints.checkpoints import Taking
from shoal.master.job.checkpoints.kept_checkpoints import KeptCheckpoints, Taken
from shoal.master.job.checkpoints.last_checkpoint import ATTEMPTS, PAUSE_SECONDS, LastCheckpoint
from shoal.master.job.instructions import TakeCheckpoint
from shoal.master.work.ids import ServerId
from shoal.master.work.outcomes import DataDescribed
from shoal.master.work.units import Source
from shoal.proto import shoal_pb2 as pb
from tests.master.strategies import begun

TRAINING = DataDescribed(training=(Source("t", 40),))
ONE, TWO = ServerId(0), ServerId(1)


def complete(number):
    return Taken(number, version=number * 10, bytes=100, seconds=0.1)


def ask(job, now):
    """A server asks for a checkpoint; orders one unless one is under way."""
    job.servers.answered(ONE, pb.ServerStatus(wants_checkpoint=True))
    job.tick(now)


ORDERED = "one is to begin"

EVENTS = {
    "ask": (ask, ORDERED),
    "begin": (lambda job, now: job.checkpoint_begun(now), Taking.BEGUN),
    "taken": (lambda job, now: job.checkpoint_taken(complete(int(now)), False, now), Taking.IDLE),
    "failed": (lambda job, now: job.checkpoint_failed("no room", False, now), Taking.IDLE),
    "restarted": (lambda job, now: job.master_restarted(now), Taking.IDLE),
}
PATHS = {Taking.IDLE: [], ORDERED: ["ask"], Taking.BEGUN: ["ask", "begin"]}
AFTER = {
    Taking.IDLE: {ORDERED, Taking.BEGUN, Taking.IDLE},
    ORDERED: {Taking.BEGUN, Taking.IDLE},
    Taking.BEGUN: {Taking.IDLE},
}


def state_of(job):
    return ORDERED if job.checkpoints._ordered else job.checkpoints._taking


def job_at(state):
    job = begun(TRAINING, checkpoint_steps=10, durability="log")
    for event in PATHS[state]:
        EVENTS[event][0](job, 1.0)
    assert state_of(job) is state
    job.take_instructions()
    return job


@pytest.mark.parametrize(("state", "event"), [*itertools.product(PATHS, EVENTS)])
def test_an_event_leads_where_the_table_says_or_is_an_error_of_ours(state, event):
    do, target = EVENTS[event]
    job = job_at(state)
    if target in AFTER[state]:
        do(job, 2.0)
        assert state_of(job) is target
    elif event == "ask":
        do(job, 2.0)  # not in vain: it is asked again once the one under way has ended
        assert state_of(job) is state
    else:
        with pytest.raises(InvalidTransitionError, match=f"{state.name} to {target.name}"):
            do(job, 2.0)
        assert state_of(job) is state


@given(st.lists(st.sampled_from(sorted(EVENTS))))
def test_one_checkpoint_at_a_time_is_ordered(events):
    job, state = job_at(Taking.IDLE), Taking.IDLE
    for number, event in enumerate(events):
        do, target = EVENTS[event]
        expected = state if event == "ask" and state is not Taking.IDLE else target
        # So far apart that nobody waits any more because of a failure.
        try:
            do(job, 10.0 * (number + 1))
        except InvalidTransitionError:
            assert (state, event) == (Taking.BEGUN, "begin")
            return
        assert state_of(job) is expected
        assert job.checkpoints.under_way == (expected is not Taking.IDLE)
        orders = [each for each in job.take_instructions() if isinstance(each, TakeCheckpoint)]
        assert len(orders) == (event == "ask" and state is Taking.IDLE)
        state = expected


@given(
    st.integers(1, 4),
    st.lists(
        st.tuples(
            st.sampled_from(["taken", "best", "resumed", "other servers", "restored"]),
            st.integers(0, 5),
        ),
        max_size=30,
    ),
)
def test_what_is_kept_is_what_may_be_restored(limit, steps):
    """Against a folder that has what was taken, less what was removed."""
    kept, folder, given_up = KeptCheckpoints(limit), [], set()
    damaged: set[int] = set()
    for number, (event, back) in enumerate(steps, start=1):
        at = folder[-1 - back] if back < len(folder) else 0
        if event in ("taken", "best"):
            kept.add(complete(number))
            folder.append(number)
            if event == "best":
                kept.best = number
            for removed in kept.surplus():
                folder.remove(removed)
            assert len(kept.all) <= limit + 1
            assert kept.newest == number
        elif at not in [0, *(each.number for each in kept.all)]:
            continue  # nobody is to go on from it
        elif event == "restored":
            kept.restored(ONE, at)
            damaged.update(each for each in folder if each > at)
        else:
            later = [each for each in folder if each > at]
            kept.resumed(at, later, older=event == "resumed")
            given_up.update(later)
            if event == "other servers":
                given_up.update(each for each in folder if each < at)
            damaged.discard(at)
        here = [each for each in folder if each not in given_up]
        assert [each.number for each in kept.all] == here
        kept.found([complete(each) for each in folder])  # as a new master does
        assert [each.number for each in kept.all] == here
        assert kept.best in (0, *here)
        assert [each.number for each in kept.offered(TWO)] == here[::-1]
        assert {each.number for each in kept.offered(ONE)} == set(here) - damaged


@given(
    st.integers(0, 100),
    st.lists(st.tuples(st.integers(0, 40), st.booleans(), st.booleans()), max_size=40),
)
def test_the_only_checkpoint_of_all_is_given_up_after_its_patience_alone(patience, steps):
    last, now, attempts = LastCheckpoint(patience), 0.0, []
    before, returns = False, 0
    for seconds, only, again in steps:
        now = max(now + seconds, last.after)
        if again:  # more is trained, and the next one has that too
            returns += 1
            assert not last.has_all(returns)
            attempts = []
        last.begun(returns)
        assert last.has_all(returns)
        if only != before:
            attempts = []
        before = only
        attempts.append(now)
        gives_up = last.failed(now, only=only)
        assert last.failures == len(attempts)
        assert gives_up == (
            len(attempts) >= ATTEMPTS and (not only or now - attempts[0] >= patience)
        )
        assert PAUSE_SECONDS[0] <= last.after - now <= PAUSE_SECONDS[1]
    last.begun(None)
    assert not last.has_all(returns)
