"""Of two masters one at most believes that it holds the job's Lease, whatever happens."""

import heapq
import itertools

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shoal.master.cluster.job_lease import (
    DURATION_SECONDS,
    MARGIN_SECONDS,
    POLL_SECONDS,
    RENEW_SECONDS,
    Claim,
    Read,
    Seen,
    Write,
)
from tests.examples import examples


class Server:
    """A Lease on an API server, by its rules: a write names the version it is over."""

    def __init__(self):
        self.lease, self.versions = None, itertools.count(1)

    def do(self, request, who):
        """The answer; None is a conflict, [] the answer that there is no Lease."""
        if isinstance(request, Read):
            return self.lease or []
        if request.version != (self.lease and self.lease.version):
            return None
        self.lease = Seen(str(next(self.versions)), who)
        return self.lease


class Master:
    """A process with its own clock, which makes one request at a time."""

    def __init__(self, name, offset, speed):
        self.name, self.offset, self.speed = name, offset, speed
        self.lives = 0
        self.claim = Claim(name)

    def clock(self, time):
        return self.offset + time * self.speed

    def believes(self, time):
        return self.claim.holds(self.clock(time))

    def again(self):
        """Start again, as the same pod does; what the old process asked for is still under way."""
        self.lives += 1
        self.claim = Claim(self.name)

    def take(self, request, asked, answer, time):
        claim, now = self.claim, self.clock(time)
        if answer is None:
            claim.failed(now)
        elif isinstance(request, Read):
            claim.read(answer or None, now)
        else:
            claim.wrote(answer.version, asked, now)


# Clocks may differ by so much that the holder's margin is just enough.
DRIFT = MARGIN_SECONDS / (2 * DURATION_SECONDS)
END_SECONDS = 120.0
DELAYS = st.one_of(st.just(0.0), st.floats(0, 2), st.floats(0, 2 * DURATION_SECONDS))
TROUBLE = st.tuples(
    st.one_of(st.just(0.0), st.floats(0, END_SECONDS)),  # when it begins
    st.floats(0, 60),  # how long it lasts
    DELAYS,  # until a request of that time is there
    DELAYS,  # until its answer is there
    st.sampled_from(["", "", "lost before", "lost after", "crash"]),
)
CLOCK = st.tuples(st.floats(-1e6, 1e6), st.floats(1 - DRIFT, 1 + DRIFT))
MASTER = st.tuples(CLOCK, st.lists(TROUBLE, max_size=4))


@example([((0.0, 1.0), [(0.005, 1.0, 0.0, 31.0, "")]), ((0.0, 1.0), [])])  # a late answer
@given(st.lists(MASTER, min_size=2, max_size=3))
@settings(max_examples=examples(500), deadline=None)
def test_two_masters_never_both_hold_the_lease(given_masters):
    server = Server()
    order = itertools.count()
    events = []

    def at(time, act, *arguments):
        if time < END_SECONDS:
            heapq.heappush(events, (time, next(order), act, arguments))

    def ask(time, master, troubles, life):
        if master.lives != life or master.claim.lost:
            return
        there, back, fault = 0.0, 0.0, ""
        for trouble in troubles:
            if trouble[0] <= time <= trouble[0] + trouble[1]:
                there, back, fault = trouble[2:]
        request, asked = master.claim.request, master.clock(time)

        def arrive(time):
            answer = server.do(request, master.name) if fault != "lost before" else None
            at(time + back, hear, None if fault == "lost after" else answer)

        def hear(time, answer):
            if master.lives == life:
                master.take(request, asked, answer, time)
                # A real one takes some time for each request.
                pause = 0.01 + master.claim.pause / master.speed
                at(time + pause, ask, master, troubles, life)

        at(time + there, arrive)
        if fault == "crash":
            master.again()
            at(time + 1.0, ask, master, troubles, master.lives)

    masters = []
    for number, (clock, troubles) in enumerate(given_masters):
        masters.append(master := Master(str(number), *clock))
        at(0.0, ask, master, troubles, 0)
    while events:
        time, _, act, arguments = heapq.heappop(events)
        act(time, *arguments)
        for master in masters:
            master.claim.tick(master.clock(time))
        # Belief begins at an event and only ends with time, so these are the moments to look.
        assert sum(master.believes(time) for master in masters) <= 1


def held(claim=None, now=0.0):
    claim = claim or Claim("me")
    claim.read(None, now)
    assert claim.request == Write(None)
    claim.wrote("1", now, now)
    assert claim.holds(now)
    return claim


def test_a_lease_is_taken_when_its_holder_has_been_silent_for_its_whole_duration():
    claim = Claim("me")
    claim.read(Seen("7", "other"), 100.0)
    assert (claim.request, claim.pause, claim.other) == (Read(), POLL_SECONDS, "other")
    claim.read(Seen("7", "other"), 100.0 + DURATION_SECONDS - 0.1)
    assert claim.request == Read()
    claim.read(Seen("8", "other"), 100.0 + DURATION_SECONDS)  # it was renewed
    claim.read(Seen("8", "other"), 99.9 + 2 * DURATION_SECONDS)
    assert claim.request == Read()
    claim.read(Seen("8", "other"), 100.0 + 2 * DURATION_SECONDS)
    assert claim.request == Write("8")
    assert not claim.holds(200.0)
    claim.wrote("9", 200.0, 200.5)
    assert claim.holds(200.5)
    assert (claim.request, claim.pause) == (Write("9"), RENEW_SECONDS)


def test_the_duration_is_that_of_the_holder_if_it_is_longer():
    claim = Claim("me")
    claim.read(Seen("7", "other", 100.0), 0.0)
    claim.read(Seen("7", "other", 100.0), 99.0)
    assert claim.request == Read()
    claim.read(Seen("7", "other", 100.0), 100.0)
    assert claim.request == Write("7")


@pytest.mark.parametrize("holder", ["", "me"])
def test_a_lease_that_is_free_or_of_ones_own_pod_is_taken_at_once(holder):
    claim = Claim("me")
    claim.read(Seen("7", holder), 0.0)
    assert (claim.request, claim.pause) == (Write("7"), 0.0)


def test_a_claim_ends_with_time_and_does_not_come_back():
    claim = held()
    end = DURATION_SECONDS - MARGIN_SECONDS
    assert claim.holds(end - 0.1)
    assert not claim.holds(end)
    claim.wrote("2", end - 1, end + 1)
    assert not claim.holds(end + 1)
    assert "not be renewed" in claim.lost


def test_an_unanswered_renewal_is_looked_at_and_tried_again():
    claim = held()
    claim.failed(5.0)
    assert claim.request == Read()
    claim.read(Seen("2", "me"), 6.0)  # it had been done after all, which counts for nothing
    assert claim.until == DURATION_SECONDS - MARGIN_SECONDS
    claim.wrote("3", 6.0, 7.0)
    assert claim.until == 6.0 + DURATION_SECONDS - MARGIN_SECONDS


@pytest.mark.parametrize("seen", [None, Seen("2", "other"), Seen("2", "")])
def test_a_lease_that_is_anothers_or_gone_ends_the_claim(seen):
    claim = held()
    claim.read(seen, 1.0)
    assert claim.lost
    assert not claim.holds(1.0)


def test_a_lease_whose_taking_took_too_long_is_not_held():
    claim = Claim("me")
    claim.read(None, 0.0)
    claim.wrote("1", 0.0, DURATION_SECONDS - MARGIN_SECONDS)
    assert not claim.holds(DURATION_SECONDS)
    assert claim.request == Read()
    assert not claim.lost
