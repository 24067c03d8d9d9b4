"""A SavedModel as the exporter writes it: vectors are inputs, `ids` is a signature."""

import numpy as np
import tensorflow as tf

from shoal.checkpoints.folders import text
from shoal.checkpoints.formats import manifests
from shoal.deltas import chain
from shoal.deltas.schema import MODEL_FORMAT
from tests.deltas.history import History


class Module(tf.Module):
    """score = w[0] * sum of the row of a[user] + w[1] * sum of the rows of b[tags]; two outputs."""

    def __init__(self):
        super().__init__()
        self.dense = [tf.Variable([0.0, 0.0], name="another_name")]

    def ids(self, user, tags_values, tags_row_splits, word):
        return {"a_ids": user, "b_ids": tags_values}

    def serve(self, user, tags_values, tags_row_splits, word, a_vectors, b_vectors):
        sums = tf.reduce_sum(tf.RaggedTensor.from_row_splits(b_vectors, tags_row_splits), [1, 2])
        score = self.dense[0][0] * tf.reduce_sum(a_vectors, 1) + self.dense[0][1] * sums
        return {"score": score, "word": tf.strings.join([word, "!"])}


def save(folder):
    specs = {
        "user": tf.TensorSpec([None], tf.int64, "user"),
        "tags_values": tf.TensorSpec([None], tf.int64, "tags_values"),
        "tags_row_splits": tf.TensorSpec([None], tf.int64, "tags_row_splits"),
        "word": tf.TensorSpec([None], tf.string, "word"),
    }
    vectors = {
        "a_vectors": tf.TensorSpec([None, 2], tf.float32, "a_vectors"),
        "b_vectors": tf.TensorSpec([None, 3], tf.float32, "b_vectors"),
    }
    module = Module()

    def of(function, given):
        return tf.function(function, autograph=False).get_concrete_function(**given)

    signatures = {
        "ids": of(module.ids, specs),
        "serving_default": of(module.serve, specs | vectors),
    }
    tf.saved_model.save(module, str(folder), signatures=signatures)


class Examples(tf.Module):
    """The models of TensorFlow Serving's pages: half_plus_two, and one of several inputs."""

    def __init__(self):
        super().__init__()
        self.dense = [tf.Variable([0.0, 0.0])]

    def half_plus_two(self, x):
        return {"y": 0.5 * x + 2.0}

    def several(self, tag, signal, sensor):
        return {"tag": tag, "sum": tf.reduce_sum(signal, 1) + tf.reduce_sum(sensor, [1, 2])}


def save_example(name, inputs):
    """A function like `save`, of the example of this name. inputs: dtype and shape by name."""

    def saved(folder):
        module = Examples()
        specs = {
            each: tf.TensorSpec([None, *shape], dtype, each)
            for each, (dtype, shape) in inputs.items()
        }
        call = tf.function(getattr(module, name), autograph=False).get_concrete_function(**specs)
        tf.saved_model.save(module, str(folder), signatures={"serving_default": call})

    return saved


class Predicting(History):
    """A history whose model predicts.

    vocabulary: of table b; 0: it takes any id. saved: writes its SavedModel. fed: that takes
    vectors.
    """

    def __init__(self, folder, seed=0, vocabulary=0, saved=save, fed=True, **options):
        super().__init__(folder, seed, **options)
        self.spec.tables[1].vocabulary = vocabulary
        name = chain.model_name("0123456789abcdef")
        storage = self.root.child(name)
        place = storage.local_path("saved_model")
        saved(place)
        files = [each for each in place.rglob("*") if each.is_file()]
        content = {
            "format": MODEL_FORMAT,
            "job": "0123456789abcdef",
            "engine": "tensorflow",
            "created": 1e9,
            "spec": text(self.spec),
            "tables": [
                {
                    "name": each.name,
                    "dim": each.dim,
                    "default": [0.0] * each.dim,
                    "vocabulary": each.vocabulary,
                }
                | ({"ids": f"{each.name}_ids", "vectors": f"{each.name}_vectors"} if fed else {})
                for each in self.spec.tables
            ],
            "saved_model": "saved_model",
            "variables": ["w"],
            "files": [
                manifests.describe(storage, str(each.relative_to(place.parent))) for each in files
            ],
        }
        described = manifests.write(storage, chain.MODEL_MANIFEST, content)
        self.model = {"folder": name, "manifest": described}

    def score(self, user, tags):
        """What the model says."""

        def row(table, dim, each):
            return np.frombuffer(self.rows[table].get(each, bytes(4 * dim)), np.float32)

        sums = sum(float(row(1, 3, each).sum()) for each in tags)
        return float(self.dense[0]) * float(row(0, 2, user).sum()) + float(self.dense[1]) * sums
