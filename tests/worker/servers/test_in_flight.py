"""Pulls ahead of pushes: rates and statistics are those of the same steps one by one."""

from dataclasses import replace
from types import SimpleNamespace

import keras
import numpy as np
import pytest

from shoal.worker.heartbeat import Progress
from shoal.worker.servers.in_flight import NOTHING, OwnMoves
from shoal.worker.servers.pushing import Push
from tests.worker.given import train
from tests.worker.networks import as_batch, batches, network, served_embedding
from tests.worker.training.test_synchronous import twin_of

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
    push = model.push

    def without_rate(step):
        rates.append(step.learning_rate)
        push(replace(step, learning_rate=0.0))

    model.push = without_rate
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


def push_of(number, sent, left_out=""):
    change = np.full(4, number, np.float32)
    none = np.zeros(0, np.float32)
    return Push({}, (none, change), 0.1, [], [], [], 1, 0, sent=sent, left_out=left_out)


def pulled_of(*applied):
    return SimpleNamespace(applied=applied, state=np.zeros(4, np.float32))


def test_what_a_pull_lacks_is_told_server_by_server():
    """Two elements of each of two servers; the second push is at the first one only."""
    own = OwnMoves()
    assert own.under_way(pulled_of(0, 0)) is NOTHING
    own.add(push_of(1, {0: 1, 1: 1}))
    own.add(push_of(10, late := {0: 2, 1: 2}))
    own.add(push_of(50, {}, left_out="a NaN"))
    own.add(push_of(100, {}))  # not sent yet
    lacking = own.under_way(pulled_of(2, 1))
    np.testing.assert_array_equal(lacking.moves, [100, 100, 110, 110])
    assert lacking.counts == [1, 2]
    assert lacking.version([7, 5]) == 8
    further = lacking.then([np.ones(4, np.float32), np.ones(4, np.float32)])
    np.testing.assert_array_equal(further.moves, [102, 102, 112, 112])
    assert further.counts == [1, 2]
    late[1] = 4  # its second part was refused, and goes out again under another number
    np.testing.assert_array_equal(own.under_way(pulled_of(3, 3)).moves, [100, 100, 110, 110])
    np.testing.assert_array_equal(own.under_way(pulled_of(3, 4)).moves, [100] * 4)


def test_where_there_are_no_statistics_only_the_pushes_count():
    own = OwnMoves()
    none = np.zeros(0, np.float32)
    own.add(replace(push_of(1, {}), dense=(none, none)))
    lacking = own.under_way(SimpleNamespace(applied=[0], state=none))
    assert (lacking.counts, lacking.moves) == ([1], None)
