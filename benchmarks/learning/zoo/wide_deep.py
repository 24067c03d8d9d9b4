"""Wide and deep (Cheng et al., 2016)."""

import keras
import parts
from records import fed

feed_batch = fed("user", "item", "category", "price")
loss = parts.log_loss()


def custom_model():
    given = parts.inputs("user", "item", "category", "price")
    wide = keras.layers.Concatenate()(
        [*parts.vectors(given, 1, "wide_"), parts.column(given["price"])]
    )
    deep = parts.hidden(keras.layers.Concatenate()(parts.vectors(given, 8)), 32, 16)
    return keras.Model(given, parts.logit(keras.layers.Concatenate()([wide, deep])))


def optimizer():
    return keras.optimizers.Adagrad(0.1)


def eval_metrics_fn():
    return {"auc": parts.auc()}
