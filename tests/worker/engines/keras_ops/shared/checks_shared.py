"""What the engines of Keras's models do alike that compute by keras.ops.

It runs in the process of each of them, as Keras has one backend in each process (processes.py).
"""

import dataclasses
import os
import pickle

import keras
import numpy as np
import pytest
from keras import layers, ops

from shoal.errors import UserError
from shoal.layers import Embedding
from shoal.worker.engines import chosen_engine, engine_name, framework
from shoal.worker.input.spec import ArraySpec
from shoal.worker.outputs.export_tables import ExportedTable
from tests.worker.engines.keras_ops.models import (
    CONFIG,
    IDS,
    LABELS,
    LARGE,
    SEEDS,
    SPEC,
    OfIds,
    arrays,
    batch,
    batch_of,
    module_of,
    of_ids,
    results,
    served,
)


@pytest.fixture(autouse=True)
def new_names():
    keras.utils.clear_session(free_memory=False)


def test_steps_for_the_comparison_with_tensorflow():
    found = {seed: results(seed, arrays) for seed in SEEDS}
    with open(os.environ["SHOAL_TEST_RESULTS"], "wb") as file:
        pickle.dump(found, file)


def test_ids_keep_their_64_bits():
    model = of_ids(lambda _, features: features["ids"])
    pulled = model.pull(arrays({"ids": LARGE}), training=True)
    assert sorted(pulled.ids[0].unique) == sorted(LARGE.ravel())
    loss, push = model.compute(model.prepare(batch({"ids": LARGE})), 0)
    assert np.isfinite(loss)
    assert push.tables[0][1].shape == (4, 2)


class Regularized(OfIds):
    def __init__(self):
        super().__init__(lambda _, features: features["ids"])
        self.top.kernel_regularizer = keras.regularizers.L2(0.1)


def test_every_nth_step_tells_what_it_predicted():
    config = dataclasses.replace(CONFIG, progressive_steps=2)
    model = served(module_of(Regularized, "mse"), IDS, config=config)
    told = []
    for number in range(4):
        given = batch({"ids": LARGE + number})
        prepared = model.prepare(given)
        expected = model.steps.predict(given.features, model.steps.inputs(prepared.pulled))
        _, push = model.compute(prepared, 0)
        for each in model.predicted(given, push):
            told.append(number)
            assert each.batch is given
            for found, other in zip((each.outputs, each.of_layers), expected, strict=True):
                np.testing.assert_allclose(found, other, rtol=1e-6)
            assert float(each.of_layers) > 0
        assert model.predicted(given, dataclasses.replace(push, left_out="NaN")) == ()
    assert told == [1, 3]


def test_computed_ids_are_those_of_64_bits():
    model = of_ids(lambda _, f: f["ids"] * 31 // 7 + ops.arange(2, dtype="int64"))
    for size in (2, 1):  # each compiled by itself
        given = LARGE[:size]
        pulled = model.pull(arrays({"ids": given}), training=True)
        expected = given * 31 // 7 + np.arange(2)
        assert sorted(set(expected.ravel())) == sorted(pulled.ids[0].unique)


class OtherInTraining(OfIds):
    def call(self, features, training=False):
        ids = self.ids_of(self, features) if training else features["ids"] + 1
        return self.top(ops.sum(self.factors(ids), axis=1))


def test_ids_are_alike_whether_training_or_not():
    for ids_of in (lambda _, f: f["ids"], lambda _, f: f["ids"] + 2, lambda _, f: f["ids"] * 2):
        model = served(module_of(lambda of=ids_of: OtherInTraining(of), "mse"), IDS)
        with pytest.raises(UserError) as told:
            model.compute(model.prepare(batch({"ids": LARGE})), 0)
        words = "the model calls embedding 'factors' with other ids in "
        assert words in str(told.value)
    model = served(module_of(lambda: OtherInTraining(lambda _, f: f["ids"] + 1), "mse"), IDS)
    model.compute(model.prepare(batch({"ids": LARGE})), 0)


UNKNOWN = {
    "the variable of_ids/top/kernel, which is being trained": lambda model, f: (
        f["ids"] + ops.cast(model.top.kernel[0, 0], "int64")
    ),
    "the rows of table 'factors'": lambda model, f: ops.cast(
        model.factors(f["ids"])[:, 0], "int64"
    ),
    "random numbers drawn inside the model": lambda model, f: (
        f["ids"] + ops.cast(keras.random.uniform((2,), seed=1) * 9, "int64")
    ),
}


@pytest.mark.parametrize("words", UNKNOWN)
def test_ids_that_do_not_follow_from_the_features_are_refused(words):
    def ids_of(model, features):
        if not model.top.built:
            model.top.build((None, 2))
        return UNKNOWN[words](model, features)

    with pytest.raises(UserError) as told:
        of_ids(ids_of)
    assert words in str(told.value)
    assert str(told.value).startswith("model.py: the ids of embedding 'factors' are computed from ")


def test_ids_that_are_no_integers_are_refused():
    with pytest.raises(UserError, match="'factors' was called with float32 ids: they must be"):
        of_ids(lambda _, features: ops.cast(features["ids"], "float32"))


def test_an_id_beyond_a_table_of_keras_is_refused():
    def build():
        ids = keras.Input((2,), dtype="int64", name="ids")
        rows = layers.Embedding(100, 4, name="plain")(ids)
        return keras.Model({"ids": ids}, layers.Dense(1)(layers.Flatten()(rows)))

    config = CONFIG.__class__(**{**CONFIG.__dict__, "embedding_threshold": 10})
    model = served(module_of(build, "mse"), IDS, config=config)
    assert list(model.tables) == ["plain"]
    with pytest.raises(UserError, match="'plain' was given the id 100: its ids go from 0 to 99"):
        model.pull(arrays({"ids": np.array([[1, 100]])}), training=True)


def test_padding_of_64_bits_is_told_from_other_ids():
    """Multiples of 2**32, whose lower half is 0, are ids like others, and may be masked."""

    class Masked(keras.Model):
        def __init__(self):
            super().__init__(name="masked")
            self.bags = Embedding(1, name="bags", combiner="sum", mask_zero=True)
            self.bags.embeddings_initializer = keras.initializers.Ones()

        def call(self, features):
            return self.bags(features["ids"])

    model = served(module_of(Masked, "mse"), IDS)
    given = np.array([[2**32, 0], [2**33, 2**34], [0, 0]])
    np.testing.assert_array_equal(model.predict_batch(arrays({"ids": given})), [[1], [2], [0]])


def test_a_loss_without_a_gradient_is_refused():
    model = of_ids(lambda _, f: f["ids"])
    without = module_of(
        lambda: OfIds(lambda _, f: f["ids"]), lambda labels, given: ops.round(given) - labels
    )
    keras.utils.clear_session(free_memory=False)
    model = served(without, IDS)
    with pytest.raises(UserError, match="the loss has no gradient, so nothing would be learned"):
        model.compute(model.prepare(batch({"ids": LARGE})), 0)


def test_dropout_differs_by_step_and_not_in_prediction():
    def build():
        x = keras.Input((4,), name="x")
        return keras.Model({"x": x}, layers.Dense(1)(layers.Dropout(0.5)(x)))

    spec = {"x": SPEC["x"]}
    model = served(module_of(build, "mse"), spec)
    given = {"x": np.random.default_rng(0).normal(size=(64, 4)).astype("f")}
    losses = [model.compute(model.prepare(batch(given)), 0)[0] for _ in range(3)]
    assert len(set(losses)) == 3
    first, second = (model.predict_batch(arrays(given)) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    # Seeds are no state of the servers.
    assert [each.name for each in model.spec.non_trainable] == []


def test_arrays_that_were_pulled_may_change_before_the_step():
    """The next pull writes into the vectors of the one before, while a step computes."""
    model = of_ids(lambda _, f: f["ids"])
    prepared = model.prepare(batch({"ids": LARGE}))
    expected = model.compute(prepared, 0)[0]
    prepared = model.prepare(batch({"ids": LARGE}))
    prepared.pulled.trainable[:] = np.nan
    assert model.compute(prepared, 0)[0] == expected


@pytest.mark.parametrize("labels", ["[batch]", "[batch, 1]"])
def test_a_loss_that_pairs_all_is_refused(labels):
    def loss(ours, theirs):
        # As a user undoes what Keras does to ranks.
        return ops.square(ops.reshape(ours, (-1,)) - theirs)

    of_one = ArraySpec((None,) if labels == "[batch]" else (None, 1), np.dtype(np.float32))
    model = served(module_of(lambda: OfIds(lambda _, f: f["ids"]), loss), IDS, of_one)
    given = np.zeros((2,) if labels == "[batch]" else (2, 1), "f")
    if labels == "[batch, 1]":
        # Both are of one rank there, and the function pairs on purpose.
        assert np.isfinite(model.compute(model.prepare(batch({"ids": LARGE}, given)), 0)[0])
        return
    with pytest.raises(UserError, match="loss pairs each label with each prediction"):
        model.compute(model.prepare(batch({"ids": LARGE}, given)), 0)


def test_masks_count_in_losses_and_metrics():
    def build():
        ids = keras.Input((2,), dtype="int64", name="ids")
        rows = Embedding(3, name="steps", mask_zero=True)(ids)
        return keras.Model({"ids": ids}, layers.Dense(1, name="top")(rows))

    steps = ArraySpec((None, 2, 1), np.dtype(np.float32))
    metrics = {"far": lambda ours, theirs: ops.abs(ours - theirs)[..., 0]}
    module = module_of(build, "mse", eval_metrics_fn=lambda: metrics)
    model = served(module, IDS, steps)
    given = {"ids": np.array([[5, 0], [7, 8], [0, 0]])}
    labels = np.random.default_rng(0).normal(size=(3, 2, 1)).astype("f")
    predicted = np.asarray(model.predict_batch(arrays(given)))
    apart = np.abs(labels - predicted)[..., 0][given["ids"] != 0]
    evaluator = chosen_engine().evaluator(model, module)
    evaluator.build(steps)
    evaluator.add(batch(given, labels))
    found = evaluator.finish(evaluator.states())
    np.testing.assert_allclose(found["far"], apart.mean(), rtol=1e-5)
    loss, _ = model.compute(model.prepare(batch(given, labels)), 0)
    inputs = model.prepare(batch(given)).inputs
    trained = np.asarray(model.predict_batch(arrays(given), inputs))
    apart = ((labels - trained)[..., 0] ** 2)[given["ids"] != 0]
    np.testing.assert_allclose(loss, apart.mean(), rtol=1e-5)


def test_a_metric_whose_states_do_not_add_up_is_refused():
    class Largest(keras.metrics.Metric):
        def __init__(self, **more):
            super().__init__(**more)
            self.largest = self.add_variable((), "zeros", name="largest")

        def update_state(self, labels, predictions, sample_weight=None):
            self.largest.assign(ops.maximum(self.largest, ops.max(ops.abs(predictions)) + 1))

        def result(self):
            return self.largest

    module = module_of(
        lambda: OfIds(lambda _, f: f["ids"]),
        "mse",
        eval_metrics_fn=lambda: {"largest": Largest()},
    )
    model = served(module, IDS)
    evaluator = chosen_engine().evaluator(model, module)
    evaluator.build(LABELS)
    with pytest.raises(UserError, match=r"states of metric 'largest' .* do not add up"):
        evaluator.add(batch({"ids": LARGE}))


def test_spec_of_predictions():
    model = of_ids(lambda _, f: f["ids"])
    assert model.predictions_spec() == ArraySpec((None, 1), np.dtype(np.float32))


@pytest.mark.parametrize("layer", ["StringLookup", "Hashing"])
def test_layers_that_need_tensorflow_are_refused(layer):
    def build():
        kind = getattr(layers, layer)
        return kind(num_bins=3) if layer == "Hashing" else kind(vocabulary=["a"])

    with pytest.raises(UserError) as told:
        served(module_of(build), IDS)
    assert str(told.value) == (
        f"build() of model.py: Layer {layer} requires TensorFlow, and the model is computed by "
        f"{framework().name}: use the layers of shoal.preprocessing in feed_batch, or give "
        "--engine tensorflow"
    )


def test_layouts_of_kernels_are_refused():
    model = of_ids(lambda _, f: f["ids"]).model
    with pytest.raises(UserError, match="describe both models with --engine tensorflow"):
        chosen_engine().kernel_layouts(model, SPEC)


NO_SAVED_MODEL = {
    # Its process of TensorFlow finds no file with the model here.
    "jax": "No SavedModel: a process of TensorFlow makes it, which says: .*there is no.*model.py",
    "torch": "No SavedModel: the graph of a SavedModel is TensorFlow's",
}


def test_a_saved_model_is_refused(tmp_path):
    model = of_ids(lambda _, f: f["ids"])
    exporter = chosen_engine().exporter(model, frozenset({"savedmodel"}))
    with pytest.raises(UserError, match=NO_SAVED_MODEL[engine_name()]):
        exporter.lacking({})
    exporter = chosen_engine().exporter(model, frozenset({"auto"}))
    assert exporter.kinds == {"keras"}
    # What only a call tells is no model.keras: the job is trained all the same.
    (line,) = exporter.lacking(empty_tables(model))
    assert line.startswith("the export has no model, only tables and dense values: no model.keras")
    assert exporter.write(empty_tables(model), tmp_path)[0] == {"keras": None, "saved_model": None}


def empty_tables(model):
    """Tables without rows, as before a job."""
    none = np.zeros(0, np.int64)
    return {
        name: ExportedTable(none, np.zeros((0, table.dim), "f"), np.zeros(table.dim, "f"))
        for name, table in model.tables.items()
    }


def test_batches_of_several_sizes_agree_with_one():
    """Gradients of two halves average to that of the whole: nothing hangs on the size."""
    features, labels, _ = batch_of(np.random.default_rng(3), size=6)
    given = {"ids": features["ids"]}
    model = of_ids(lambda _, f: f["ids"])
    whole = model.compute(model.prepare(batch(given, labels)), 0)[1].dense[0]
    halves = [
        model.compute(model.prepare(batch({"ids": given["ids"][part]}, labels[part])), 0)[1]
        for part in (slice(0, 3), slice(3, 6))
    ]
    mean = sum(each.dense[0] for each in halves) / 2
    np.testing.assert_allclose(whole, mean, rtol=1e-5, atol=1e-7)


def test_gradients_of_several_steps_are_clipped_as_one():
    config = CONFIG.__class__(**{**CONFIG.__dict__, "accumulate": 2})
    module = module_of(
        lambda: OfIds(lambda _, f: f["ids"]),
        "mse",
        lambda: keras.optimizers.SGD(0.5, global_clipnorm=0.01),
    )
    model = served(module, IDS, config=config)
    labels = np.array([[3.0], [-5.0]], "f")
    pushes = [
        model.compute(model.prepare(batch({"ids": LARGE[place:]}, labels[place:])), 0)[1]
        for place in range(2)
    ]
    norms = [np.linalg.norm(each.dense[0]) for each in pushes]
    assert min(norms) > 0.1
    whole = model.average(pushes)
    parts = [whole.dense[0], *(gradient for _, gradient in whole.tables.values())]
    norm = np.sqrt(sum(np.square(each, dtype=np.float64).sum() for each in parts))
    np.testing.assert_allclose(norm, 0.01, rtol=1e-5)
