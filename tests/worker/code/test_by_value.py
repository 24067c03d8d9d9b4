"""A model that was given by value is the module that its user would have written."""

import sys
from types import SimpleNamespace

import keras
import numpy as np
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from shoal.base.modules.by_value import MODEL_DEF
from shoal.client import by_value
from shoal.client.by_value import write_model
from shoal.client.run.checks import check_model
from shoal.config.job import JobConfig
from shoal.data.frames import write_data
from shoal.errors import UserError
from shoal.layers import Embedding
from shoal.optimizers import RowwiseAdagrad
from shoal.result import JobResult
from shoal.worker.code.keras_internals import compiled_with
from shoal.worker.code.module import load_module
from shoal.worker.model.model import ServedModel
from shoal.worker.reports.progress import Progress
from shoal.worker.servers.local import LocalServers

pytestmark = pytest.mark.slow


@pytest.fixture
def loaded(tmp_path, monkeypatch):
    """Gives a model by value and loads what was written, as a worker does."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "model", raising=False)

    def load(**given):
        write_model(tmp_path, given)
        config = JobConfig(command="check", model_def=MODEL_DEF, model_zoo=str(tmp_path))
        assert check_model(config) is not None
        return load_module(str(tmp_path), MODEL_DEF)

    known = keras.saving.get_custom_objects()
    before = dict(known)
    yield load
    sys.modules.pop("model", None)
    known.clear()
    known.update(before)


def two_tables(structure=dict):
    inputs = {name: keras.Input([], dtype="int64", name=name) for name in ("user", "item")}
    vectors = [Embedding(4, name=f"{name}s")(each) for name, each in inputs.items()]
    hidden = keras.layers.Dense(1, activation="sigmoid")(keras.layers.Concatenate()(vectors))
    return keras.Model(inputs if structure is dict else list(inputs.values()), hidden)


def compiled(**compile_with):
    model = two_tables()
    model.compile(**{"optimizer": "sgd", "loss": "binary_crossentropy", **compile_with})
    return model


def test_another_python_cannot_read_its_functions(loaded, monkeypatch):
    monkeypatch.setattr(by_value, "python_version", lambda: "3.10")
    with pytest.raises(UserError, match=r"by Python 3\.10, and workers have Python 3\.1\d, which"):
        loaded(model=two_tables, loss="binary_crossentropy", optimizer="sgd")


def one_input(name):
    inputs = keras.Input([], name=name)
    return keras.Model(inputs, keras.ops.expand_dims(inputs, -1))


COLUMNS = {
    "user": tf.constant([1, 2], tf.int64),
    "item": tf.constant([3, 4], tf.int64),
    "clicked": tf.constant([0.0, 1.0], tf.float64),
}


def test_a_compiled_model_alone_is_a_whole_module(loaded):
    model = compiled(
        optimizer=keras.optimizers.Adam(0.25),
        metrics=["accuracy", keras.metrics.AUC(name="area", num_thresholds=17)],
    )
    module = loaded(model=model)
    made = module.build_model()
    assert made is not model
    for mine, its in zip(model.get_weights(), made.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, its)
    assert [layer.name for layer in made.layers] == [layer.name for layer in model.layers]
    assert module.loss == "binary_crossentropy"
    assert float(module.optimizer().learning_rate) == 0.25
    assert module.optimizer() is not module.optimizer()
    metrics = module.eval_metrics_fn()
    assert list(metrics) == ["accuracy", "area"]
    assert isinstance(metrics["accuracy"], keras.metrics.BinaryAccuracy)
    assert metrics["area"].num_thresholds == 17
    assert module.feed is None
    features, labels = module.feed_batch(COLUMNS, "training", None)
    assert {name: list(each.numpy()) for name, each in features.items()} == {
        "user": [1, 2],
        "item": [3, 4],
    }
    assert (labels.dtype, list(labels.numpy())) == (tf.float32, [0.0, 1.0])
    assert set(module.feed_batch(COLUMNS, "prediction", None)) == {"user", "item"}


def test_arguments_go_before_what_the_model_was_compiled_with(loaded):
    module = loaded(
        model=compiled(metrics=["accuracy"]),
        loss=keras.losses.Huber(name="mine"),
        optimizer="adagrad",
        metrics={"error": "mae"},
        callbacks=["a callback"],
        label="item",
    )
    assert isinstance(module.loss, keras.losses.Huber)
    assert module.loss.name == "mine"
    assert type(module.optimizer()).__name__ == "Adagrad"
    assert list(module.eval_metrics_fn()) == ["error"]
    assert module.callbacks() == ["a callback"]
    _, labels = module.feed_batch(COLUMNS, "evaluation", None)
    assert labels.dtype == tf.int64


def test_weights_come_from_their_column_and_an_array_from_its_own(loaded):
    given = {"loss": "mse", "optimizer": "sgd", "label": "clicked", "sample_weight": "item"}
    module = loaded(model=lambda: one_input("user"), **given)
    features, labels, weights = module.feed_batch(COLUMNS, "training", None)
    assert [*features.numpy(), *labels.numpy()] == [1, 2, 0, 1]
    assert (weights.dtype, [*weights.numpy()]) == (tf.float32, [3.0, 4.0])
    assert [*module.feed_batch(COLUMNS, "prediction", None).numpy()] == [1, 2]
    columns = {"x": COLUMNS["item"], "label": COLUMNS["clicked"]}
    module = loaded(model=lambda: one_input("user"), loss="mse", optimizer="sgd")
    features, labels = module.feed_batch(columns, "training", None)
    assert [*features.numpy(), *labels.numpy()] == [3, 4, 0, 1]


def test_optimizers_are_given_by_table(loaded):
    given = {"default": "adam", "user*": keras.optimizers.Ftrl(0.5), "item": RowwiseAdagrad(0.25)}
    made = loaded(model=two_tables, loss="mse", optimizer=given).optimizer()
    assert [type(each).__name__ for each in made.values()] == ["Adam", "Ftrl", "RowwiseAdagrad"]
    assert [float(made[name].learning_rate) for name in ("user*", "item")] == [0.5, 0.25]


def test_functions_are_taken_as_they_are(loaded):
    def squared(labels, predictions):
        return (labels - predictions) ** 2

    def feed(dataset, mode, metadata):
        return dataset

    given = {"model": two_tables, "loss": squared, "optimizer": keras.optimizers.SGD}
    module = loaded(**given, feed=feed, metrics=lambda: {"error": squared})
    assert module.describe("feed") == "feed() of model.py"
    assert module.build_model().count_params() == two_tables().count_params()
    assert module.loss(3.0, 1.0) == 4.0
    assert module.feed("a dataset", "training", None) == "a dataset"
    assert module.feed_batch is None
    assert module.eval_metrics_fn()["error"](2.0, 5.0) == 9.0


def test_inputs_in_a_list_are_the_columns_of_their_names(loaded):
    module = loaded(model=lambda: two_tables(list), loss="mse", optimizer="sgd")
    features, _ = module.feed_batch(COLUMNS, "training", None)
    assert {name: list(each.numpy()) for name, each in features.items()} == {
        "user": [1, 2],
        "item": [3, 4],
    }
    # Looking at the model's inputs has not used up the names of its layers.
    assert module.build_model().layers[-1].name == "dense"


def test_what_a_notebook_defines_comes_along(loaded):
    defined = {"__name__": "__main__", "keras": keras}
    source = """
class Twice(keras.layers.Layer):
    def call(self, values):
        return 2 * values

def off(labels, predictions):
    return keras.ops.abs(labels - predictions)
"""
    exec(source, defined)
    inputs = keras.Input([1], name="value")
    model = keras.Model(inputs, defined["Twice"]()(inputs))
    model.compile(loss=defined["off"], optimizer="sgd", metrics=[defined["off"]])
    sys.modules["__main__"].off = defined["off"]
    try:
        module = loaded(model=model)
    finally:
        del sys.modules["__main__"].off
    made = module.build_model()
    assert float(made(np.array([[3.0]]))[0, 0]) == 6.0
    assert float(module.loss(1.0, 4.0)) == 3.0
    assert float(module.eval_metrics_fn()["off"](1.0, 4.0)) == 3.0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"loss": "mse"}, "^loss is given by value, and model is not: give model, too$"),
        ({"model": 3}, "^model must be a keras.Model or torch.nn.Module, or a function"),
        ({"model": two_tables()}, "^loss is missing: give the argument loss, or a compiled model$"),
        ({"model": two_tables(), "loss": "mse"}, "^optimizer is missing"),
        (
            {"model": compiled, "loss": "mse", "optimizer": 0.1},
            "^optimizer must be an optimizer of",
        ),
        (
            {"model": compiled, "loss": "mse", "optimizer": {"default": 3}},
            "^optimizer must be .*, not int$",
        ),
        ({"model": compiled, "loss": "mse", "optimizer": "sgd", "feed": "x"}, "^feed must be a f"),
        (
            {"model": compiled, "loss": "mse", "optimizer": "sgd", "feed": print, "label": "x"},
            "^label is for a job without feed",
        ),
        (
            {"model": compiled, "loss": "mse", "optimizer": "sgd", "sample_weight": [1.0]},
            "^sample_weight must be the name of a column, not list$",
        ),
        (
            {"model": compiled, "loss": "mse", "optimizer": "sgd", "callbacks": [(i for i in "a")]},
            "^callbacks cannot be given by value: ",
        ),
    ],
)
def test_what_cannot_be_a_model_is_told_by_its_argument(tmp_path, given, message):
    with pytest.raises(UserError, match=message):
        write_model(tmp_path, given)


def test_a_function_may_compile_the_model_that_it_makes(loaded):
    module = loaded(model=lambda: compiled(metrics=["accuracy"]))
    found = module.as_compiled(compiled_with(module.build_model()))
    assert found.loss == "binary_crossentropy"
    assert list(found.eval_metrics_fn()) == ["accuracy"]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({**COLUMNS, "seconds": COLUMNS["user"]}, "not take are clicked, seconds$"),
        ({"user": COLUMNS["user"], "items": COLUMNS["item"]}, r"there is no column item \(did you"),
    ],
)
def test_columns_that_do_not_fit_are_named(loaded, columns, message):
    module = loaded(model=compiled())
    with pytest.raises(UserError, match=message):
        module.feed_batch(columns, "training", None)


def test_a_function_that_only_a_configuration_names_must_be_found(tmp_path):
    def off(labels, predictions):
        return labels - predictions

    model = compiled(metrics=[off])
    with pytest.raises(UserError, match=r"^model was compiled with the function off.*: give metr"):
        write_model(tmp_path, {"model": model})


def test_accuracy_without_a_loss_of_keras_is_refused(loaded):
    module = loaded(model=compiled(), loss=lambda a, b: a - b, metrics=["accuracy"])
    with pytest.raises(UserError, match="'accuracy' depends on a loss of Keras by name"):
        module.eval_metrics_fn()


def elements():
    features = {"user": [3, -1, 7], "name": ["a", "b", "c"], "pair": [[1.0, 2.0]] * 3}
    return tf.data.Dataset.from_tensor_slices((features, [0.0, 1.0, 1.0]))


@pytest.mark.parametrize("batched", [False, True])
def test_a_dataset_of_tensorflow_is_written_as_its_columns(tmp_path, batched):
    data = elements().batch(2) if batched else elements()
    told = []
    write_data("training_data", data, tmp_path / "data.parquet", told.append)
    assert pq.read_table(tmp_path / "data.parquet").to_pydict() == {
        "user": [3, -1, 7],
        "name": [b"a", b"b", b"c"],
        "pair": [[1.0, 2.0]] * 3,
        "label": [0.0, 1.0, 1.0],
    }
    assert ("3 records" in told[0]) == (not batched)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (lambda: elements().repeat(), "the tf.data.Dataset has no end: give it one with take"),
        (lambda: tf.data.Dataset.range(3), "must be dicts of tensors by column, or pairs"),
        (
            lambda: elements().map(lambda features, _: ({**features, "label": 1}, 2)),
            "the features have 'label', which is the labels' column",
        ),
    ],
)
def test_other_datasets_of_tensorflow_are_refused(tmp_path, data, message):
    with pytest.raises(UserError, match=f"^training_data: .*{message}"):
        write_data("training_data", data(), tmp_path / "data.parquet", lambda _: None)


MANIFEST = {"keras": "model.keras"}


class Doubled(keras.layers.Layer):
    def call(self, inputs):
        return 2 * inputs


def doubling():
    inputs = keras.Input([3], name="x")
    inner = keras.Sequential([keras.Input([3]), Doubled()])
    return keras.Model(inputs, keras.layers.Dense(1)(inner(inputs)))


@pytest.mark.parametrize("by", ["object", "function"])
def test_a_result_loads_layers_of_the_program_that_gave_the_model(tmp_path, monkeypatch, by):
    """As a class of a notebook, whose module no other process has."""
    monkeypatch.setattr(Doubled, "__module__", "__main__")
    monkeypatch.setattr(sys.modules["__main__"], "Doubled", Doubled, raising=False)
    folder = tmp_path / "job" / "given"
    folder.mkdir(parents=True)
    model = doubling()
    given = model if by == "object" else doubling
    write_model(folder, {"model": given, "loss": "mse", "optimizer": "sgd"})
    output = tmp_path / "output"
    output.mkdir()
    # A worker knows the class by its name alone.
    with keras.saving.custom_object_scope({"Doubled": Doubled}):
        model.save(output / "model.keras")
    monkeypatch.delattr(sys.modules["__main__"], "Doubled")
    export = SimpleNamespace(manifest=MANIFEST)
    monkeypatch.setattr("shoal.checkpoints.saved.Export", lambda folder: export)
    result = JobResult("job", "train", "succeeded", tmp_path / "job", output=str(output))
    loaded_model = result.load()
    assert type(loaded_model.layers[1].layers[0]) is Doubled
    x = np.ones((2, 3), np.float32)
    np.testing.assert_array_equal(loaded_model(x), model(x))


@pytest.mark.parametrize("served", [True, False])
def test_a_model_object_has_the_weights_that_it_was_given_with(loaded, served):
    """E4: Keras found no variable for those of a table that the servers hold."""
    user = keras.Input([], dtype="int64", name="user")
    rows = keras.layers.Embedding(100, 4, name="users")(user)
    given = keras.Model(user, keras.layers.Dense(1, "sigmoid", name="out")(rows))
    given.compile("sgd", "binary_crossentropy")
    module = loaded(model=given)
    threshold = 0 if served else 10_000
    config = JobConfig(model_def=MODEL_DEF, training_data="-", embedding_threshold=threshold)
    servers = LocalServers()
    model = ServedModel(config, module, servers, None, None, 0, Progress())
    assert list(model.tables) == ["users"] * served
    model.register()
    for position, pieces in model.given_rows():
        for ids, values in pieces:
            servers.assign_rows(position, ids, values)
    ids = np.arange(100)
    np.testing.assert_allclose(model.predict_batch(tf.constant(ids)), given(ids), rtol=1e-5)
