"""What the engine of JAX does, in a process of its own: tests/worker/engines/jax/test_jax.py."""

import dataclasses
import importlib
import logging
import os
import pickle
import sys

import keras
import numpy as np
import pytest
from keras import layers, ops

from shoal.errors import UserCodeError, UserError
from shoal.layers import Embedding
from shoal.worker.engines import chosen_engine
from shoal.worker.input.batch import Batch
from shoal.worker.input.spec import ArraySpec
from shoal.worker.outputs.export_tables import ExportedTable
from tests.worker.engines.jax.models import (
    CONFIG,
    LABELS,
    SEEDS,
    SPEC,
    batch_of,
    module_of,
    results,
    served,
)

INT64 = np.dtype(np.int64)
IDS = {"ids": ArraySpec((None, 2), INT64)}
LARGE = np.array([[2**40, -(2**50)], [3, 2**62]])


@pytest.fixture(autouse=True)
def new_names():
    keras.utils.clear_session(free_memory=False)


def batch(features, labels=None, **more):
    size = len(next(iter(features.values())))
    labels = np.zeros((size, 1), np.float32) if labels is None else labels
    return Batch(features, labels, size, 0, size, **more)


class OfIds(keras.Model):
    """A model of one table, whose ids a function makes of the features."""

    def __init__(self, ids_of):
        super().__init__(name="of_ids")
        self.factors = Embedding(2, name="factors")
        self.ids_of = ids_of
        self.top = layers.Dense(1, name="top")

    def call(self, features):
        return self.top(ops.sum(self.factors(self.ids_of(self, features)), axis=1))


def of_ids(ids_of, spec=IDS, **more):
    return served(module_of(lambda: OfIds(ids_of), "mse", **more), spec)


def test_steps_for_the_comparison_with_tensorflow():
    found = {seed: results(seed) for seed in SEEDS}
    with open(os.environ["SHOAL_TEST_RESULTS"], "wb") as file:
        pickle.dump(found, file)


def test_no_other_framework_is_imported():
    """After models were built, trained and evaluated, and with all that a worker imports."""
    importlib.import_module("shoal.worker.loop")
    assert "jax" in sys.modules
    assert not {"tensorflow", "torch"} & sys.modules.keys()


# ------------------------------------------------------------ ids


def test_ids_keep_their_64_bits():
    model = of_ids(lambda _, features: features["ids"])
    pulled = model.pull({"ids": LARGE}, training=True)
    assert sorted(pulled.ids[0].unique) == sorted(LARGE.ravel())
    loss, push = model.compute(model.prepare(batch({"ids": LARGE})), 0)
    assert np.isfinite(loss)
    assert push.tables[0][1].shape == (4, 2)


def test_computed_ids_are_those_of_64_bits():
    model = of_ids(lambda _, f: f["ids"] * 31 // 7 + ops.arange(2, dtype="int64"))
    for size in (2, 1):  # each compiled by itself
        given = LARGE[:size]
        pulled = model.pull({"ids": given}, training=True)
        expected = given * 31 // 7 + np.arange(2)
        assert sorted(set(expected.ravel())) == sorted(pulled.ids[0].unique)


def test_constants_of_64_bits_in_a_model_are_refused():
    with pytest.raises(UserError) as told:
        of_ids(lambda _, f: ops.mod(f["ids"], 2**45))
    assert f"Python int {2**45} too large" in str(told.value)
    assert "so compute such ids in feed_batch" in str(told.value)


class OtherInTraining(OfIds):
    def call(self, features, training=False):
        ids = self.ids_of(self, features) if training else features["ids"] + 1
        return self.top(ops.sum(self.factors(ids), axis=1))


def test_ids_are_alike_whether_training_or_not():
    for ids_of in (lambda _, f: f["ids"], lambda _, f: f["ids"] + 2, lambda _, f: f["ids"] * 2):
        model = served(module_of(lambda of=ids_of: OtherInTraining(of), "mse"), IDS)
        with pytest.raises(UserError) as told:
            model.compute(model.prepare(batch({"ids": LARGE})), 0)
        words = "the model calls embedding 'factors' with other ids in training than otherwise"
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


@pytest.mark.parametrize(
    "ids_of",
    [
        lambda _, f: ops.cast(f["ids"], "int64"),
        lambda _, f: ops.cast(f["ids"][:, :1], "int32") + 7,
    ],
    ids=["whole", "a part"],
)
def test_floats_that_are_too_large_for_ids_are_refused(ids_of):
    model = of_ids(ids_of, {"ids": ArraySpec((None, 2), np.dtype(np.float32))})
    good = np.array([[3, 2**24 - 1], [0.5, -9]], np.float32)
    model.prepare(batch({"ids": good}))
    bad = np.array([[3, 4], [2**24, 4]], np.float32)
    with pytest.raises(UserError, match=r"model\.py: feature 'ids' is 16777216 as float32, and"):
        model.prepare(batch({"ids": bad}))


def test_floats_of_a_functional_model_s_integer_input_are_looked_at():
    def build():
        ids = keras.Input((2,), dtype="int64", name="ids")
        vectors = ops.sum(Embedding(2, name="factors")(ids), axis=1)
        return keras.Model({"ids": ids}, layers.Dense(1)(vectors))

    model = served(module_of(build, "mse"), {"ids": ArraySpec((None, 2), np.dtype(np.float32))})
    model.prepare(batch({"ids": np.array([[3, 4]], np.float32)}))
    with pytest.raises(UserError, match="feature 'ids' is 33554432 as float32"):
        model.prepare(batch({"ids": np.array([[3, 2**25]], np.float32)}))


def test_an_id_beyond_a_table_of_keras_is_refused():
    def build():
        ids = keras.Input((2,), dtype="int64", name="ids")
        rows = layers.Embedding(100, 4, name="plain")(ids)
        return keras.Model({"ids": ids}, layers.Dense(1)(layers.Flatten()(rows)))

    config = CONFIG.__class__(**{**CONFIG.__dict__, "embedding_threshold": 10})
    model = served(module_of(build, "mse"), IDS, config=config)
    assert list(model.tables) == ["plain"]
    with pytest.raises(UserError, match="'plain' was given the id 100: its ids go from 0 to 99"):
        model.pull({"ids": np.array([[1, 100]])}, training=True)


@pytest.mark.parametrize("wrong", [-1, 24])
@pytest.mark.parametrize("shift", [0, 5])
def test_an_id_beyond_a_layer_of_the_workers_is_refused(wrong, shift):
    """JAX would take the last row for -1, and no number for 24."""

    def build():
        hours = keras.Input((), dtype="int64", name="hour")
        rows = layers.Embedding(24, 4, name="hours")(hours - shift)
        return keras.Model({"hour": hours}, layers.Dense(1)(rows))

    spec = {"hour": SPEC["hour"]}
    model = served(module_of(build, "mse"), spec)
    assert list(model.tables) == []
    right = {"hour": np.array([0, 23]) + shift}
    assert np.isfinite(model.compute(model.prepare(batch(right)), 0)[0])
    with pytest.raises(UserError, match=f"'hours' was given the id {wrong}: its ids go from 0"):
        model.pull({"hour": np.array([3, wrong]) + shift}, training=True)


# ------------------------------------------------------------ 64-bit integers in a step


class Reading(keras.Model):
    """A model that computes with its ids."""

    def __init__(self):
        super().__init__(name="reading")
        self.factors = Embedding(1, name="factors")
        self.top = layers.Dense(1, name="top")

    def call(self, features):
        numbers = ops.cast(features["ids"], "float32")
        return self.top(numbers) + ops.sum(self.factors(features["ids"]), axis=1)


def test_values_that_a_step_reads_must_have_32_bits():
    model = served(module_of(Reading, "mse"), IDS)
    small = np.array([[1, -2], [2**31 - 1, -(2**31)]])
    assert np.isfinite(model.compute(model.prepare(batch({"ids": small})), 0)[0])
    for value in (2**31, -(2**31) - 1):
        given = {"ids": np.array([[1, value]])}
        with pytest.raises(UserError, match=f"gives {value} as feature 'ids', and the model"):
            model.compute(model.prepare(batch(given)), 0)
        with pytest.raises(UserError, match=f"gives {value} as feature 'ids', and the model"):
            model.predict_batch(given)


def test_labels_must_have_32_bits():
    model = served(
        module_of(lambda: OfIds(lambda _, f: f["ids"]), "mse"), IDS, ArraySpec((None, 1), INT64)
    )
    with pytest.raises(UserError, match=f"gives {2**33} among the labels, and the model"):
        model.compute(model.prepare(batch({"ids": LARGE}, np.array([[1], [2**33]]))), 0)


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
    np.testing.assert_array_equal(model.predict_batch({"ids": given}), [[1], [2], [0]])


# ------------------------------------------------------------ steps


class Looking(layers.Layer):
    """A layer whose function looks at values of what it is given."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def call(self, inputs):
        return self.function(inputs)

    def compute_output_shape(self, shape):
        return shape


BY_VALUES = {
    "if": (lambda x: x if ops.sum(x) > 0 else -x, r"keras\.ops\.where .* jax\.lax\.cond"),
    "int": (lambda x: x * int(x[0, 0]), r"makes a number of Python's .* sizes are in \.shape"),
    "range": (lambda x: sum(x for _ in range(ops.cast(x[0, 0], "int32"))), "fori_loop"),
    "numpy": (lambda x: x + np.maximum(x, 0).sum(), "gives an array to NumPy, .* feed_batch"),
    "a condition": (lambda x: x + ops.sum(x[x > 0]), r"jnp\.where\(condition, array, 0\)"),
}


@pytest.mark.parametrize("where", ["layer", "loss", "metric"])
@pytest.mark.parametrize("name", BY_VALUES)
def test_code_that_looks_at_values_is_told_where_and_what_to_write(name, where):
    looking, instead = BY_VALUES[name]
    message = rf"^(the metrics of )?checks_steps\.py, line \d+: the code .*{instead}"

    def build():
        ids = keras.Input((2,), dtype="int64", name="ids")
        vectors = ops.sum(Embedding(2, name="factors")(ids), axis=1)
        top = layers.Dense(1)(Looking(looking)(vectors) if where == "layer" else vectors)
        return keras.Model({"ids": ids}, top)

    def of_predictions(labels, predictions):
        return labels + looking(predictions)

    loss = of_predictions if where == "loss" else "mse"
    metrics = (lambda: {"own": of_predictions}) if where == "metric" else None
    module = module_of(build, loss, eval_metrics_fn=metrics)

    def first_batch():
        model, given = served(module, IDS), batch({"ids": LARGE})
        if where == "metric":
            chosen_engine().evaluator(model, module).add(given)
        model.compute(model.prepare(given), 0)

    with pytest.raises(UserError, match=message):
        first_batch()


def test_the_weight_of_a_table_is_not_in_a_worker():
    def build():
        ids = keras.Input((2,), dtype="int64", name="ids")
        table = Embedding(2, name="factors")
        return keras.Model(ids, ops.sum(table(ids)) + ops.sum(table.embeddings))

    message = "'factors' has no weight `embeddings` in a worker, .* call the layer with the ids"
    with pytest.raises(UserCodeError, match=message):
        served(module_of(build), IDS)

    def build_of_keras():
        ids = keras.Input((2,), dtype="int64", name="ids")
        table = layers.Embedding(100, 2, name="users")
        return keras.Model(ids, ops.sum(table(ids)) + ops.sum(table.embeddings))

    message = (
        r"^model\.py: embedding 'users' .*\(layer\.embeddings, checks_steps\.py, line \d+\): call"
    )
    above = dataclasses.replace(CONFIG, embedding_threshold=0)
    with pytest.raises(UserError, match=message):
        served(module_of(build_of_keras), IDS, config=above)


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
    first, second = (model.predict_batch(given) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    # Seeds are no state of the servers.
    assert [each.name for each in model.spec.non_trainable] == []


def test_many_sizes_of_batches_are_told_of_once(caplog):
    model = of_ids(lambda _, f: f["ids"])
    with caplog.at_level(logging.WARNING):
        for size in range(1, 12):
            given = {"ids": np.arange(2 * size).reshape(size, 2)}
            model.compute(model.prepare(batch(given)), 0)
    (line,) = [each.message for each in caplog.records if "--batch-size" in each.message]
    assert "so far for 1, 2, 3, 4, 5, 6, 7, 8, 9: take a --batch-size" in line


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
    predicted = model.predict_batch(given)
    apart = np.abs(labels - predicted)[..., 0][given["ids"] != 0]
    evaluator = chosen_engine().evaluator(model, module)
    evaluator.build(steps)
    evaluator.add(batch(given, labels))
    found = evaluator.finish(evaluator.states())
    np.testing.assert_allclose(found["far"], apart.mean(), rtol=1e-5)
    loss, _ = model.compute(model.prepare(batch(given, labels)), 0)
    trained = model.predict_batch(given, model.prepare(batch(given)).inputs)
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


# ------------------------------------------------------------ what is refused, and exports


def test_a_module_of_flax_is_refused():
    bare = type("Net", (), {"__module__": "flax.nnx.module"})
    with pytest.raises(UserError) as told:
        served(module_of(bare), IDS)
    assert str(told.value) == (
        "Net() of model.py returned a Net of flax: put everything but the tables into a "
        "keras.layers.FlaxLayer or keras.layers.JaxLayer, which gets the vectors of "
        "shoal.layers.Embedding, and give a keras.Model of these layers"
    )


@pytest.mark.parametrize("layer", ["StringLookup", "Hashing"])
def test_layers_that_need_tensorflow_are_refused(layer):
    def build():
        kind = getattr(layers, layer)
        return kind(num_bins=3) if layer == "Hashing" else kind(vocabulary=["a"])

    with pytest.raises(UserError) as told:
        served(module_of(build), IDS)
    assert str(told.value) == (
        f"build() of model.py: Layer {layer} requires TensorFlow, and the model is computed by "
        "JAX: use the layers of shoal.preprocessing in feed_batch, or give --engine tensorflow"
    )


def test_layouts_of_kernels_are_refused():
    with pytest.raises(UserError, match="describe both models with --engine tensorflow"):
        chosen_engine().kernel_layouts(None, SPEC)


def test_a_saved_model_is_made_by_another_process(tmp_path):
    model = of_ids(lambda _, f: f["ids"])
    exporter = chosen_engine().exporter(model, frozenset({"savedmodel"}))
    message = "No SavedModel: a process of TensorFlow makes it, which says: .*there is no.*model.py"
    with pytest.raises(UserError, match=message):
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
