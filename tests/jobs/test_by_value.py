"""A job whose model and data are those of a notebook's cell."""

import json
import os
import subprocess
import sys

import pytest

from shoal.client.found.processes import job_processes

pytestmark = pytest.mark.job

AS_IN_A_CELL = """
import linecache, sys
text = open(sys.argv[1]).read()
linecache.cache["<cell 1>"] = (len(text), None, text.splitlines(True), "<cell 1>")
exec(compile(text, "<cell 1>", "exec"), globals())
"""
"""Runs a text that is in no file of its functions, which then are of the module __main__."""

CELL = """
import json
import keras
import tensorflow as tf
import shoal
from shoal.layers import Embedding

SHIFT = 1000

class Product(keras.layers.Layer):
    def call(self, pair):
        return keras.ops.sigmoid(keras.ops.sum(pair[0] * pair[1], axis=-1))

def build():
    inputs = {name: keras.Input([], dtype="int64", name=name) for name in ("user", "item")}
    vectors = [Embedding(4, name=f"{name}s")(each) for name, each in inputs.items()]
    return keras.Model(inputs, Product()(vectors))

def squared(labels, predictions):
    return (labels - predictions) ** 2

def feed(dataset, mode, metadata):
    def prepare(record):
        # Of a tensor: TensorFlow reads the text of this function.
        if record["user"] > 5:
            item = record["item"] + SHIFT
        else:
            item = record["item"]
        features = {"user": record["user"], "item": item}
        return features if mode == "prediction" else (features, record["label"])

    return dataset.map(prepare)

ids = tf.range(200, dtype=tf.int64)
data = tf.data.Dataset.from_tensor_slices(
    ({"user": ids % 10, "item": ids % 7}, tf.cast(ids % 2, tf.float32))
)
result = shoal.train(
    model=build,
    loss=squared,
    optimizer=lambda: keras.optimizers.Adam(0.01),
    feed=feed,
    class_weight={1: 2.0},
    metrics={"off": squared, "error": keras.metrics.MeanSquaredError()},
    training_data=data.batch(32),
    validation_data=data,
    batch_size=20,
)
print("told:", json.dumps([result.state, result.metrics, result.ledger, str(result.job_dir)]))
table = shoal.checkpoints.saved.Export(result.output)
print("ids:", json.dumps(sorted(int(i) for ids, _ in table.rows("items", 4) for i in ids)))
"""


def test_a_notebook_s_functions_and_data_are_trained(tmp_path):
    (tmp_path / "cell.txt").write_text(f"import shoal.checkpoints.saved\n{CELL}")
    done = subprocess.run(
        [sys.executable, "-c", AS_IN_A_CELL, "cell.txt"],
        cwd=tmp_path,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = dict(line.split(": ", 1) for line in done.stdout.splitlines()[-2:])
    state, metrics, ledger, job_dir = json.loads(lines["told"])
    assert state == "succeeded"
    assert set(metrics) == {"loss", "off", "error"}
    assert metrics["off"] == pytest.approx(metrics["error"], rel=1e-5)
    assert ledger["trained_once"] == ledger["total"] == 200
    assert job_dir == str(tmp_path / "shoal-jobs" / "model")
    # Those of users above 5 are shifted by a global of the cell.
    items = json.loads(lines["ids"])
    assert {item for item in items if item < 1000} == set(range(7))
    assert {item - 1000 for item in items if item >= 1000} == set(range(7))
    assert job_processes(tmp_path / "shoal-jobs" / "model" / "job.json") == []
    assert [path.name for path in (tmp_path / "shoal-jobs").iterdir()] == ["model"]
