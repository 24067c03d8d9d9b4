"""TensorFlow's ParameterServerStrategy: a coordinator, one worker and one parameter server.

As its guide has it, in benchmarks/end_to_end/parameter_server.py: a custom loop whose functions do
several steps each, variables on the server, the legacy optimizer, which applies gradients of rows
sparsely. The worker reads tensors of whole minibatches. Needs tf_keras beside TensorFlow.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import common

STEPS_A_CALL = 8


def started(script: str, cluster: dict[str, list[str]], job: str) -> subprocess.Popen[str]:
    """A server of the cluster, which is ready; it ends with this process."""
    process = subprocess.Popen(
        [sys.executable, script, "serve", json.dumps(cluster), job, "0"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    process.stdout.readline()
    return process


def main() -> None:
    given = common.options()
    import network
    import parameter_server
    import tensorflow as tf
    import tf_keras

    progress = common.Progress(given)
    cluster = parameter_server.cluster_of(1, 1)
    processes = {
        role: started(parameter_server.__file__, cluster, job)
        for role, job in (("worker", "worker"), ("server", "ps"))
    }
    progress.roles(**{role: process.pid for role, process in processes.items()})
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(cluster), rpc_layer="grpc", task_type="chief", task_id=0
    )
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        uniform = tf_keras.initializers.RandomUniform(-common.INITIAL, common.INITIAL)
        model = network.deepfm(
            tf_keras,
            tf_keras.layers.Embedding(given.ids, 1, embeddings_initializer="zeros"),
            tf_keras.layers.Embedding(given.ids, common.DIM, embeddings_initializer=uniform),
        )
        optimizer = tf_keras.optimizers.legacy.Adagrad(
            common.RATE, initial_accumulator_value=common.ACCUMULATOR
        )
        model({"ids": tf.zeros([1, 26], tf.int64), "dense": tf.zeros([1, 13])})
    batches = len(common.Data(given.data)) // given.batch

    def dataset(_):
        # Read where the data are trained: on the worker, each minibatch at once.
        def stacked(name, kind, width):
            header = 128  # of an .npy file of version 1
            size = given.batch * width * kind.size
            file = tf.data.FixedLengthRecordDataset(
                str((given.data / f"train-{name}.npy").resolve()),
                size,
                header_bytes=header,
                footer_bytes=(len(common.Data(given.data)) % given.batch) * width * kind.size,
            )
            shape = [given.batch, width] if width > 1 else [given.batch]
            return file.map(lambda raw: tf.reshape(tf.io.decode_raw(raw, kind), shape))

        parts = (stacked("ids", tf.int64, 26), stacked("dense", tf.float32, 13))
        labels = stacked("labels", tf.float32, 1)
        zipped = tf.data.Dataset.zip((*parts, labels))
        return zipped.map(lambda a, b, c: ({"ids": a, "dense": b}, c)).prefetch(4)

    @tf.function
    def datasets():
        return strategy.distribute_datasets_from_function(dataset)

    source = iter(coordinator.create_per_worker_dataset(datasets))

    def replica(batch):
        features, labels = batch
        with tf.GradientTape() as tape:
            loss = network.loss(labels, model(features, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    @tf.function
    def steps(iterator):
        for _ in tf.range(STEPS_A_CALL):
            strategy.run(replica, args=(next(iterator),))

    done = 0
    while done < batches:
        # Two calls at once: one computes while the next is on its way.
        calls = min(2, (batches - done) // STEPS_A_CALL)
        if not calls:
            break
        for _ in range(calls):
            coordinator.schedule(steps, args=(source,))
        coordinator.join()
        done += calls * STEPS_A_CALL
        progress.at(done * given.batch)
    scores, kept = [], []
    infer = tf.function(lambda features: model(features, training=False))
    for ids, dense, labels in common.Data(given.data, "validation").batches(given.batch):
        scores.append(infer({"ids": ids, "dense": dense}).numpy())
        kept.append(labels)
    import numpy as np

    auc = common.area_under_curve(np.concatenate(kept), np.concatenate(scores))
    progress.tell(auc, "tensorflow_cpu", "tf_keras")
    for process in processes.values():
        process.kill()


if __name__ == "__main__":
    main()
