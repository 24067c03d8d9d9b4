"""TensorFlow Recommenders Addons: dynamic embeddings and Keras's `fit` in one process.

dynamic_embedding.keras.layers.Embedding on the CPU's cuckoo hash tables, with the legacy Adagrad
inside DynamicEmbeddingOptimizer, by its documentation. The ids of a minibatch are tensors of whole
minibatches; sixteen steps are one execution.
"""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")

import common


def main() -> None:
    given = common.options()
    import network
    import numpy as np
    import tensorflow as tf
    import tf_keras
    from tensorflow_recommenders_addons import dynamic_embedding as de

    progress = common.Progress(given)
    progress.roles(worker=os.getpid())
    # That of tf_keras gives each new minibatch's rows the same values.
    uniform = tf.compat.v1.random_uniform_initializer(-common.INITIAL, common.INITIAL)

    def table(dim, initializer, name):
        return de.keras.layers.Embedding(
            dim, initializer=initializer, init_capacity=given.ids, name=name
        )

    model = network.deepfm(
        tf_keras,
        table(1, tf_keras.initializers.Zeros(), "linear"),
        table(common.DIM, uniform, "factors"),
    )
    optimizer = de.DynamicEmbeddingOptimizer(
        tf_keras.optimizers.legacy.Adagrad(
            common.RATE, initial_accumulator_value=common.ACCUMULATOR
        )
    )
    model.compile(optimizer, network.loss, jit_compile=False, steps_per_execution=16)
    ids, dense, labels = common.Data(given.data).stacked(given.batch)
    data = tf.data.Dataset.from_tensor_slices(({"ids": ids, "dense": dense}, labels)).prefetch(2)

    class Count(tf_keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):  # noqa: ARG002
            progress.at((batch + 1) * given.batch)

    model.fit(data, epochs=1, verbose=0, callbacks=[Count()])
    scores, kept = [], []
    infer = tf.function(lambda features: model(features, training=False))
    for ids, dense, labels in common.Data(given.data, "validation").batches(given.batch):
        scores.append(infer({"ids": ids, "dense": dense}).numpy())
        kept.append(labels)
    auc = common.area_under_curve(np.concatenate(kept), np.concatenate(scores))
    progress.tell(auc, "tensorflow", "tensorflow-recommenders-addons", "tf-keras")


if __name__ == "__main__":
    main()
