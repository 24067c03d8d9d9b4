"""What Keras adds around a gradient counts on servers as it does in plain Keras.

In the batches here no id comes twice. Of an id that does, Keras clips and squares each
occurrence's gradient by itself (but not where it accumulates); on servers the gradient of a
row is the sum over the batch, as test_model.py has it.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

import shoal.layers
from shoal.errors import UserError
from tests.worker.networks import IDS, SPEC, as_batch
from tests.worker.twins import initial_rows, rows_of

pytestmark = pytest.mark.slow


def network(embedding, **dense):
    """One table and two layers; `dense` are more arguments of the first."""
    ids = keras.Input((3,), dtype="int64", name="ids")
    x = keras.Input((2,), name="x")
    rows = keras.layers.Flatten()(embedding(ids))
    hidden = keras.layers.Dense(5, activation="tanh", **dense)(
        keras.layers.Concatenate()([rows, x])
    )
    logit = keras.layers.Dense(1, dtype="float32")(hidden)
    return keras.Model(
        {"ids": ids, "x": x}, keras.layers.Activation("sigmoid", dtype="float32")(logit)
    )


def batches():
    """Six batches, each with every id once."""
    rng = np.random.default_rng(1)
    for _ in range(6):
        x = rng.normal(size=(2, 2)).astype(np.float32)
        yield rng.permutation(IDS.size).reshape(2, 3), x, np.array([[0.0], [1.0]], np.float32)


def train_both(served, optimizer, served_layer, plain_layer, policy=None, **dense):
    """Train six batches on two servers and in plain Keras's own compiled training.

    policy: Keras's global dtype policy. Returns the losses of both and (name, ours, theirs)
    of every variable and table.
    """

    def build():
        if policy is not None:  # here, as a new session has the policy that Keras begins with
            keras.mixed_precision.set_dtype_policy(policy)
        return network(served_layer(), **dense)

    model = served(build=build, optimizer=optimizer, servers=2, spec=SPEC)
    twin = network(plain_layer(), **dense)
    twin.get_layer("items").embeddings.assign(initial_rows(model, "items"))
    trained = [v for v in twin.trainable_variables if "embeddings" not in v.path]
    for ours, theirs in zip(model.trainable.variables, trained, strict=True):
        theirs.assign(ours)
    twin.compile(optimizer(), "binary_crossentropy", auto_scale_loss=False)
    losses, expected = [], []
    for positions, x, labels in batches():
        losses.append(model.train_batch(as_batch(positions, x, labels), 1))
        logs = twin.train_on_batch({"ids": positions, "x": x}, labels, return_dict=True)
        twin.reset_metrics()
        expected.append(float(logs["loss"]))
    model.pull_dense()
    pairs = [
        (theirs.path, np.array(ours), np.array(theirs))
        for ours, theirs in zip(model.trainable.variables, trained, strict=True)
    ]
    pairs.append(("items", rows_of(model, "items"), np.array(twin.get_layer("items").embeddings)))
    return losses, expected, pairs


def layers(**more):
    return (
        lambda: shoal.layers.Embedding(4, "uniform", name="items", **more),
        lambda: keras.layers.Embedding(IDS.size, 4, name="items", **more),
    )


schedules = keras.optimizers.schedules
OPTIMIZERS = {
    "clipnorm and exponential decay": lambda: keras.optimizers.SGD(
        schedules.ExponentialDecay(0.5, 2, 0.5, staircase=True), clipnorm=0.02
    ),
    "global clipnorm and piecewise constant": lambda: keras.optimizers.Adagrad(
        schedules.PiecewiseConstantDecay([2, 4], [0.5, 0.1, 0.02]), global_clipnorm=0.05
    ),
    "clipvalue and weight decay": lambda: keras.optimizers.SGD(
        0.5, momentum=0.9, weight_decay=0.05, clipvalue=0.005
    ),
    "cosine with warmup and weight decay": lambda: keras.optimizers.AdamW(
        schedules.CosineDecay(0.0, 4, warmup_target=0.1, warmup_steps=2), weight_decay=0.1
    ),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_clipping_weight_decay_and_schedules(served, optimizer):
    losses, expected, pairs = train_both(served, optimizer, *layers())
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    for name, ours, theirs in pairs:
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=2e-6, err_msg=name)


def test_regularisation_losses(served):
    sgd = lambda: keras.optimizers.SGD(0.5)  # noqa: E731
    losses, expected, pairs = train_both(
        served,
        sgd,
        *layers(activity_regularizer=keras.regularizers.L2(0.1)),
        kernel_regularizer=keras.regularizers.L2(0.1),
        bias_regularizer="l1",
        activity_regularizer=keras.regularizers.L1(0.1),
    )
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    for name, ours, theirs in pairs:
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=2e-6, err_msg=name)


@pytest.fixture(autouse=True)
def same_policy_after():
    """Keras's global dtype policy is that of before."""
    before = keras.mixed_precision.dtype_policy()
    yield
    keras.mixed_precision.set_dtype_policy(before)


def test_mixed_bfloat16(served):
    """To the precision of bfloat16, 2 to the power of -8: sums go in another order."""
    sgd = lambda: keras.optimizers.SGD(0.5)  # noqa: E731
    losses, expected, pairs = train_both(served, sgd, *layers(), policy="mixed_bfloat16")
    np.testing.assert_allclose(losses, expected, rtol=2**-8)
    assert losses != train_both(served, sgd, *layers(), policy="float32")[0]
    for name, ours, theirs in pairs:
        assert ours.dtype == theirs.dtype == np.float32
        np.testing.assert_allclose(ours, theirs, rtol=2**-6, atol=2**-7, err_msg=name)
    model_values = tf.concat([tf.reshape(ours, [-1]) for _, ours, _ in pairs], 0)
    # Held as float32: what an update changed is not rounded to bfloat16.
    assert np.any(model_values != tf.cast(tf.cast(model_values, tf.bfloat16), tf.float32))


def test_mixed_float16_is_refused_by_name(served):
    sgd = lambda: keras.optimizers.SGD(0.5)  # noqa: E731
    with pytest.raises(UserError, match=r"mixed_float16.* mixed_bfloat16"):
        train_both(served, sgd, *layers(), policy="mixed_float16")


def test_loss_scaling_is_refused_by_name(served):
    def optimizer():
        return keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.5))

    with pytest.raises(UserError, match="LossScaleOptimizer"):
        served(optimizer=optimizer)
