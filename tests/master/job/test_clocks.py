"""Clocks for bounded staleness: who counts, and that what was allowed stays allowed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shoal.master.job.clocks import Clocks
from shoal.master.job.events import TaskReported, WorkerFenced
from shoal.master.work.outcomes import DataDescribed, Done
from shoal.master.work.units import Source
from tests.master.strategies import begun, exited, take, w

EVENTS = st.lists(
    st.tuples(st.sampled_from(["enter", "leave", "forget", "step"]), st.integers(0, 3))
)


@given(EVENTS)
def test_the_slowest_is_the_least_of_those_who_train_and_never_falls(events):
    clocks, training, before = Clocks(), set(), 0
    for what, index in events:
        worker = w(index)
        if what == "step":
            clocks.advance(worker, clocks.of(worker) + 1)
        else:
            getattr(clocks, what)(worker)
            (training.add if what == "enter" else training.discard)(worker)
        if training:
            assert clocks.slowest == min(clocks.of(each) for each in training)
        assert clocks.slowest >= before
        before = clocks.slowest


def two_in_training(**changes):
    training = DataDescribed((Source("t", 60),), (Source("v", 10),))
    job = begun(training, workers="2", validation_data="v", **changes)
    for index in range(2):
        take(job, w(index))
    return job


def test_a_dead_worker_stops_counting_at_once_and_its_successor_starts_at_the_slowest():
    job = two_in_training()
    assert job.clock_reported(w(0), 0, 5, 1.0).slowest == 0
    job.on(exited(w(1)), 2.0)
    assert job.clock_reported(w(0), 0, 5, 2.0).slowest == 5
    job.on(WorkerFenced(w(1), 0, [None]), 2.0)
    take(job, w(1), incarnation=1)
    assert job.clocks.of(w(1)) == 5
    assert job.clock_reported(w(0), 0, 8, 3.0).slowest == 5


def test_a_silent_worker_counts_until_it_is_taken_for_dead():
    job = two_in_training(timeout_seconds=30.0)
    assert job.clock_reported(w(0), 0, 3, 25.0).slowest == 0
    job.tick(30.9)
    assert job.clock_reported(w(0), 0, 3, 30.9).slowest == 0
    job.tick(31.1)
    assert job.clock_reported(w(0), 0, 3, 31.1).slowest == 3


def test_a_worker_counts_between_two_tasks_and_keeps_its_clock():
    job = two_in_training()
    job.clock_reported(w(0), 0, 4, 1.0)
    task = job.task_wanted(w(1), 0, 1.0)
    job.on(TaskReported(w(1), 0, task.id, Done(), 2), 1.0)
    assert job.clock_reported(w(0), 0, 4, 1.0).slowest == 0
    take(job, w(1))
    assert job.clocks.of(w(1)) == 0


def test_a_worker_that_evaluates_holds_nobody_up():
    job = two_in_training(evaluation_steps=2)
    task = job.task_wanted(w(1), 0, 1.0)
    job.on(TaskReported(w(1), 0, task.id, Done(), 2), 1.0)  # an evaluation is due
    take(job, w(1))
    assert job.clock_reported(w(0), 0, 7, 1.0).slowest == 7


def test_what_is_looked_at_is_as_much_as_there_are_clocks_however_many_train():
    clocks = Clocks()
    for index in range(500):
        clocks.enter(w(index))
    for index in range(500):
        clocks.advance(w(index), 1 + index % 3)
    assert clocks._at == {1: 167, 2: 167, 3: 166}
    for index in range(0, 500, 3):
        clocks.leave(w(index))
    assert (clocks.slowest, clocks.next_told(w(1), 4)) == (2, 3)
    for index in range(500):
        clocks.forget(w(index))
    assert not clocks._at
