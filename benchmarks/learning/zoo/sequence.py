"""A recurrent network over the last items (as GRU4Rec, Hidasi et al., 2016)."""

import keras
import parts
from records import ITEMS, fed

feed_batch = fed("item", "last")
loss = parts.log_loss()


def custom_model():
    given = parts.inputs("item", "last")
    items = keras.layers.Embedding(ITEMS + 1, 8, name="items")
    item, state = items(given["item"] + 1), keras.layers.GRU(16)(items(given["last"]))
    both = keras.layers.Concatenate()([item, state])
    return keras.Model(given, parts.logit(parts.hidden(both, 16)))


def optimizer():
    return keras.optimizers.Adam(0.005)


def eval_metrics_fn():
    return {"auc": parts.auc()}
