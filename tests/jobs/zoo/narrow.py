"""The model of a job whose checkpoint wide.py continues: tables, numbers, statistics."""

import keras
import tensorflow as tf

import shoal.layers


def custom_model(dim=8, more=False, rows="items"):
    user = keras.Input((), dtype="int64", name="user")
    item = keras.Input((3,), dtype="int64", name="item")
    x = keras.Input((2,), name="x")
    inputs = {"user": user, "item": item, "x": x}
    users = shoal.layers.Embedding(dim, name="users")(user)
    items = shoal.layers.Embedding(4, name=rows, combiner="mean", mask_zero=True)(item)
    parts = [users, items, x]
    if more:
        inputs["shop"] = keras.Input((2,), dtype="int64", name="shop")
        shops = shoal.layers.Embedding(4, name="shops")(inputs["shop"])
        parts.insert(1, keras.layers.Flatten()(shops))
    hidden = keras.layers.Dense(8, activation="relu", name="hidden")(
        keras.layers.Concatenate()(parts)
    )
    hidden = keras.layers.BatchNormalization(name="norm")(hidden)
    linear = shoal.layers.Embedding(1, name="linear", combiner="sum")(item)
    joined = keras.layers.Concatenate()([hidden, linear])
    return keras.Model(inputs, keras.layers.Dense(1, name="logit")(joined))


def loss(labels, predictions):
    return keras.losses.BinaryCrossentropy(from_logits=True)(labels, predictions)


def optimizer():
    return keras.optimizers.Adagrad(0.05)


def feed(dataset, mode, metadata):
    return dataset.map(parse)


def parse(record):
    user, item = (tf.cast(record[name], tf.int64) for name in ("user", "item"))
    x = tf.cast(record["x"], tf.float32)
    features = {
        "user": user,
        "item": tf.stack([item, item // 7, item * 0]),
        "x": tf.stack([x, x * x]),
    }
    return features, tf.cast(record["label"], tf.float32)[None]


def eval_metrics_fn():
    return {"auc": keras.metrics.AUC(from_logits=True)}
