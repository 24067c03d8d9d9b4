"""An optimizer of its own for a table: which one it has, and that it trains by it alone."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.optimizers import SGD, Adagrad, Adam, Ftrl
from keras.optimizers.schedules import InverseTimeDecay

import shoal.layers
from shoal.callbacks import LearningRateScheduler
from shoal.errors import UserError
from shoal.optimizers import RowwiseAdagrad
from shoal.worker.model.callbacks import Callbacks
from shoal.worker.model.learning.optimizer import ServedOptimizer
from shoal.worker.model.learning.optimizers import ServedOptimizers
from tests.worker.networks import as_batch, batches, network
from tests.worker.twins import assert_alike, gradients_of, twin_of


def quarter():
    return 0.25


LAYERS = {name: shoal.layers.Embedding(2, name=name) for name in ("wide_a", "wide_b", "deep")}


def kinds(given, layers=LAYERS, dense=True):
    """The update rule of each table, in order, and the default's."""
    optimizers = ServedOptimizers(given, "optimizer()", ServedOptimizer)
    optimizers.choose(layers, dense=dense)
    of_tables = [optimizers.of(position).spec.kind for position in range(len(layers))]
    return [*of_tables, optimizers.default.spec.kind]


def test_a_name_comes_before_a_pattern_and_that_before_the_default():
    assert kinds(SGD(0.1)) == ["sgd"] * 4
    by_name = {"wide_*": Ftrl(0.1), "default": Adam(), "wide_b": Adagrad(), "*b": SGD()}
    assert kinds(by_name) == ["ftrl", "adagrad", "adam", "adam"]


def test_the_layer_comes_before_patterns():
    own = shoal.layers.Embedding(2, name="wide_a", optimizer=RowwiseAdagrad(0.1))
    layers = LAYERS | {"wide_a": own}
    given = {"default": SGD(), "wide*": Adagrad()}
    assert kinds(given, layers) == ["rowwise_adagrad", "adagrad", "sgd", "sgd"]
    with pytest.raises(UserError, match=r"table 'wide_a' is given twice: by its layer, and by"):
        kinds({"default": SGD(), "wide_a": Adagrad()}, layers)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"deep": SGD()}, r'a dict without "default"'),
        ({"default": SGD(), "depe": Adam()}, r"the table 'depe' \(did you mean deep\?\).*wide_a"),
        ({"default": SGD(), "x*": Adam()}, r"the table 'x\*', which the model does not have"),
        ({"default": SGD(), 3: Adam()}, r"3 is not the name or pattern"),
        ({"default": SGD(), "deep": 0.1}, r"optimizer\(\)\['deep'\] returned float"),
        ({"default": SGD(), "deep": keras.optimizers.Lion()}, r"\['deep'\]: the optimizer Lion"),
        (RowwiseAdagrad(), r"dense variables have no rows"),
        (
            {"default": SGD(gradient_accumulation_steps=2), "deep": SGD()},
            r"same gradient_accumulation_steps, not 1 and 2",
        ),
    ],
)
def test_a_choice_that_cannot_be_is_told(given, why):
    with pytest.raises(UserError, match=why):
        kinds(given)


def test_rowwise_adagrad_may_be_the_default_of_a_model_of_tables_alone():
    assert kinds(RowwiseAdagrad(), dense=False) == ["rowwise_adagrad"] * 4


def test_layers_of_one_table_have_one_optimizer(served):
    def build(second):
        ids = keras.Input((3,), dtype="int64", name="ids")
        vectors = [
            shoal.layers.Embedding(2, table="shared", optimizer=each, name=name)(ids)
            for name, each in (("a", Adagrad(0.1)), ("b", second))
        ]
        summed = keras.ops.sum(keras.layers.Add()(vectors), axis=1)
        return keras.Model({"ids": ids}, keras.layers.Dense(1)(summed))

    spec = {"ids": tf.TensorSpec([None, 3], tf.int64)}
    model = served(build=lambda: build(Adagrad(0.1)), spec=spec)
    assert model.optimizers.of(0).spec.kind == "adagrad"
    with pytest.raises(UserError, match="share table 'shared', but differ in optimizer"):
        served(build=lambda: build(Adagrad(0.2)), spec=spec)


def test_each_rate_follows_its_own_schedule(module):
    given = {
        "default": SGD(0.5),
        "wide_*": Ftrl(InverseTimeDecay(1.0, 1, 1.0)),
        "deep": Adam(quarter),
    }
    optimizers = ServedOptimizers(given, "optimizer()", ServedOptimizer)
    optimizers.choose(LAYERS, dense=True)
    loaded = module()
    found = Callbacks(loaded, optimizers)
    assert found.learning_rates(0) == (0.5, (1.0, 1.0, 0.25))
    assert found.learning_rates(3) == (0.5, (0.25, 0.25, 0.25))
    # Of two minibatches a push: schedules count minibatches.
    assert found.learning_rates(1, 2) == (0.5, (0.25, 0.25, 0.25))
    # A schedule of callbacks() is the default optimizer's; ReduceLROnPlateau is for all.
    reduce = keras.callbacks.ReduceLROnPlateau(factor=0.5)
    callbacks = [LearningRateScheduler(lambda version: 0.125), reduce]
    object.__setattr__(loaded, "callbacks", lambda: callbacks)
    found = Callbacks(loaded, optimizers)
    found.rate_reductions = 1
    assert found.learning_rates(3) == (0.0625, (0.125, 0.125, 0.125))


def clipped(optimizer, gradients):
    """As Keras clips the gradients of an optimizer's variables."""
    variables = [keras.Variable(np.zeros(each.shape, np.float32)) for each in gradients]
    optimizer.build(variables)
    return [np.asarray(each) for each in optimizer._clip_gradients(list(gradients))]


def test_gradients_are_clipped_with_those_of_the_same_optimizer():
    rng = np.random.default_rng(0)
    dense = [tf.constant(rng.normal(size=(3, 2)).astype(np.float32))]
    tables = [tf.constant(rng.normal(size=(4, 2)).astype(np.float32)) for _ in LAYERS]
    over_all, alone = SGD(global_clipnorm=0.3), SGD(clipvalue=0.2)
    optimizers = ServedOptimizers(
        {"default": over_all, "wide_b": alone}, "optimizer()", ServedOptimizer
    )
    optimizers.choose(LAYERS, dense=True)
    of_dense, of_tables = optimizers.clip(dense, tables)
    expected = clipped(over_all, [*dense, tables[0], tables[2]])
    np.testing.assert_allclose(of_dense[0], expected[0], rtol=1e-6)
    np.testing.assert_allclose(of_tables[0], expected[1], rtol=1e-6)
    np.testing.assert_allclose(of_tables[2], expected[2], rtol=1e-6)
    np.testing.assert_allclose(of_tables[1], clipped(alone, [tables[1]])[0], rtol=1e-6)


def of_wide(steps=None):
    return Ftrl(
        InverseTimeDecay(0.4, 2, 0.5),
        l1_regularization_strength=0.01,
        gradient_accumulation_steps=steps,
    )


def of_rest(steps=None):
    return Adagrad(0.5, gradient_accumulation_steps=steps)


def train_twin(twin, batch, name, of_table, of_others):
    """A step of plain Keras, in which the rows of one table have an optimizer of their own."""
    table = twin.get_layer(name).embeddings
    _, gradients = gradients_of(twin, *batch)
    pairs = list(zip(gradients, twin.trainable_variables, strict=True))
    of_table.apply(*zip(*[each for each in pairs if each[1] is table], strict=True))
    of_others.apply(*zip(*[each for each in pairs if each[1] is not table], strict=True))


@pytest.mark.parametrize("steps", [None, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("by_layer", [True, False])
def test_training_equals_keras_with_two_optimizers(served, by_layer, steps):
    def embedding(dim, name):
        own = of_wide(steps) if by_layer and name == "wide" else None
        return shoal.layers.Embedding(dim, "uniform", name=name, optimizer=own)

    def optimizer():
        if by_layer:
            return of_rest(steps)
        return {"default": of_rest(steps), "wide": of_wide(steps)}

    model = served(build=lambda: network(embedding), optimizer=optimizer)
    assert model.accumulated == (steps or 1)
    twin, dense = twin_of(model)
    rules = of_wide(steps), of_rest(steps)
    waiting = []
    for batch in batches():
        train_twin(twin, batch, "wide", *rules)
        waiting.append(model.compute(model.prepare(as_batch(*batch)), task=1)[1])
        if len(waiting) == model.accumulated:
            model.servers.push(waiting[0] if steps is None else model.average(waiting))
            waiting = []
    assert_alike(model, twin, dense, rtol=1e-4, atol=1e-6)


def test_rowwise_adagrad_of_keras_is_that_of_the_servers(served):
    by_table = {"default": SGD(0.5), "deep": RowwiseAdagrad(0.3)}
    model = served(optimizer=lambda: by_table)
    twin, dense = twin_of(model)
    rules = RowwiseAdagrad(0.3), SGD(0.5)
    for batch in batches():
        model.train_batch(as_batch(*batch), task=1)
        train_twin(twin, batch, "deep", *rules)
    assert_alike(model, twin, dense, rtol=1e-4, atol=1e-6)


def test_rowwise_adagrad_is_saved_and_compiled_with():
    optimizer = RowwiseAdagrad(0.3, initial_accumulator_value=0.5, epsilon=1e-4, clipnorm=1.0)
    again = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert again.get_config() == optimizer.get_config()
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile(optimizer=again, loss="mse")
    x = np.ones((8, 3), np.float32)
    first = model.evaluate(x, x[:, :2], verbose=0)
    model.fit(x, x[:, :2], epochs=3, verbose=0)
    assert model.evaluate(x, x[:, :2], verbose=0) < first


def test_a_layer_with_an_optimizer_is_made_again_from_its_configuration():
    layer = shoal.layers.Embedding(4, name="a", optimizer=Adagrad(InverseTimeDecay(0.4, 2, 0.5)))
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(layer))
    assert again.get_config() == layer.get_config()
    assert isinstance(again.optimizer, Adagrad)
    assert shoal.layers.Embedding(4, optimizer="adam").optimizer.name.startswith("adam")
