"""What only models of Keras on PyTorch do: tests/worker/engines/torch/keras/test_keras.py."""

import importlib
import sys

import keras
import numpy as np
import pytest
import torch
from keras import layers, ops

import shoal.torch
from shoal.errors import UserError
from shoal.layers import Embedding
from shoal.worker.code.params import with_params
from shoal.worker.engines import chosen_engine
from shoal.worker.engines.torch.keras.backend import BACKEND
from shoal.worker.engines.torch.keras.build import as_tensors
from shoal.worker.input.spec import ArraySpec
from shoal.worker.model.silent_mistakes import noting_losses, of_loss
from tests.worker.engines.keras_ops.models import (
    CONFIG,
    IDS,
    INT64,
    LARGE,
    SPEC,
    OfIds,
    arrays,
    batch,
    module_of,
    of_ids,
    served,
)

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def new_names():
    keras.utils.clear_session(free_memory=False)


def test_tensorflow_is_not_imported():
    """After models were built, trained and evaluated, and with all that a worker imports."""
    importlib.import_module("shoal.worker.loop")
    model = of_ids(lambda _, f: f["ids"])
    model.compute(model.prepare(batch({"ids": LARGE})), 0)
    assert "torch" in sys.modules
    assert "tensorflow" not in sys.modules


@pytest.mark.parametrize("wrong", [-1, 24])
@pytest.mark.parametrize("shift", [0, 5])
def test_an_id_beyond_a_layer_of_the_workers_is_refused(wrong, shift):
    """PyTorch would take the last row for -1."""

    def build():
        hours = keras.Input((), dtype="int64", name="hour")
        rows = layers.Embedding(24, 4, name="hours")(hours - shift)
        return keras.Model({"hour": hours}, layers.Dense(1)(rows))

    model = served(module_of(build, "mse"), {"hour": SPEC["hour"]})
    assert list(model.tables) == []
    right = {"hour": np.array([0, 23]) + shift}
    assert np.isfinite(model.compute(model.prepare(batch(right)), 0)[0])
    given = {"hour": np.array([3, wrong]) + shift}
    for call in (
        lambda: model.compute(model.prepare(batch(given)), 0),
        lambda: model.predict_batch(arrays(given)),
    ):
        with pytest.raises(UserError, match=f"'hours' was given the id {wrong}: its ids go from 0"):
            call()


def test_integers_of_64_bits_are_whole_in_a_step():
    def build():
        ids = keras.Input((2,), dtype="int64", name="ids")
        odd = ops.cast(ids % 2, "float32")
        return keras.Model({"ids": ids}, layers.Dense(1, name="top")(odd))

    model = served(module_of(build, "mse"), IDS)
    given = np.array([[2**40, 2**40 + 1], [2**62 + 1, 2**62]])
    found = np.asarray(model.predict_batch(arrays({"ids": given})))
    np.testing.assert_array_equal(
        found, np.asarray(model.predict_batch(arrays({"ids": given % 2})))
    )
    assert found[0] != found[1]


def test_a_fraction_as_an_integer_is_refused_at_its_value():
    def build():
        ids = keras.Input((2,), dtype="int64", name="ids")
        rows = Embedding(2, name="factors")(ids)
        return keras.Model({"ids": ids}, layers.Dense(1)(layers.Flatten()(rows)))

    spec = {"ids": ArraySpec((None, 2), np.dtype(np.float32))}
    model = served(module_of(build, "mse"), spec)
    model.pull(arrays({"ids": np.array([[1, 2]], "f")}), training=True)
    with pytest.raises(UserError, match=r"feature 'ids' is 1.5 in row 0 of a minibatch"):
        model.pull(arrays({"ids": np.array([[1.5, 2]], "f")}), training=True)


def test_a_module_of_pytorch_within_is_refused():
    class Mixed(keras.Model):
        def __init__(self):
            super().__init__()
            self.own = torch.nn.Linear(4, 1)

        def call(self, features):
            return self.own(features["x"])

    with pytest.raises(UserError, match=r"Mixed\(\) of model.py has a Linear, a torch.nn.Module"):
        served(module_of(Mixed, "mse"), {"x": SPEC["x"]})


def test_an_older_keras_is_refused(monkeypatch):
    monkeypatch.setattr(keras, "__version__", "3.14.2")
    with pytest.raises(UserError, match=r"of Keras 3.14.2, which trains on PyTorch from 3.15 on"):
        of_ids(lambda _, f: f["ids"])


class Plain(torch.nn.Module):
    """A module of PyTorch, in a process that has Keras."""

    def __init__(self):
        super().__init__()
        self.factors = shoal.torch.Embedding(2)
        self.large = torch.nn.Embedding(1000, 2)
        self.top = torch.nn.Linear(4, 1)

    def forward(self, features):
        rows = torch.cat([self.factors(features["ids"]), self.large(features["ids"] % 7)], dim=-1)
        return self.top(rows).sum(dim=1)


@pytest.mark.parametrize("make", [Plain, lambda: Plain()])
def test_a_module_of_pytorch_is_trained_though_keras_is_there(make):
    module = module_of(
        make,
        torch.nn.functional.mse_loss,
        lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )
    config = CONFIG.__class__(**{**CONFIG.__dict__, "embedding_threshold": 100})
    model = served(module, IDS, config=config)
    assert list(model.tables) == ["factors", "large"]
    loss, _ = model.compute(model.prepare(batch({"ids": LARGE})), 0)
    assert np.isfinite(loss)
    assert chosen_engine().check_optimizer(module).default.spec.kind == "sgd"


def test_what_is_no_model_is_refused():
    for made, words in (
        (lambda: 5, "returned int, not a torch.nn.Module"),
        (lambda: layers.Dense(1), "returned Dense, not a keras.Model"),
        (layers.Flatten, "returned Flatten, not a keras.Model"),
    ):
        with pytest.raises(UserError, match=words):
            served(module_of(made, "mse"), IDS)


def test_an_optimizer_of_keras_is_made_without_parameters():
    module = module_of(
        lambda: OfIds(lambda _, f: f["ids"]), "mse", lambda rate: keras.optimizers.SGD(rate)
    )
    module = with_params(module, {"rate": 0.25})
    assert chosen_engine().check_optimizer(module).default.learning_rate(0) == 0.25
    assert served(module, IDS).optimizers.default.learning_rate(0) == 0.25


def test_ids_by_sizes_as_numbers_are_refused():
    with pytest.raises(UserError, match="computes ids of sizes that it takes as numbers"):
        of_ids(lambda _, f: f["ids"] + len(f["ids"]))


def test_texts_are_ids_before_the_model_sees_them():
    texts = ArraySpec((None, 2), np.dtype(object))
    assert as_tensors({"ids": texts, "x": None}) == {"ids": ArraySpec((None, 2), INT64), "x": None}
    assert list(of_ids(lambda _, f: f["ids"], {"ids": texts}).tables) == ["factors"]


def test_labels_of_text_are_refused():
    texts = ArraySpec((None, 1), np.dtype(object))
    with pytest.raises(UserError, match="gives text as labels, and the loss takes numbers"):
        served(module_of(lambda: OfIds(lambda _, f: f["ids"]), "mse"), IDS, texts)


def test_a_label_that_is_no_class_is_told():
    def build():
        x = keras.Input((4,), name="x")
        return keras.Model({"x": x}, layers.Dense(3, activation="softmax")(x))

    of_classes = ArraySpec((None,), INT64)
    module = module_of(build, "sparse_categorical_crossentropy")
    model = served(module, {"x": SPEC["x"]}, of_classes)
    given = {"x": np.ones((2, 4), "f")}
    assert np.isfinite(model.compute(model.prepare(batch(given, np.array([0, 2]))), 0)[0])
    with pytest.raises(UserError, match="which is none of the model's classes"):
        model.compute(model.prepare(batch(given, np.array([0, 3]))), 0)


def test_a_write_to_a_trained_variable_is_refused():
    class Writing(OfIds):
        def call(self, features):
            if self.top.built:
                self.top.kernel.assign(ops.maximum(self.top.kernel, 0.0))
            return super().call(features)

    model = served(module_of(lambda: Writing(lambda _, f: f["ids"]), "mse"), IDS)
    with pytest.raises(UserError, match="the model's code writes to its parameter"):
        model.compute(model.prepare(batch({"ids": LARGE})), 0)


def test_a_sigmoid_twice_is_told():
    def build():
        ids = keras.Input((2,), dtype="int64", name="ids")
        rows = layers.Flatten()(Embedding(2, name="factors")(ids))
        return keras.Model({"ids": ids}, layers.Dense(1, activation="sigmoid")(rows))

    model = served(module_of(build, keras.losses.BinaryCrossentropy(from_logits=True)), IDS)
    given = batch({"ids": LARGE})
    with noting_losses(model) as traced:
        model.compute(model.prepare(given), 0)
    (line,) = of_loss(model, given, traced)
    assert line.startswith("the model's output is a sigmoid, and the loss binary_crossentropy has")
    assert BACKEND.activation(torch.ones(2)) is None


def test_layouts_and_forms_of_pytorch_are_refused():
    model = of_ids(lambda _, f: f["ids"])
    with pytest.raises(UserError, match="--export pt2: a model of Keras has no such form"):
        chosen_engine().exporter(model, frozenset({"pt2"}))


def test_an_export_predicts_as_the_model_does(tmp_path):
    def build():
        x = keras.Input((4,), name="x")
        return keras.Model({"x": x}, layers.Dense(1)(x))

    model = served(module_of(build, "mse"), {"x": SPEC["x"]})
    exporter = chosen_engine().exporter(model, frozenset({"auto"}))
    written, _ = exporter.write({}, tmp_path)
    given = arrays({"x": np.random.default_rng(0).normal(size=(5, 4)).astype("f")})
    model.pull_dense()
    model.model.save(tmp_path / written["keras"])
    ((name, found),) = exporter.predictions(tmp_path, written, given)
    assert name == "model.keras"
    np.testing.assert_allclose(found, model.predict_batch(given), rtol=1e-6)
