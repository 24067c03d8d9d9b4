"""Two towers on MovieLens-100K, for retrieval: a vector of the person and one of the film.

The vectors are outputs of their own, so that `shoal predict` writes them for an index of
nearest neighbours. Run it as deepfm.py, with --model-def two_tower.custom_model.
"""

import keras
import tensorflow as tf

from shoal.layers import Embedding
from shoal.model_zoo.movielens.deepfm import optimizer

__all__ = ["custom_model", "eval_metrics_fn", "feed", "loss", "loss_weights", "optimizer"]

PERSON = ("user", "age", "gender", "occupation", "zip")
FILM = ("item", "release_year")
DIM = 16

loss = {"score": "binary_crossentropy"}
loss_weights = {"score": 1.0}


def feed(dataset, mode, metadata):
    """Turn records into (features, label), or features for prediction (see deepfm.py)."""

    def prepare(record):
        def ids(names):
            return tf.stack([(number << 40) + record[name] for number, name in enumerate(names)])

        features = {"person": ids(PERSON), "film": ids(FILM)}
        return features if mode == "prediction" else (features, record["label"][None])

    return dataset.map(prepare)


def tower(name, count):
    """A model from ids [batch, count] to a vector [batch, DIM] of length 1."""
    ids = keras.Input([count], dtype="int64", name=f"{name}_ids")
    hidden = keras.layers.Flatten()(Embedding(DIM, name=f"{name}_table")(ids))
    hidden = keras.layers.Dense(64, activation="relu")(hidden)
    vector = keras.layers.UnitNormalization()(keras.layers.Dense(DIM)(hidden))
    return keras.Model(ids, vector, name=f"{name}_tower")


def custom_model():
    """The model to train."""
    person = keras.Input([len(PERSON)], dtype="int64", name="person")
    film = keras.Input([len(FILM)], dtype="int64", name="film")
    outputs = {
        "person": tower("person", len(PERSON))(person),
        "film": tower("film", len(FILM))(film),
    }
    likeness = keras.layers.Dot(axes=1)([outputs["person"], outputs["film"]])
    outputs["score"] = keras.layers.Dense(1, activation="sigmoid", name="score")(likeness)
    return keras.Model({"person": person, "film": film}, outputs, name="two_tower")


def eval_metrics_fn():
    """Metrics of the output `score`, over the whole validation data."""
    return {"score": {"auc": keras.metrics.AUC(num_thresholds=1000)}}
