"""Small Keras models, random ones too, and their batches, for any engine of Keras's."""

from pathlib import Path

import keras
import numpy as np
from keras import layers, ops

from shoal.base.nested import mapped
from shoal.config.job import JobConfig
from shoal.layers import Embedding
from shoal.worker.code.module import UserModule
from shoal.worker.engines import chosen_engine, engine_name
from shoal.worker.input.batch import Batch
from shoal.worker.input.spec import ArraySpec
from shoal.worker.model.model import ServedModel
from shoal.worker.reports.progress import Progress
from shoal.worker.servers.local import LocalServers

CONFIG = JobConfig(model_def="model.custom_model", training_data="unused", seed=5)

SPEC = {
    "bag": ArraySpec((None, 3), np.dtype(np.int64)),
    "hour": ArraySpec((None,), np.dtype(np.int64)),
    "ids": ArraySpec((None, 2), np.dtype(np.int64)),
    "x": ArraySpec((None, 4), np.dtype(np.float32)),
}

LABELS = ArraySpec((None, 1), np.dtype(np.float32))
WEIGHTS = ArraySpec((None,), np.dtype(np.float32))

SEEDS = range(6)
"""Of the random models."""

INT64 = np.dtype(np.int64)
IDS = {"ids": ArraySpec((None, 2), INT64)}
LARGE = np.array([[2**40, -(2**50)], [3, 2**62]])


def module_of(build, loss="binary_crossentropy", optimizer=None, **more):
    """A user's module of these functions."""
    given = optimizer or (lambda: keras.optimizers.SGD(0.5))
    fields = {
        "path": Path("model.py"),
        "custom_model": build,
        "loss": loss,
        "optimizer": given,
        "feed": None,
        "feed_batch": print,
        "eval_metrics_fn": None,
        "custom_data_reader": None,
        "prediction_outputs_processor": None,
    }
    return UserModule(**(fields | more))


def served(module, spec=SPEC, labels=LABELS, weights=None, config=CONFIG, as_spec=None):
    """A model that a store of this process serves, with dense values that NumPy drew."""
    as_spec = as_spec or (lambda each: each)
    spec = {name: as_spec(each) for name, each in spec.items()}
    labels, weights = (None if each is None else as_spec(each) for each in (labels, weights))
    model = ServedModel(
        *(config, module, LocalServers(), spec, labels, 0, Progress()), weights_spec=weights
    )
    rng = np.random.default_rng(1)
    dense = {}
    for variable in (*model.trainable.variables, *model.state.variables):
        begins = 1 if variable.path.endswith(("gamma", "variance")) else 0
        drawn = rng.normal(size=tuple(variable.shape)) * 0.3
        dense[variable.path] = (begins + np.abs(drawn) * 0.5 if begins else drawn).astype("f")
    model.register(dense)
    return model


def batch_of(rng, size=8):
    """Features, labels and weights; ids of 64 bits, some of them padding."""
    features = {
        "bag": rng.integers(0, 3, (size, 3)) * 2**33,
        "hour": rng.integers(0, 24, size),
        "ids": rng.integers(-(2**62), 2**62, (size, 2)) // 2**59,
        "x": rng.normal(size=(size, 4)).astype("f"),
    }
    features["ids"] = features["ids"] * 2**59 + 7
    labels = rng.integers(0, 2, (size, 1)).astype("f")
    return features, labels, rng.uniform(0.5, 2, size).astype("f")


def arrays(nested):
    """NumPy's arrays in the forms that the engine's own pipeline gives."""
    if engine_name() != "torch":
        return nested
    import torch

    return mapped(lambda each: None if each is None else torch.from_numpy(each), nested)


def batch(features, labels=None, **more):
    """A batch of NumPy's arrays; labels are zeros where there are none."""
    size = len(next(iter(features.values())))
    labels = np.zeros((size, 1), np.float32) if labels is None else labels
    return Batch(arrays(features), arrays(labels), size, 0, size, **more)


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
    """Such a model, served."""
    return served(module_of(lambda: OfIds(ids_of), "mse", **more), spec)


class Subclassed(keras.Model):
    """A model that is known by calling it alone; looks a table up twice."""

    def __init__(self, rng):
        super().__init__(name="subclassed")
        combiner = str(rng.choice(["sum", "mean", "sqrtn"]))
        self.wide = Embedding(1, name="wide")
        self.deep = Embedding(3, name="deep", embeddings_initializer="normal")
        self.again = Embedding(2, name="again", table="shared")
        self.bags = Embedding(2, name="bags", table="shared", combiner=combiner, mask_zero=True)
        self.hour = layers.Embedding(24, 2, name="hour")
        self.norm = layers.BatchNormalization(name="norm")
        self.hidden = layers.Dense(5, activation=str(rng.choice(["relu", "tanh"])), name="hidden")
        self.top = layers.Dense(1, name="top", kernel_regularizer="l2")
        self.times = int(rng.integers(1, 100))

    def call(self, features, training=False):
        ids = features["ids"]
        deep = self.deep(ids * self.times - 3)
        parts = [
            ops.reshape(deep, (-1, 6)),
            ops.reshape(self.again(ids[:, :1]), (-1, 2)),
            self.bags(features["bag"]),
            self.hour(features["hour"]),
            features["x"],
        ]
        hidden = self.norm(self.hidden(ops.concatenate(parts, axis=1)), training=training)
        return ops.sigmoid(self.top(hidden) + ops.sum(self.wide(ids), axis=1))


def functional(rng):
    """A functional model, with a plain embedding that becomes a table at any size."""
    ids = keras.Input((2,), dtype="int64", name="ids")
    hour = keras.Input((), dtype="int64", name="hour")
    x = keras.Input((4,), name="x")
    deep = Embedding(4, name="deep", activity_regularizer=keras.regularizers.L2(0.1))(ids)
    plain = layers.Embedding(24, 3, name="plain")(hour)
    frozen = Embedding(2, name="frozen", trainable=False)(ids)
    hidden = layers.Concatenate()([layers.Flatten()(deep), layers.Flatten()(frozen), plain, x])
    for place in range(int(rng.integers(1, 3))):
        hidden = layers.Dense(4, activation="tanh", name=f"hidden_{place}")(hidden)
    inputs = {"hour": hour, "ids": ids, "x": x}
    return keras.Model(inputs, layers.Dense(1, activation="sigmoid", name="top")(hidden))


def random_model(seed):
    """(module, weighs) of a random model; weighs: whether its batches have weights."""
    rng = np.random.default_rng(seed)
    build = functional if seed % 2 else Subclassed
    losses = [
        "binary_crossentropy",
        keras.losses.BinaryCrossentropy(),
        lambda labels, predictions: ops.square(labels - predictions),
    ]
    clip = [{}, {"clipnorm": 0.1}, {"global_clipnorm": 0.1}, {"clipvalue": 0.01}][seed % 4]
    more = {}
    weighs = bool(rng.integers(0, 2))
    if not weighs and rng.integers(0, 2):
        more["class_weight"] = {0: 0.5, 1: 2.0}
    module = module_of(
        lambda: build(np.random.default_rng(seed)),
        losses[int(rng.integers(0, 3))],
        lambda: keras.optimizers.SGD(0.5, **clip),
        eval_metrics_fn=lambda: {
            "auc": keras.metrics.AUC(),
            "far": lambda labels, predictions: ops.mean(ops.abs(labels - predictions)),
        },
        **more,
    )
    return module, weighs


def results(seed, as_array=lambda each: each, as_spec=None):
    """What three steps of a random model give, and its metrics and predictions.

    as_array, as_spec: make the engine's arrays and specs of NumPy's.
    """
    keras.utils.clear_session(free_memory=False)
    module, weighs = random_model(seed)
    config = JobConfig(
        model_def="model.custom_model", training_data="unused", seed=5, embedding_threshold=100
    )
    model = served(module, weights=WEIGHTS if weighs else None, config=config, as_spec=as_spec)
    rng = np.random.default_rng(seed)
    found = []
    evaluator = chosen_engine().evaluator(model, module)
    evaluator.build(None if as_spec is None else as_spec(LABELS))
    for _ in range(3):
        features, labels, weights = batch_of(rng, size=8)
        features = {name: as_array(each) for name, each in features.items()}
        size = len(labels)
        batch = Batch(features, as_array(labels), size, 0, size)
        if weighs:
            batch = Batch(features, as_array(labels), size, 0, size, weights=as_array(weights))
        loss, push = model.compute(model.prepare(batch), 0)
        tables = {
            list(model.tables)[place]: [np.array(ids), np.array(gradient)]
            for place, (ids, gradient) in push.tables.items()
        }
        found.append([loss, np.array(push.dense[0]), np.array(push.dense[1]), tables])
        evaluator.add(batch)
    predictions = np.asarray(model.predict_batch(features))
    names = [each.name for each in (*model.spec.trainable, *model.spec.non_trainable)]
    return {
        "steps": found,
        "metrics": evaluator.finish(evaluator.states()),
        "predictions": predictions,
        "names": [*model.tables, *names],
    }
