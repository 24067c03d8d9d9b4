"""TensorFlow's ParameterServerStrategy as a peer, in processes as its guide has them.

    python benchmarks/end_to_end/parameter_server.py FOLDER IDS WORKERS SERVERS

A chief with the coordinator (this process), WORKERS workers and SERVERS parameter servers,
each a process of this machine. Needs tf_keras on the path, since Keras 3 does not support the
strategy. Speaks as peers.py does.

As the guide recommends: a custom loop with ClusterCoordinator; variables sharded over the
servers by MinSizePartitioner; several steps in each scheduled function, so that dispatching
them costs little; data per worker, prefetched; legacy optimizer, which applies the gradients
of gathered rows sparsely.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import network
import numpy as np
import pyarrow.parquet as pq
import tensorflow as tf

BATCH = 4096
BATCHES = 64
STEPS_A_CALL = 8
TICKS = os.sysconf("SC_CLK_TCK")


def free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def cluster_of(workers: int, servers: int) -> dict[str, list[str]]:
    """Addresses by job."""
    ports = [f"127.0.0.1:{port}" for port in free_ports(workers + servers + 1)]
    return {"worker": ports[:workers], "ps": ports[workers:-1], "chief": ports[-1:]}


def serve(cluster: dict[str, list[str]], job: str, index: int) -> None:
    """A worker or a parameter server: until the chief has ended, however it did."""

    def watch() -> None:
        sys.stdin.read()
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()
    server = tf.distribute.Server(
        tf.train.ClusterSpec(cluster), job_name=job, task_index=index, protocol="grpc"
    )
    print("ready", flush=True)
    server.join()


def columns_of(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ids, dense numbers and labels of the first minibatches of the file."""
    table = pq.read_table(path).slice(0, BATCH * BATCHES)
    ids = np.stack([table[f"c{i + 1}"].to_numpy() for i in range(26)], axis=1)
    dense = np.stack([table[f"i{i + 1}"].to_numpy() for i in range(13)], axis=1)
    return ids, np.log1p(dense).astype(np.float32), table["label"].to_numpy()


class Coordinated:
    """A model trained by the cluster's workers."""

    def __init__(self, cluster: dict[str, list[str]], path: Path, ids: int) -> None:
        import tf_keras

        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec(cluster), rpc_layer="grpc", task_type="chief", task_id=0
        )
        partitioner = tf.distribute.experimental.partitioners.MinSizePartitioner(
            min_shard_bytes=256 << 10, max_shards=len(cluster["ps"])
        )
        strategy = tf.distribute.ParameterServerStrategy(resolver, partitioner)
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        with strategy.scope():
            uniform = tf_keras.initializers.RandomUniform(-0.01, 0.01)
            built = network.deepfm(
                tf_keras,
                tf_keras.layers.Embedding(ids, 1, embeddings_initializer="zeros"),
                tf_keras.layers.Embedding(ids, network.DIM, embeddings_initializer=uniform),
            )
            optimizer = tf_keras.optimizers.legacy.Adagrad(network.RATE)
            built({"ids": tf.zeros([1, 26], tf.int64), "dense": tf.zeros([1, 13])})
        columns = columns_of(path)

        def dataset(_: Any) -> Any:
            ids_, dense, labels = columns
            given = ({"ids": ids_, "dense": dense}, labels)
            return (
                tf.data.Dataset.from_tensor_slices(given).batch(BATCH).cache().repeat().prefetch(2)
            )

        @tf.function
        def datasets() -> Any:
            return strategy.distribute_datasets_from_function(dataset)

        self._batches = iter(self._coordinator.create_per_worker_dataset(datasets))

        def replica(given: Any) -> None:
            features, labels = given
            with tf.GradientTape() as tape:
                loss = network.loss(labels, built(features, training=True))
            gradients = tape.gradient(loss, built.trainable_variables)
            optimizer.apply_gradients(zip(gradients, built.trainable_variables, strict=True))

        @tf.function
        def steps(batches: Any) -> None:
            for _ in tf.range(STEPS_A_CALL):
                strategy.run(replica, args=(next(batches),))

        self._steps = steps
        self._workers = len(cluster["worker"])

    def train(self, seconds: float) -> int:
        """Train for about so long; returns the samples."""
        end = time.perf_counter() + seconds
        done = 0
        while time.perf_counter() < end:
            # Two calls a worker: one computes while the next is on its way.
            for _ in range(2 * self._workers):
                self._coordinator.schedule(self._steps, args=(self._batches,))
                done += STEPS_A_CALL
            self._coordinator.join()
        return done * BATCH


def cpu_seconds(processes: list[subprocess.Popen[str]]) -> float:
    """User and system time so far of this process and others."""
    ticks = 0
    for each in processes:
        fields = Path(f"/proc/{each.pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / TICKS + time.process_time()


def main() -> None:
    if sys.argv[1] == "serve":
        serve(json.loads(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
        return
    folder, ids, workers, servers = sys.argv[1:]
    cluster = cluster_of(int(workers), int(servers))
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, "serve", json.dumps(cluster), job, str(index)],
            stdin=subprocess.PIPE,  # closed when this process ends
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for job in ("worker", "ps")
        for index in range(len(cluster[job]))
    ]
    try:
        for each in processes:
            assert each.stdout is not None
            each.stdout.readline()
        trained = Coordinated(cluster, Path(folder, "train.parquet"), int(ids))
        trained.train(0.1)  # traced and warm
        print("ready", flush=True)
        for line in sys.stdin:
            cpu, began = cpu_seconds(processes), time.perf_counter()
            samples = trained.train(float(line))
            seconds = time.perf_counter() - began
            answer = {"samples": samples, "seconds": seconds}
            print(json.dumps(answer | {"cpu_seconds": cpu_seconds(processes) - cpu}), flush=True)
    finally:
        for each in processes:
            each.kill()


if __name__ == "__main__":
    main()
