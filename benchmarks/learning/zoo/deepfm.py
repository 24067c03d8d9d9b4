"""DeepFM (Guo et al., 2017)."""

import keras
import parts
from records import fed

feed_batch = fed("user", "item", "category", "price")
loss = parts.log_loss()


def custom_model():
    given = parts.inputs("user", "item", "category", "price")
    fields = parts.vectors(given, 8)
    linear = [*parts.vectors(given, 1, "linear_"), parts.column(given["price"])]
    total = keras.layers.Add()(fields)
    squares = keras.layers.Add()([keras.layers.Multiply()([each, each]) for each in fields])
    pairs = keras.layers.Subtract()([keras.layers.Multiply()([total, total]), squares])
    deep = parts.hidden(keras.layers.Concatenate()(fields), 32, 16)
    return keras.Model(given, parts.logit(keras.layers.Concatenate()([*linear, pairs, deep])))


def optimizer():
    return keras.optimizers.Adam(0.002)


def eval_metrics_fn():
    return {"auc": parts.auc()}
