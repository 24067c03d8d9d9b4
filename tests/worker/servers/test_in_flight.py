"""Pulls ahead of pushes: rates and statistics are those of the same steps one by one."""

from dataclasses import replace

import keras
import numpy as np
import pytest

from shoal.worker.reports.progress import Progress
from shoal.worker.servers.in_flight import NOTHING, InFlightPushes
from tests.worker.given import train
from tests.worker.networks import CONFIG, as_batch, batches, network, served_embedding
from tests.worker.twins import twin_of

pytestmark = pytest.mark.slow

STEPS = 24


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("depth", [0, 1, 4])
def test_steps_ahead_change_neither_statistics_nor_rates(served, depth, accumulate):
    """Weights stay as they are, so that a twin knows what each batch does to the statistics."""
    model = served(
        build=lambda: network(served_embedding, statistics=True),
        optimizer=lambda: keras.optimizers.SGD(
            keras.optimizers.schedules.InverseTimeDecay(1.0, 1, 1.0)
        ),
    )
    model.accumulated = accumulate
    twin, _ = twin_of(model, statistics=True)
    rates = []
    push = model.servers.push

    def without_rate(step):
        rates.append(step.learning_rate)
        push(replace(step, learning_rate=0.0))

    model.servers.push = without_rate
    steps = list(batches(STEPS))
    train(model, depth, Progress(), [as_batch(*step) for step in steps])
    for positions, x, _ in steps:
        twin({"ids": positions, "x": x}, training=True)
    model.pull_dense()
    for ours, theirs in zip(model.state.variables, twin.non_trainable_variables, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)
    # Of the last minibatch of each push.
    expected = [1 / (1 + number) for number in range(accumulate - 1, STEPS, accumulate)]
    np.testing.assert_allclose(rates, expected, rtol=1e-6)


def moved(by):
    return np.full(4, by, np.float32)


def test_what_a_pull_lacks_is_told_server_by_server():
    """Two elements of each of two servers; the second push is at the first one only."""
    own = InFlightPushes()
    assert own.missing([0, 0], 2) is NOTHING
    own.computed(1, moved(1))
    own.sent(1, [0, 1], 1)
    own.computed(2, moved(10))
    own.sent(2, [0, 1], 2)
    own.computed(4, moved(100))  # not sent yet
    lacking = own.missing([2, 1], 2)
    np.testing.assert_array_equal(lacking.change, [100, 100, 110, 110])
    assert lacking.counts == [1, 2]
    assert lacking.version([7, 5]) == 8
    further = lacking.then([np.ones(4, np.float32), np.ones(4, np.float32)])
    np.testing.assert_array_equal(further.change, [102, 102, 112, 112])
    assert further.counts == [1, 2]
    own.sent(2, [1], 4)  # its second part was refused, and goes out again under another number
    np.testing.assert_array_equal(own.missing([3, 3], 2).change, [100, 100, 110, 110])
    np.testing.assert_array_equal(own.missing([3, 4], 2).change, [100] * 4)
    own.restart()  # the third one is never sent
    assert own.missing([3, 4], 2) is NOTHING


def test_a_server_that_came_later_has_what_the_others_had():
    """One server's four elements, which two have from now on."""
    own = InFlightPushes()
    for number in (1, 2):
        own.computed(number, moved(number))
        own.sent(number, [0], number)
    np.testing.assert_array_equal(own.missing([1], 1).change, moved(2))
    assert own.missing([2, 2], 2) is NOTHING
    own.computed(3, moved(3))
    assert own.missing([2, 2], 2).counts == [1, 1]
    own.sent(3, [0, 1], 3)
    np.testing.assert_array_equal(own.missing([3, 2], 2).change, [0, 0, 3, 3])


def test_a_server_is_told_the_pushes_that_it_applied_after_a_pull():
    own = InFlightPushes()
    own.applied([0], 1)
    own.applied([0, 1], 2)
    own.applied([0], 4)
    assert own.applied_after([1, 1]) == [2, 1]
    own.restart()  # is of what was never sent
    own.applied([0], 5)
    assert own.applied_after([2, 2]) == [2, 0]
    assert own.applied_after([5, 2]) == [0, 0]


def test_where_there_are_no_statistics_only_the_pushes_count():
    own = InFlightPushes()
    own.computed(1, np.zeros(0, np.float32))
    lacking = own.missing([0], 1)
    assert (lacking.counts, lacking.change) == ([1], None)


def test_a_push_that_is_left_out_is_not_in_flight(served):
    """Nothing of it will ever be at a server, so no later step starts from it."""
    model = served(
        build=lambda: network(served_embedding, statistics=True),
        config=replace(CONFIG, nonfinite_gradients="skip"),
    )
    steps = list(batches(3))
    steps[1][1][0, 0] = np.nan
    train(model, 2, Progress(), [as_batch(*step) for step in steps])
    assert model.servers.version == 2
    pulled = model.prepare(as_batch(*steps[0])).pulled
    assert model.servers.in_flight.missing(pulled.applied, pulled.routing.dense) is NOTHING
