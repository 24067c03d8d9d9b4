"""Two towers on MovieLens-100K trained by in-batch softmax: which films a person rates next.

Every rating is a positive example; the other films of the batch are the negatives. Recall is
that among all films. Run it as deepfm.py, with --model-def retrieval.custom_model, and with

    shoal analyze --data DIR/train.parquet --columns item --output items.json

and the environment variable ITEM_STATISTICS=items.json: popular films are among the negatives
more often than others, which is taken off then (log-q correction). Without it they are held
back, and recall is far lower. `shoal predict` writes a vector for each person and film.
"""

import os

import keras
import numpy as np
import tensorflow as tf

from shoal.layers import Embedding
from shoal.preprocessing import Statistics
from shoal.retrieval import FactorizedTopK, corpus_share, in_batch_softmax

PERSON = ("user", "age", "gender", "occupation", "zip")
FILMS = np.arange(1, 1683)
DIM = 32
TEMPERATURE = 0.1


def shares(path):
    """The logarithm of each film's share of the training records, by the film's id."""
    column = Statistics(path)["item"]
    counts = np.full(FILMS[-1] + 1, 0.5)  # of films that are in no training record
    for item, count in column.counts.items():
        counts[item] = count
    return np.log(counts / column.values).astype(np.float32)


LOG_Q = shares(os.environ["ITEM_STATISTICS"]) if "ITEM_STATISTICS" in os.environ else None


def feed_batch(columns, mode, metadata):
    """Turn the columns of a minibatch into (features, labels), or features for prediction."""
    person = tf.stack([(i << 40) + columns[name] for i, name in enumerate(PERSON)], axis=1)
    # In an evaluation each batch has all films, cut into a part for each of its records.
    films = FILMS if mode == "evaluation" else FILMS[:0]
    corpus = corpus_share(films, tf.shape(person)[0])
    features = {"person": person, "film": columns["item"], "corpus": corpus}
    if mode == "prediction":
        return features
    log_q = 0.0 if LOG_Q is None else tf.gather(LOG_Q, columns["item"])
    log_q = tf.zeros_like(columns["label"]) + log_q
    return features, {"candidate": columns["item"], "corpus": corpus, "log_q": log_q}


def custom_model():
    """The model to train."""
    person = keras.Input([len(PERSON)], dtype="int64", name="person")
    film = keras.Input([], dtype="int64", name="film")
    corpus = keras.Input([None], dtype="int64", name="corpus")
    rows = keras.layers.Flatten()(Embedding(DIM, name="person_table")(person))
    hidden = keras.layers.Dense(64, activation="relu", name="person_hidden")(rows)
    query = keras.layers.UnitNormalization()(keras.layers.Dense(DIM, name="person_out")(hidden))
    layers = [
        Embedding(DIM, name="film_table"),
        keras.layers.Dense(64, activation="relu", name="film_hidden"),
        keras.layers.Dense(DIM, name="film_out"),
        keras.layers.UnitNormalization(),
    ]

    def tower(x):
        for layer in layers:
            x = layer(x)
        return x

    outputs = {"person": query, "film": tower(film), "corpus": tower(corpus)}
    return keras.Model({"person": person, "film": film, "corpus": corpus}, outputs)


def loss(labels, predictions):
    """The loss of ranking each person's own film among those of the batch, [batch]."""
    return in_batch_softmax(
        predictions["person"],
        predictions["film"],
        ids=labels["candidate"],
        log_q=labels["log_q"],
        temperature=TEMPERATURE,
    )


def optimizer():
    """A Keras optimizer; the parameter servers do its arithmetic."""
    return keras.optimizers.Adam(0.005)


def eval_metrics_fn():
    """Among all films, for every record of the validation data."""
    return {"retrieval": FactorizedTopK((10, 100), query="person", candidate="film")}
