"""--accumulate: n minibatches are one update, as gradient_accumulation_steps is in Keras."""

from dataclasses import replace

import keras
import numpy as np
import pytest

from shoal.errors import UserError
from shoal.worker.reports.progress import Progress
from tests.worker import given
from tests.worker.networks import CONFIG, as_batch, batches, network, served_embedding
from tests.worker.twins import assert_alike, twin_of

pytestmark = pytest.mark.slow

STEPS = 3
ACCUMULATED = replace(CONFIG, accumulate=STEPS, num_minibatches_per_task=2 * STEPS)
OPTIMIZERS = {
    "schedule": lambda **more: keras.optimizers.SGD(
        keras.optimizers.schedules.InverseTimeDecay(0.5, 1, 1.0), clipnorm=0.05, **more
    ),
    "adagrad": lambda **more: keras.optimizers.Adagrad(0.5, global_clipnorm=0.1, **more),
    "adam": lambda **more: keras.optimizers.AdamW(0.05, weight_decay=0.1, clipvalue=0.01, **more),
}


def train(model, steps, depth=0):
    """Train a task of these minibatches; returns the progress."""
    progress = Progress()
    progress.begin(1)
    given.train(model, depth, progress, batched(steps))
    return progress


def batched(steps):
    return [as_batch(*each, done=4 * (i + 1)) for i, each in enumerate(steps)]


CASES = [(name, "flag") for name in OPTIMIZERS] + [("adam", "optimizer")]


@pytest.mark.parametrize(("name", "by"), CASES)
def test_it_equals_gradient_accumulation_of_plain_keras(served, name, by):
    optimizer = OPTIMIZERS[name]
    if by == "flag":
        model = served(config=ACCUMULATED, optimizer=optimizer)
    else:
        model = served(
            config=replace(ACCUMULATED, accumulate=1),
            optimizer=lambda: optimizer(gradient_accumulation_steps=STEPS),
        )
    twin, dense = twin_of(model)
    steps = list(batches(2 * STEPS))
    train(model, steps)
    twin.compile(optimizer(gradient_accumulation_steps=STEPS), "binary_crossentropy")
    for positions, x, labels in steps:
        twin.train_on_batch({"ids": positions, "x": x}, labels)
    assert model.servers.version == 2
    assert_alike(model, twin, dense, rtol=1e-4, atol=2e-6)


def test_statistics_move_as_if_the_minibatches_followed_one_another(served):
    def build():
        return network(served_embedding, statistics=True)

    model = served(build=build, config=ACCUMULATED)
    twin, _ = twin_of(model, statistics=True)
    steps = list(batches(STEPS))
    for positions, x, _ in steps:
        twin({"ids": positions, "x": x}, training=True)
    train(model, steps)
    model.pull_dense()
    for ours, theirs in zip(model.state.variables, twin.non_trainable_variables, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("depth", [0, 2])
def test_records_count_when_the_push_of_their_group_is_applied(served, depth):
    """A task of two whole groups and one minibatch: three pushes, the last of one."""
    model = served(config=ACCUMULATED)
    pushed = []
    push = model.servers.push

    def noted(each):
        pushed.append(each.records_done)
        push(each)

    model.servers.push = noted
    progress = train(model, batches(2 * STEPS + 1), depth)
    assert pushed == [4 * STEPS, 8 * STEPS, 8 * STEPS + 4]
    assert progress.take(0, 0).records_done == 8 * STEPS + 4
    assert model.servers.version == 3


@pytest.mark.parametrize(
    ("changes", "steps", "words"),
    [
        ({"accumulate": 3, "num_minibatches_per_task": 16}, None, "multiple of --accumulate"),
        ({"accumulate": 2}, 4, "gradient_accumulation_steps=4, but --accumulate is 2"),
        ({}, 3, "multiple of gradient_accumulation_steps"),
    ],
)
def test_what_does_not_go_together_is_refused_by_name(served, changes, steps, words):
    with pytest.raises(UserError, match=words):
        served(
            config=replace(CONFIG, **changes),
            optimizer=lambda: keras.optimizers.SGD(0.5, gradient_accumulation_steps=steps),
        )
