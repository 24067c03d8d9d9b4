"""Training finds the weights that made its data, with pushes that overlap and workers that race.

The labels are a linear function of the features without noise, so that one set of weights is
right and however stale a gradient is, it points there.
"""

import threading

import keras
import numpy as np
import pytest

import shoal.layers
from shoal.worker.reports.progress import Progress
from tests.worker.given import train
from tests.worker.networks import IDS, as_batch
from tests.worker.twins import rows_of

pytestmark = pytest.mark.slow

ROWS = np.linspace(-1, 1, IDS.size)
WEIGHTS = np.array([0.5, -2.0])
BIAS = 0.25
STEPS = 200
TOLERANCE = 0.01


def linear():
    ids = keras.Input((3,), dtype="int64", name="ids")
    x = keras.Input((2,), name="x")
    rows = shoal.layers.Embedding(1, "uniform", name="rows")(ids)
    total = keras.ops.sum(rows, axis=1) + keras.layers.Dense(1)(x)
    return keras.Model({"ids": ids, "x": x}, total)


def batches(seed):
    """Each id occurs with every other one, so that their weights can be told apart."""
    rng = np.random.default_rng(seed)
    for _ in range(STEPS):
        positions = rng.integers(0, IDS.size, (32, 3))
        x = rng.normal(size=(32, 2)).astype(np.float32)
        labels = ROWS[positions].sum(1) + x @ WEIGHTS + BIAS
        yield as_batch(positions, x, labels[:, None].astype(np.float32))


def build(served, **options):
    return served(
        build=linear,
        optimizer=lambda: keras.optimizers.SGD(0.05),
        loss=keras.losses.mean_squared_error,
        **options,
    )


def check(model):
    """What the servers hold is what made the labels; a constant may be in rows or bias."""
    model.pull_dense()
    kernel, bias = (variable.numpy() for variable in model.model.trainable_variables)
    np.testing.assert_allclose(kernel[:, 0], WEIGHTS, atol=TOLERANCE)
    rows = rows_of(model, "rows")[:, 0]
    np.testing.assert_allclose(rows + bias / 3, ROWS + BIAS / 3, atol=TOLERANCE)


@pytest.mark.parametrize("depth", [0, 3])
def test_one_worker_finds_the_weights(served, depth):
    model = build(served)
    progress = Progress()
    progress.begin(1)
    train(model, depth, progress, batches(seed=1))
    assert progress.take(0, 0).loss_batches == STEPS
    check(model)


def test_workers_that_race_find_the_weights(served, server_group, cluster):
    made = cluster(2)
    models = [
        build(served, worker=worker, group=server_group(made, worker=worker)) for worker in (0, 1)
    ]
    threads = []
    for worker, model in enumerate(models):
        progress = Progress()
        progress.begin(1)
        arguments = (model, 2, progress, batches(seed=worker))
        threads.append(threading.Thread(target=train, args=arguments))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [server.model.version for server in made.servers] == [2 * STEPS] * 2
    check(models[1])
