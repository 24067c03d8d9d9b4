"""As users of shoal's forerunners write them, in the years of TF 2.x."""

import keras
import tensorflow as tf
from keras import layers, ops

from .features import IMAGE, JOBS, PERSON, ROWS, SEXES, person_inputs, sigmoid


class Lookup(layers.Layer):
    """The place of a word in a list, as code of the TF 2.x years has it: no **kwargs."""

    def __init__(self, words):
        super().__init__()
        self.words = words
        self.table = self.made()

    def made(self):
        places = tf.range(len(self.words), dtype=tf.int64)
        initializer = tf.lookup.KeyValueTensorInitializer(self.words, places)
        return tf.lookup.StaticHashTable(initializer, 0)

    def call(self, inputs):
        return self.table.lookup(inputs)


class LookupInCall(Lookup):
    """The same, with a lookup table that nothing holds."""

    def call(self, inputs):
        return self.made().lookup(inputs)


class Buckets(layers.Layer):
    """The bucket of a number."""

    def __init__(self, boundaries):
        super().__init__()
        self.boundaries = boundaries

    def call(self, inputs):
        return tf.reduce_sum(tf.cast(inputs[:, None] > self.boundaries, tf.int64), axis=1)


def census_wide_and_deep(lookup):
    """Groups of ids with an offset each, a wide and a deep embedding of every group."""

    def build():
        inputs = person_inputs()
        groups = [lookup(JOBS)(inputs["job"]), lookup(SEXES)(inputs["sex"]) + ROWS]
        groups.append(Buckets([-1.0, 0.0, 1.0])(inputs["age"]) + ROWS + 2)
        together = ops.stack(groups, axis=1)
        wide = ops.sum(layers.Embedding(ROWS + 6, 1, name="wide")(together), axis=1)
        deep = ops.sum(layers.Embedding(ROWS + 6, 8, name="deep")(together), axis=1)
        for units in (6, 4):
            deep = layers.Dense(units, activation="relu")(deep)
        return keras.Model(inputs, ops.sigmoid(wide + layers.Dense(1)(deep)))

    return build


@keras.saving.register_keras_serializable("corpus")
class DenseFeatures(layers.Layer):
    """Columns of a dict in one vector. Its layers get weights when they are called first."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.job = layers.StringLookup(vocabulary=JOBS, mask_token=None, num_oov_indices=0)
        self.parts = [layers.Dense(2), layers.Dense(2)]

    def call(self, inputs):
        job = ops.cast(self.job(inputs["job"]), "float32")[:, None] / ROWS
        rows = [self.parts[0](job), self.parts[1](inputs["age"][:, None]), inputs["hours"][:, None]]
        return ops.concatenate(rows, axis=1)


def census_sequential():
    return keras.Sequential(
        [DenseFeatures(), layers.Dense(4, activation="relu"), layers.Dense(1, "sigmoid")]
    )


def census_functional():
    """The layers of `census_sequential`."""
    inputs = person_inputs()
    return keras.Model(inputs, sigmoid(layers.Dense(4, activation="relu")(DenseFeatures()(inputs))))


class TableFeatures(layers.Layer):
    """Columns of a dict in one vector, a table among them."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.job = layers.StringLookup(vocabulary=JOBS, mask_token=None, num_oov_indices=0)
        self.rows = layers.Embedding(ROWS, 4, name="jobs")

    def call(self, inputs):
        parts = [self.rows(self.job(inputs["job"])), inputs["age"][:, None]]
        return ops.concatenate(parts, axis=1)


def table_features():
    return keras.Sequential([TableFeatures(), layers.Dense(1, "sigmoid")])


def image_layers():
    return [
        layers.Reshape((8, 8, 1)),
        layers.Conv2D(4, 3, activation="relu"),
        layers.BatchNormalization(),
        layers.MaxPooling2D(2),
        layers.Dropout(0.25),
        layers.Flatten(),
        layers.Dense(1, activation="sigmoid"),
    ]


def image_functional():
    x = image = keras.Input((8, 8), name="image")
    for layer in image_layers():
        x = layer(x)
    return keras.Model({"image": image}, x)


class ImageModel(keras.Model):
    """No table, and no argument."""

    def __init__(self):
        super().__init__(name="images")
        self.steps = image_layers()

    def call(self, inputs, training=False):
        x = inputs["image"]
        for step in self.steps:
            options = {"training": training} if isinstance(step, layers.Dropout) else {}
            x = step(x, **options)
        return x


MODELS = {
    "census wide and deep": (census_wide_and_deep(Lookup), PERSON),
    "census wide and deep, lookups in call": (census_wide_and_deep(LookupInCall), PERSON),
    "census sequential": (census_sequential, PERSON),
    "census functional": (census_functional, PERSON),
    "census, a layer with a table": (table_features, PERSON),
    "images": (image_functional, IMAGE),
    "images, subclassed": (ImageModel, IMAGE),
}
