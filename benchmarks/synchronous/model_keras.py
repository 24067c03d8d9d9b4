"""The network of model.py in Keras."""

import keras

SIDE, CHANNELS, CLASSES = 32, 3, 10


def custom_model(units=96):
    image = keras.Input([SIDE, SIDE, CHANNELS], name="image")
    hidden = image
    for filters in (16, 32, 64):
        convolution = keras.layers.Conv2D(filters, 3, padding="same", activation="relu")
        hidden = keras.layers.MaxPooling2D()(convolution(hidden))
    hidden = keras.layers.Dense(units, activation="relu")(keras.layers.Flatten()(hidden))
    return keras.Model({"image": image}, keras.layers.Dense(CLASSES)(hidden))


def feed_batch(columns, mode, metadata):
    del metadata
    pixels = keras.ops.cast(columns["pixels"], "float32")
    features = {"image": keras.ops.reshape(pixels, (-1, SIDE, SIDE, CHANNELS)) / 255}
    return features if mode == "prediction" else (features, columns["label"])


loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def optimizer():
    return keras.optimizers.SGD(0.05, momentum=0.9)
