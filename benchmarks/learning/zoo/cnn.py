"""A small convolutional network with batch normalization on digits of 28x28, with plain SGD."""

import keras
import tensorflow as tf

loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def feed_batch(columns, mode, metadata):
    pixels = columns["pixels"]
    pixels = pixels if isinstance(pixels, tf.Tensor) else pixels.flat_values
    image = tf.image.resize(tf.cast(tf.reshape(pixels, [-1, 8, 8, 1]), tf.float32) / 16.0, [28, 28])
    return {"image": image} if mode == "prediction" else ({"image": image}, columns["label"])


def custom_model():
    image = keras.Input([28, 28, 1], name="image")
    hidden = keras.layers.Conv2D(32, 3, activation="relu")(image)
    hidden = keras.layers.Conv2D(64, 3, activation="relu")(hidden)
    hidden = keras.layers.BatchNormalization()(hidden)
    hidden = keras.layers.MaxPooling2D(2)(hidden)
    hidden = keras.layers.Dropout(0.25)(hidden)
    return keras.Model({"image": image}, keras.layers.Dense(10)(keras.layers.Flatten()(hidden)))


def optimizer():
    return keras.optimizers.SGD(0.01)


def eval_metrics_fn():
    return {"accuracy": keras.metrics.SparseCategoricalAccuracy(name="accuracy")}
