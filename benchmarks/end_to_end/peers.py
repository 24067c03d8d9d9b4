"""The systems that shoal is measured against, each in a process that trains on request.

    python benchmarks/end_to_end/peers.py ceiling|keras FOLDER IDS

Reads seconds from standard input, a line each; trains for about so long and answers with
a line of JSON: {"samples", "seconds", "cpu_seconds"}. The data are in memory, as tensors
of whole minibatches: reading costs the peers nothing.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import model
import network
import pyarrow.parquet as pq
import tensorflow as tf
from lone_server import lone_server

from shoal.config.job import JobConfig
from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.channels import rpc, serving
from shoal.proto.memory import keep_freed_memory
from shoal.proto.values.routing import Routing
from shoal.worker.code.module import load_module
from shoal.worker.input.batch import Batch
from shoal.worker.model.model import ServedModel
from shoal.worker.reports.progress import Progress
from shoal.worker.servers.group import ServerGroup

BATCH = 4096
BATCHES = 64
"""Minibatches in memory, trained again and again."""

Train = Callable[[float], int]


def minibatches(path: Path) -> list[tuple[dict[str, Any], Any]]:
    """The first minibatches of the file, as the model takes them."""
    table = pq.read_table(path).slice(0, BATCH * BATCHES)
    columns = {name: table[name].to_numpy() for name in table.column_names}
    made = []
    for first in range(0, table.num_rows - BATCH + 1, BATCH):
        part = {name: tf.constant(each[first : first + BATCH]) for name, each in columns.items()}
        made.append(model.feed_batch(part, "training", None))
    return made


def ceiling(path: Path, ids: int) -> Train:  # noqa: ARG001
    """Shoal's own compiled step on rows that were pulled before: no servers, no reading."""
    config = JobConfig(model_def="model.custom_model", training_data="none", batch_size=BATCH)
    keep_freed_memory()
    with lone_server(config) as (_, address):
        prepared, served = _prepared(config, address, minibatches(path)[:16])

    def train(seconds: float) -> int:
        end = time.perf_counter() + seconds
        done = 0
        while time.perf_counter() < end:
            served.compute(prepared[done % len(prepared)], 1)
            done += 1
        return done * BATCH

    return train


def _prepared(config: JobConfig, address: str, batches: list[Any]) -> tuple[list[Any], ServedModel]:
    """Batches with their rows, from the server at `address`."""

    def registered(_: Any) -> pb.RegisterWorkerReply:
        return pb.RegisterWorkerReply(routing=Routing.even(1).to_message(), servers=[address])

    master, port = serving.serve({methods.REGISTER_WORKER: registered}, "127.0.0.1:0", 1)
    progress = Progress()
    group = ServerGroup(rpc.Connection(f"127.0.0.1:{port}"), 0, 0, progress.stopped)
    module = load_module(str(Path(__file__).parent), "model.custom_model")
    features, labels = batches[0]
    spec = {
        name: tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype)
        for name, tensor in features.items()
    }
    labels_spec = tf.TensorSpec([None], labels.dtype)
    served = ServedModel(config, module, group, spec, labels_spec, 0, progress)
    served.register()
    prepared = [served.prepare(Batch(*pair, BATCH, 0, 0)) for pair in batches]
    group.close()
    master.stop(None)
    return prepared, served


def plain_keras(path: Path, ids: int) -> Train:
    """`fit` of a compiled Keras model with Embedding layers of `ids` rows and Adagrad."""
    uniform = keras.initializers.RandomUniform(-0.01, 0.01)
    built = network.deepfm(
        keras,
        keras.layers.Embedding(ids, 1, embeddings_initializer="zeros"),
        keras.layers.Embedding(ids, network.DIM, embeddings_initializer=uniform),
    )
    # XLA, which Keras would choose by itself, makes dense gradients of whole tables.
    built.compile(keras.optimizers.Adagrad(network.RATE), network.loss, jit_compile=False)
    pairs = minibatches(path)
    stacked = tf.nest.map_structure(lambda *each: tf.stack(each), *pairs)
    data = tf.data.Dataset.from_tensor_slices(stacked).repeat().prefetch(2)
    seen = [0]

    class Until(keras.callbacks.Callback):
        """Ends fit when its time is over."""

        end = 0.0

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
            seen[0] += 1
            if time.perf_counter() > self.end:
                self.model.stop_training = True

    def train(seconds: float) -> int:
        until = Until()
        seen[0] = 0
        until.end = time.perf_counter() + seconds
        # stop_training is looked at between epochs: an epoch is a few steps.
        built.fit(data, steps_per_epoch=16, epochs=10**6, verbose=0, callbacks=[until])
        return seen[0] * BATCH

    return train


def main() -> None:
    kind, folder, ids = sys.argv[1:]
    make = {"ceiling": ceiling, "keras": plain_keras}[kind]
    train = make(Path(folder, "train.parquet"), int(ids))
    train(0.1)  # traced and warm
    print("ready", flush=True)
    for line in sys.stdin:
        cpu, began = time.process_time(), time.perf_counter()
        samples = train(float(line))
        seconds = time.perf_counter() - began
        answer = {"samples": samples, "seconds": seconds}
        print(json.dumps(answer | {"cpu_seconds": time.process_time() - cpu}), flush=True)


if __name__ == "__main__":
    main()
