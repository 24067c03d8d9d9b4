"""A model on servers trains as the same model in plain Keras does."""

import itertools
import random
from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf

import shoal.layers
from shoal.errors import UserError
from shoal.worker.input.batch import Batch
from tests.worker.networks import (
    CONFIG,
    IDS,
    SPEC,
    as_batch,
    batches,
    network,
    served_embedding,
)
from tests.worker.twins import assert_alike, gradients_of, twin_of

pytestmark = pytest.mark.slow


def constant_rate():
    return 0.3


OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.5),
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "adagrad": lambda: keras.optimizers.Adagrad(0.5),
    "adam": lambda: keras.optimizers.Adam(0.05),
    "clipped": lambda: keras.optimizers.SGD(0.5, clipnorm=0.05),
    "clipped over all": lambda: keras.optimizers.SGD(0.5, global_clipnorm=0.1),
    "schedule": lambda: keras.optimizers.SGD(
        keras.optimizers.schedules.InverseTimeDecay(0.5, 1, 1.0)
    ),
    "rate of a function": lambda: keras.optimizers.SGD(constant_rate),
}


@pytest.mark.parametrize(
    "servers", [1, pytest.param(2, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_training_equals_plain_keras(served, servers, optimizer):
    model = served(optimizer=optimizer, servers=servers)
    twin, dense = twin_of(model)
    rule = optimizer()
    for positions, x, labels in batches():
        loss = model.train_batch(as_batch(positions, x, labels), task=1)
        expected, gradients = gradients_of(twin, positions, x, labels)
        rule.apply(gradients, twin.trainable_variables)
        assert loss == pytest.approx(expected, rel=1e-5)
    assert_alike(model, twin, dense, rtol=1e-4, atol=1e-6)


def regularized():
    model = network(served_embedding)
    for variable in model.trainable_variables:
        variable.regularizer = keras.regularizers.L2(0.1)
    return model


def test_every_nth_step_tells_what_it_predicted(served):
    model = served(regularized, config=replace(CONFIG, progressive_steps=2))
    told = []
    for number, given in enumerate(itertools.starmap(as_batch, batches(4))):
        prepared = model.prepare(given)
        expected = model.steps.predict(given.features, model.steps.inputs(prepared.pulled))
        _, push = model.compute(prepared, task=1)
        for each in model.predicted(given, push):
            told.append(number)
            assert each.batch is given
            for found, other in zip((each.outputs, each.of_layers), expected, strict=True):
                np.testing.assert_allclose(found, other, rtol=1e-6)
            assert float(each.of_layers) > 0
        assert model.predicted(given, replace(push, left_out="NaN")) == ()
        model.servers.push(push)
    assert told == [1, 3]


def test_features_that_the_model_does_not_take_change_nothing(served):
    """Keras takes a dict's features by their order, and these two would come before its inputs."""
    losses = []
    for more in ((), ("a group", "age")):
        model = served(spec=SPEC | dict.fromkeys(more, SPEC["ids"]))
        for batch in itertools.starmap(as_batch, batches()):
            others = dict.fromkeys(more, batch.features["ids"] + 1)
            batch = replace(batch, features=batch.features | others)
            losses.append(model.train_batch(batch, task=1))
        losses += np.asarray(model.predict_batch(batch.features)).ravel().tolist()
    half = len(losses) // 2
    assert losses[:half] == losses[half:]


def test_labels_may_differ_in_shape_from_those_of_the_first_batch(served):
    """As the dataset's spec allows it, batches may be padded to lengths of their own."""
    model = served(labels_spec=tf.TensorSpec([None, None]))
    for width, (positions, x, labels) in zip((1, 3, 2), batches(3), strict=True):
        padded = np.repeat(labels, width, axis=1)
        assert np.isfinite(model.train_batch(as_batch(positions, x, padded), 1))


def losses(model):
    return [model.train_batch(as_batch(*batch), task=1) for batch in batches()]


def test_the_loss_curve_does_not_depend_on_the_number_of_servers(served):
    curves = [losses(served(servers=servers)) for servers in (1, 2, 3)]
    assert curves[0] == curves[1] == curves[2]


def test_batch_statistics_follow_every_batch_of_one_worker(served):
    model = served(build=lambda: network(served_embedding, statistics=True))
    twin, _ = twin_of(model, statistics=True)
    rule = keras.optimizers.SGD(0.5)
    for positions, x, labels in batches():
        model.train_batch(as_batch(positions, x, labels), task=1)
        _, gradients = gradients_of(twin, positions, x, labels)
        rule.apply(gradients, twin.trainable_variables)
    model.pull_dense()
    assert len(model.state.variables) == 2
    for ours, theirs in zip(model.state.variables, twin.non_trainable_variables, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)


def test_a_subclassed_model_is_served(served):
    class Net(keras.Model):
        def __init__(self):
            super().__init__()
            self.embedding = shoal.layers.Embedding(4, name="items")
            self.dropout = keras.layers.Dropout(0.1)
            self.out = keras.layers.Dense(1, activation="sigmoid")

        def call(self, features, training=None):
            rows = keras.ops.sum(self.embedding(features["ids"]), axis=1)
            return self.out(self.dropout(rows, training=training))

    model = served(build=Net)
    assert list(model.tables) == ["items"]
    assert model.trainable.size == 5
    assert all(np.isfinite(losses(model)))


def test_a_sequential_model_is_served(served):
    spec = tf.TensorSpec([None, 3], tf.int64)

    def build():
        return keras.Sequential(
            [
                keras.Input((3,), dtype="int64"),
                shoal.layers.Embedding(4, name="items"),
                keras.layers.Flatten(),
                keras.layers.Dense(1, activation="sigmoid"),
            ]
        )

    model = served(build=build, spec=spec)
    positions, _, labels = next(iter(batches()))
    batch = Batch(tf.constant(IDS[positions]), tf.constant(labels), 4, 0, 0)
    first = model.train_batch(batch, 1)
    for _ in range(20):
        last = model.train_batch(batch, 1)
    assert last < first


def test_two_workers_train_one_model(served, cluster, server_group):
    made = cluster(2)
    first = served(group=server_group(made, worker=0))
    second = served(group=server_group(made, worker=1), worker=1)
    for batch in batches():
        first.train_batch(as_batch(*batch), 1)
        second.train_batch(as_batch(*batch), 2)
    for model in (first, second):
        model.pull_dense()
    for ours, theirs in zip(first.trainable.variables, second.trainable.variables, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert [server.model.version for server in made.servers] == [12, 12]


def test_the_flag_divides_the_rate_of_a_stale_push(served, cluster, server_group):
    """Two pushes of another worker come in between, or of its own: only the former count."""
    made = cluster(2)
    first, *_ = (as_batch(*batch) for batch in batches())
    models = {
        modulated: served(
            group=server_group(made, worker=int(modulated)),
            worker=int(modulated),
            config=replace(CONFIG, lr_staleness_modulation=modulated),
        )
        for modulated in (False, True)
    }
    for modulated, others, divisor in ((False, True, 1), (True, True, 2), (True, False, 1)):
        model, other = models[modulated], models[not modulated]
        _, stale = model.compute(model.prepare(first), task=1)
        for _ in range(2):
            (other if others else model).train_batch(first, task=1)
        before = model.prepare(first).pulled.trainable
        model.servers.push(stale)
        moved = model.prepare(first).pulled.trainable - before
        expected = -0.5 * stale.dense[0] / divisor
        np.testing.assert_allclose(moved, expected, rtol=1e-3, atol=1e-6)


def test_two_layers_of_one_name_are_refused(served):
    def build():
        ids = keras.Input((3,), dtype="int64", name="ids")
        inner = keras.Sequential(
            [keras.Input((3,), dtype="int64"), shoal.layers.Embedding(2, name="same")]
        )
        both = inner(ids) + shoal.layers.Embedding(2, name="same")(ids)
        return keras.Model({"ids": ids}, keras.layers.Flatten()(both))

    with pytest.raises(UserError, match="two embedding layers are named 'same'"):
        served(build=build, spec={"ids": SPEC["ids"]})


def test_ids_that_are_no_integers_are_refused(served):
    def build():
        x = keras.Input((2,), name="x")
        return keras.Model({"x": x}, shoal.layers.Embedding(2, name="items")(x))

    with pytest.raises(UserError, match="'items' was called with float32 ids"):
        served(build=build, spec={"x": SPEC["x"]})


def test_a_loss_that_is_not_finite_is_told_and_not_pushed(served):
    model = served()
    positions, x, labels = next(iter(batches()))
    with pytest.raises(UserError, match="the loss is nan"):
        model.train_batch(as_batch(positions, x * np.nan, labels), 1)
    assert model.group.pull([[IDS], [IDS]], training=True).versions == [0, 0]


@pytest.mark.parametrize(
    ("optimizer", "words"),
    [
        (lambda: keras.optimizers.Lion(), "Lion"),
        (lambda: keras.optimizers.Adam(use_ema=True), "use_ema"),
        (lambda: "adam", "returned str"),
    ],
)
def test_an_optimizer_that_servers_do_not_have_is_refused_by_name(served, optimizer, words):
    with pytest.raises(UserError, match=words):
        served(optimizer=optimizer)


def test_an_initializer_that_servers_do_not_have_is_refused_by_name(served):
    def build():
        return network(lambda dim, name: shoal.layers.Embedding(dim, "orthogonal", name=name))

    with pytest.raises(UserError, match=r"initializer Orthogonal\w* is not supported"):
        served(build=build)


def test_the_layer_says_where_it_can_be_called():
    layer = shoal.layers.Embedding(3, name="items")
    with pytest.raises(RuntimeError, match="run the model with shoal train"):
        layer(tf.constant([1, 2]))


def test_the_layer_is_rebuilt_from_its_configuration():
    layer = shoal.layers.Embedding(3, keras.initializers.Constant(2.0), name="items")
    again = shoal.layers.Embedding.from_config(layer.get_config())
    assert again.output_dim == 3
    assert again.embeddings_initializer.value == 2.0
    with pytest.raises(ValueError, match="output_dim must be a positive integer"):
        shoal.layers.Embedding(0)


def test_text_for_an_input_of_numbers_is_refused_by_name(served):
    spec = {"ids": tf.TensorSpec([None, 3], tf.string), "x": SPEC["x"]}
    with pytest.raises(UserError, match=r"gives text as feature 'ids', but .* takes int64"):
        served(spec=spec)


def test_lists_for_an_input_of_one_length_are_refused_by_name(served):
    spec = {"ids": tf.RaggedTensorSpec([None, None], tf.int64), "x": SPEC["x"]}
    with pytest.raises(UserError, match=r"lists of several lengths as feature 'ids', but .*, 3\)"):
        served(spec=spec)


def test_each_start_of_each_worker_draws_random_numbers_of_its_own(served):
    """In dropout masks and in the user's code; the same start draws the same ones."""

    def build():
        ids = keras.Input((3,), dtype="int64", name="ids")
        rows = keras.layers.Dropout(0.5)(shoal.layers.Embedding(2, name="items")(ids))
        return keras.Model({"ids": ids}, keras.ops.sum(rows, axis=1))

    def draws(worker, incarnation):
        spec = {"ids": SPEC["ids"]}
        model = served(build=build, spec=spec, worker=worker, incarnation=incarnation)
        (dropout,) = [each for each in model.model.layers if hasattr(each, "seed_generator")]
        state = tuple(dropout.seed_generator.state.numpy().tolist())
        return state, random.random(), np.random.random(), float(tf.random.uniform([]))

    starts = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]
    drawn = [draws(*start) for start in starts]
    for kind in zip(*drawn, strict=True):
        assert len(set(kind)) == len(starts)
    assert draws(0, 0) == drawn[0]
    assert draws(1, 1) == drawn[-1]


@pytest.mark.parametrize(
    "loss",
    [
        "binary_crossentropy",
        keras.losses.BinaryCrossentropy(),
        lambda a, b: b - tf.cast(a, b.dtype),
    ],
    ids=["name", "object", "function"],
)
def test_labels_that_are_text_are_told(served, loss):
    spec = tf.TensorSpec([None, 1], tf.string)
    model = served(loss=loss, labels_spec=spec)
    positions, x, labels = next(batches())
    batch = as_batch(positions, x, labels)
    batch = replace(batch, labels=tf.fill(labels.shape, "yes"))
    with pytest.raises(UserError, match=r"^feed\(\) of model.py gives text as labels, and the los"):
        model.train_batch(batch, 1)
