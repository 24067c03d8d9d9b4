"""Of rows with texts and numbers, as in Keras's examples of structured data."""

import keras
import tensorflow as tf
from keras import layers, ops

from .features import JOBS, PERSON, ROWS, SEXES, encoded, hidden, numbers, person_inputs, sigmoid


def wide_and_deep():
    inputs = person_inputs()
    wide = [
        layers.StringLookup(vocabulary=words, num_oov_indices=0, output_mode="one_hot")(each)
        for each, words in ((inputs["job"], JOBS), (inputs["sex"], SEXES))
    ]
    deep = hidden(hidden(layers.concatenate(list(encoded(inputs)))))
    wide = layers.BatchNormalization()(layers.concatenate(wide))
    return keras.Model(inputs, sigmoid(layers.concatenate([wide, deep])))


def deep_and_cross():
    inputs = person_inputs()
    first = cross = layers.concatenate(list(encoded(inputs)))
    for _ in range(2):
        cross = first * layers.Dense(cross.shape[-1])(cross) + cross
    return keras.Model(inputs, sigmoid(layers.concatenate([cross, hidden(first)])))


def tab_transformer():
    """Columns attend to each other; an index tells which one a vector is of."""
    inputs = person_inputs()
    job, sex, age, hours = encoded(inputs, dim=8)
    columns = ops.stack([job, sex], axis=1)
    columns = columns + layers.Embedding(2, 8, name="column")(ops.arange(0, 2, 1))
    for _ in range(2):
        attended = layers.MultiHeadAttention(num_heads=2, key_dim=8, dropout=0.1)(columns, columns)
        x = layers.LayerNormalization()(layers.Add()([attended, columns]))
        forward = keras.Sequential([layers.Dense(8, activation=keras.activations.gelu)])
        columns = layers.LayerNormalization()(layers.Add()([forward(x), x]))
    rest = layers.LayerNormalization()(layers.concatenate([age, hours]))
    joined = layers.concatenate([layers.Flatten()(columns), rest])
    mixed = keras.Sequential([layers.BatchNormalization(), layers.Dense(6, activation="selu")])
    return keras.Model(inputs, sigmoid(mixed(joined)))


class GatedLinearUnit(layers.Layer):
    """As examples write layers: no argument but its own."""

    def __init__(self, units):
        super().__init__()
        self.linear = layers.Dense(units)
        self.gate = layers.Dense(units, activation="sigmoid")

    def call(self, inputs):
        return self.linear(inputs) * self.gate(inputs)


class GatedResidual(layers.Layer):
    def __init__(self, units, dropout):
        super().__init__()
        self.elu = layers.Dense(units, activation="elu")
        self.dropout = layers.Dropout(dropout)
        self.unit = GatedLinearUnit(units)
        self.norm = layers.LayerNormalization()
        self.project = layers.Dense(units)

    def call(self, inputs):
        return self.norm(self.project(inputs) + self.unit(self.dropout(self.elu(inputs))))


def gated_residuals():
    inputs = person_inputs()
    parts = [GatedResidual(4, 0.1)(each) for each in encoded(inputs)]
    weights = layers.Dense(len(parts), activation="softmax")(layers.concatenate(parts))
    chosen_parts = ops.squeeze(ops.matmul(weights[:, None, :], ops.stack(parts, axis=1)), axis=1)
    return keras.Model(inputs, sigmoid(chosen_parts))


def feature_space():
    space = keras.utils.FeatureSpace(
        features={
            "job": keras.utils.FeatureSpace.string_categorical(num_oov_indices=0),
            "sex": keras.utils.FeatureSpace.string_categorical(num_oov_indices=0),
            "age": keras.utils.FeatureSpace.float_normalized(),
            "hours": keras.utils.FeatureSpace.float_discretized(num_bins=3),
        },
        crosses=[keras.utils.FeatureSpace.cross(("job", "sex"), crossing_dim=8)],
        output_mode="concat",
    )
    whole = {"job": tf.constant(JOBS), "sex": tf.constant(SEXES * (ROWS // 2))}
    whole |= {"age": numbers(ROWS), "hours": numbers(ROWS)}
    space.adapt(tf.data.Dataset.from_tensor_slices(whole))
    return keras.Model(dict(space.get_inputs()), sigmoid(hidden(space.get_encoded_features())))


MODELS = {
    "wide and deep": (wide_and_deep, PERSON),
    "deep and cross": (deep_and_cross, PERSON),
    "TabTransformer": (tab_transformer, PERSON),
    "gated residuals": (gated_residuals, PERSON),
    "FeatureSpace": (feature_space, {name: each[:, None] for name, each in PERSON.items()}),
}
