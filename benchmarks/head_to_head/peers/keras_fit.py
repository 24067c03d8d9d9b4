"""Keras's `fit` on TensorFlow with Embedding layers of all ids, in one process.

The data are tensors of whole minibatches; sixteen steps are one execution, as Keras's
documentation advises for small ones.
"""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import common


def main() -> None:
    given = common.options()
    import keras
    import network
    import tensorflow as tf

    progress = common.Progress(given)
    progress.roles(worker=os.getpid())
    uniform = keras.initializers.RandomUniform(-common.INITIAL, common.INITIAL)
    model = network.deepfm(
        keras,
        keras.layers.Embedding(given.ids, 1, embeddings_initializer="zeros"),
        keras.layers.Embedding(given.ids, common.DIM, embeddings_initializer=uniform),
    )
    # XLA, which Keras would choose by itself, makes dense gradients of whole tables.
    steps = 16
    model.compile(
        keras.optimizers.Adagrad(common.RATE, common.ACCUMULATOR, epsilon=common.EPSILON),
        network.loss,
        jit_compile=False,
        steps_per_execution=steps,
    )
    ids, dense, labels = common.Data(given.data).stacked(given.batch)
    data = tf.data.Dataset.from_tensor_slices(({"ids": ids, "dense": dense}, labels)).prefetch(2)
    batches = len(labels)

    class Count(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):  # noqa: ARG002
            progress.at(min(batch + 1, batches) * given.batch)

    model.fit(data, epochs=1, verbose=0, callbacks=[Count()])
    held = common.Data(given.data, "validation")
    scores = model.predict(
        {"ids": held.ids, "dense": held.dense}, batch_size=given.batch, verbose=0
    )
    auc = common.area_under_curve(held.labels, scores.ravel())
    progress.tell(auc, "keras", "tensorflow_cpu")


if __name__ == "__main__":
    main()
