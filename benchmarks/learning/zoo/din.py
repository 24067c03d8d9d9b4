"""DIN (Zhou et al., 2018): attention of the item to the last items, of which places are masked."""

import keras
import parts
from records import ITEMS, fed

feed_batch = fed("user", "item", "price", "last")
loss = parts.log_loss()


def custom_model():
    given = parts.inputs("user", "item", "price", "last")
    (user,) = parts.vectors({"user": given["user"]}, 8)
    items = keras.layers.Embedding(ITEMS + 1, 8, name="items")
    item, last = items(given["item"] + 1), items(given["last"])
    weights = keras.layers.Dot(axes=(2, 1))([last, item])
    there = keras.ops.cast(keras.ops.not_equal(given["last"], 0), "float32")
    weights = keras.layers.Softmax()(weights - 1e9 * (1.0 - there))
    interest = keras.layers.Dot(axes=(1, 1))([last, weights])
    price = parts.column(given["price"])
    both = keras.layers.Concatenate()(
        [user, item, interest, keras.layers.Multiply()([item, interest]), price]
    )
    return keras.Model(given, parts.logit(parts.hidden(both, 32, 16)))


def optimizer():
    return keras.optimizers.Adam(0.002)


def eval_metrics_fn():
    return {"auc": parts.auc()}
