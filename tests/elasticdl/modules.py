"""Modules in the form that ElasticDL's users write, in pieces put together several ways."""

HEAD = """
import tensorflow as tf

from elasticdl.python.common.constants import Mode
from elasticdl.python.elasticdl.layers.embedding import Embedding
from elasticdl.python.elasticdl.callbacks import LearningRateScheduler, MaxStepsStopping
"""

IMAGES = """
def loss(labels, predictions):
    flat = tf.reshape(labels, [-1])
    return tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(logits=predictions, labels=flat)
    )


def optimizer(lr=0.1):
    return tf.keras.optimizers.SGD(lr)


def feed(dataset, mode, metadata):
    def parse(record):
        description = {"image": tf.io.FixedLenFeature([8, 8], tf.float32)}
        if mode != Mode.PREDICTION:
            description["label"] = tf.io.FixedLenFeature([1], tf.int64)
        example = tf.io.parse_single_example(record, description)
        features = {"image": example["image"] / 16.0}
        if mode == Mode.PREDICTION:
            return features
        return features, tf.cast(example["label"], tf.int32)

    dataset = dataset.map(parse)
    if mode == Mode.TRAINING:
        dataset = dataset.shuffle(buffer_size=64)
    return dataset


def eval_metrics_fn():
    def accuracy(labels, predictions):
        found = tf.argmax(predictions, 1, output_type=tf.int32)
        return tf.equal(found, tf.cast(tf.reshape(labels, [-1]), tf.int32))

    return {"accuracy": accuracy}


def callbacks():
    return [MaxStepsStopping(max_steps=12)]
"""

FUNCTIONAL_IMAGES = """
def custom_model():
    image = tf.keras.Input(shape=(8, 8), name="image")
    x = tf.keras.layers.Reshape((8, 8, 1))(image)
    x = tf.keras.layers.Conv2D(4, 3, activation="relu")(x)
    x = tf.keras.layers.BatchNormalization()(x)
    x = tf.keras.layers.MaxPooling2D(2)(x)
    x = tf.keras.layers.Dropout(0.25)(x)
    return tf.keras.Model({"image": image}, tf.keras.layers.Dense(10)(tf.keras.layers.Flatten()(x)))
"""

SUBCLASSED_IMAGES = """
class CustomModel(tf.keras.Model):
    def __init__(self):
        super().__init__(name="digits")
        self._reshape = tf.keras.layers.Reshape((8, 8, 1))
        self._conv = tf.keras.layers.Conv2D(4, 3, activation="relu")
        self._norm = tf.keras.layers.BatchNormalization()
        self._flat = tf.keras.layers.Flatten()
        self._dense = tf.keras.layers.Dense(10)

    def call(self, inputs, training=False):
        x = self._norm(self._conv(self._reshape(inputs["image"])), training=training)
        return self._dense(self._flat(x))
"""

CLICKS = """
def loss(labels, predictions):
    logits = tf.reshape(predictions["logits"], [-1])
    flat = tf.cast(tf.reshape(labels, [-1]), tf.float32)
    return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=flat, logits=logits))


def optimizer(lr=0.05):
    return tf.keras.optimizers.Adam(lr)


def feed(dataset, mode, metadata):
    def parse(record):
        description = {"feature": tf.io.FixedLenFeature([10], tf.int64)}
        if mode != Mode.PREDICTION:
            description["label"] = tf.io.FixedLenFeature([1], tf.int64)
        example = tf.io.parse_single_example(record, description)
        features = {"feature": example["feature"]}
        return features if mode == Mode.PREDICTION else (features, example["label"])

    return dataset.map(parse)


def eval_metrics_fn():
    def accuracy(labels, predictions):
        found = tf.cast(tf.reshape(predictions, [-1]) > 0.0, tf.int64)
        return tf.equal(found, tf.reshape(labels, [-1]))

    return {"logits": {"accuracy": accuracy}, "probs": {"auc": tf.keras.metrics.AUC()}}


def callbacks():
    def schedule(version):
        return 0.05 if version < 8 else 0.01

    return [LearningRateScheduler(schedule), MaxStepsStopping(max_steps=12)]
"""

FUNCTIONAL_CLICKS = """
def custom_model():
    ids = tf.keras.Input(shape=(10,), dtype="int64", name="feature")
    vectors = Embedding(output_dim=8, mask_zero=True, input_length=10, name="factors")(ids)
    weights = Embedding(output_dim=1, mask_zero=True, input_length=10, name="weights")(ids)
    total = tf.keras.ops.sum(vectors, axis=1)
    squares = tf.keras.ops.sum(vectors * vectors, axis=1)
    pairs = 0.5 * tf.keras.ops.sum(total * total - squares, axis=1, keepdims=True)
    joined = tf.keras.ops.reshape(vectors, (-1, 80))
    deep = tf.keras.layers.Dense(8, activation="relu")(joined)
    logits = tf.keras.ops.sum(weights, axis=1) + pairs + tf.keras.layers.Dense(1)(deep)
    probabilities = tf.keras.layers.Activation("sigmoid")(logits)
    return tf.keras.Model({"feature": ids}, {"logits": logits, "probs": probabilities})
"""

SUBCLASSED_CLICKS = """
class CustomModel(tf.keras.Model):
    def __init__(self):
        super().__init__(name="deepfm")
        self._vectors = Embedding(output_dim=8, mask_zero=True, input_length=10, name="factors")
        self._weights = Embedding(output_dim=1, mask_zero=True, input_length=10, name="weights")
        self._deep = tf.keras.layers.Dense(8, activation="relu")
        self._out = tf.keras.layers.Dense(1)

    def call(self, inputs, training=False):
        vectors = self._vectors(inputs["feature"])
        total = tf.reduce_sum(vectors, axis=1)
        squares = tf.reduce_sum(tf.square(vectors), axis=1)
        pairs = 0.5 * tf.reduce_sum(tf.square(total) - squares, axis=1, keepdims=True)
        deep = self._out(self._deep(tf.reshape(vectors, [-1, 80])))
        logits = tf.reduce_sum(self._weights(inputs["feature"]), axis=1) + pairs + deep
        return {"logits": logits, "probs": tf.sigmoid(logits)}
"""

BACKEND_CLICKS = """
from tensorflow.keras import backend as K


def custom_model():
    inputs = tf.keras.Input(shape=(10,), dtype="int64")
    vectors = Embedding(output_dim=8, mask_zero=True, input_length=10, name="factors")(inputs)
    weights = Embedding(output_dim=1, mask_zero=True, input_length=10, name="weights")(inputs)
    total = K.square(K.sum(vectors, axis=1))
    squares = K.sum(K.square(vectors), axis=1)
    pairs = 0.5 * K.sum(total - squares, axis=1, keepdims=True)
    logits = K.sum(weights, axis=1) + pairs
    probabilities = K.reshape(K.sigmoid(logits), (-1, 1))
    return tf.keras.Model(inputs, {"logits": logits, "probs": probabilities})
"""

BINNED_CLICKS = """
from elasticdl_preprocessing.layers import ConcatenateWithOffset, Discretization, Hashing


def custom_model():
    ids = tf.keras.Input(shape=(10,), dtype="int64", name="feature")
    bins = Discretization(bins=[0, 10**12, 10**12, 2 * 10**13])(ids)
    hashed = Hashing(num_bins=100)(ids)
    fields = ConcatenateWithOffset(offsets=[0, 5], axis=1)([bins, hashed])
    vectors = Embedding(output_dim=8, name="fields")(fields)
    logits = tf.keras.layers.Dense(1)(tf.keras.layers.Flatten()(vectors))
    probabilities = tf.keras.layers.Activation("sigmoid")(logits)
    return tf.keras.Model({"feature": ids}, {"logits": logits, "probs": probabilities})
"""

HASHED_CLICKS = """

def custom_model():
    names = ["first", "second", "third"]
    inputs = {name: tf.keras.Input(shape=(1,), dtype="string", name=name) for name in names}
    joined = dense_features(inputs, dict.fromkeys(names, 64), 16)
    logits = tf.keras.layers.Dense(1)(joined)
    probabilities = tf.keras.layers.Activation("sigmoid")(logits)
    return tf.keras.Model(inputs, {"logits": logits, "probs": probabilities})


numbers_of = feed


def feed(dataset, mode, metadata):
    def named(features):
        text = tf.strings.as_string(features["feature"])
        return {"first": text[:1], "second": text[1:2], "third": text[2:3]}

    if mode == Mode.PREDICTION:
        return numbers_of(dataset, mode, metadata).map(named)
    return numbers_of(dataset, mode, metadata).map(lambda x, label: (named(x), label))
"""

TABLE_CLICKS = """

def feed(dataset, mode, metadata):
    def parse(record):
        record = vector_of(record)
        features = tf.strings.to_number(record[1:], tf.int64)
        label = tf.strings.to_number(record[:1], tf.int64)
        return {"feature": features} if mode == Mode.PREDICTION else ({"feature": features}, label)

    return dataset.map(parse)
"""

MODULES = {
    "functional_images": (HEAD + FUNCTIONAL_IMAGES + IMAGES, "custom_model"),
    "subclassed_images": (HEAD + SUBCLASSED_IMAGES + IMAGES, "CustomModel"),
    "functional_clicks": (HEAD + FUNCTIONAL_CLICKS + CLICKS, "custom_model"),
    "subclassed_clicks": (HEAD + SUBCLASSED_CLICKS + CLICKS, "CustomModel"),
    "backend_clicks": (HEAD + BACKEND_CLICKS + CLICKS, "custom_model"),
    "binned_clicks": (HEAD + BINNED_CLICKS + CLICKS, "custom_model"),
    "hashed_clicks": (HEAD + CLICKS + HASHED_CLICKS, "custom_model"),
    "odps_table": (HEAD + FUNCTIONAL_CLICKS + CLICKS + TABLE_CLICKS, "custom_model"),
}
"""Name of the file -> its text and the model in it."""
