"""Jobs whose model brings weights: kills and --resume before the first checkpoint, evaluation."""

import json
import shutil

import keras
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.jobs.running import MODELS, ZOO, RunningJob, audited, resume

pytestmark = pytest.mark.job

MODULE = """
from pathlib import Path

import gates
import keras
import tensorflow as tf


def feed_batch(columns, mode, metadata):
    features = {"user": columns["user"], "place": columns["place"]}
    return features if mode == "prediction" else (features, columns["clicked"][:, None])


def custom_model():
    model = keras.models.load_model(Path(__file__).with_name("pretrained.keras"))
    model.get_layer("places").trainable = False
    return model


def loss(labels, predictions):
    def passed(labels):
        gates.pass_step()
        return labels

    labels = tf.ensure_shape(tf.numpy_function(passed, [labels], tf.float32), labels.shape)
    return keras.losses.binary_crossentropy(labels, predictions)


def optimizer():
    return keras.optimizers.SGD(0.0)


def eval_metrics_fn():
    return {"crossentropy": keras.metrics.BinaryCrossentropy()}
"""


def pretrained(path):
    inputs = {name: keras.Input([], dtype="int64", name=name) for name in ("user", "place")}
    rows = [
        keras.layers.Embedding(1000, 4, "normal", name=f"{name}s")(each)
        for name, each in inputs.items()
    ]
    out = keras.layers.Dense(1, activation="sigmoid")(keras.ops.concatenate(rows, axis=1))
    model = keras.Model(inputs, out)
    model.save(path)
    return model


def test_servers_and_jobs_that_die_before_the_first_checkpoint_begin_with_them_again(tmp_path):
    (tmp_path / "model.py").write_text(MODULE)
    shutil.copy(ZOO / "gates.py", tmp_path)
    twin = pretrained(tmp_path / "pretrained.keras")
    draw = np.random.default_rng(0)
    columns = {name: draw.integers(0, 1000, 600) for name in ("user", "place")}
    clicked = draw.integers(0, 2, 600).astype("f4")
    pq.write_table(pa.table(columns | {"clicked": clicked}), tmp_path / "data.parquet")
    fields = {
        "model_zoo": tmp_path,
        "model_def": "model.custom_model",
        "training_data": tmp_path / "data.parquet",
        "validation_data": tmp_path / "data.parquet",
        "embedding_threshold": 1000,
        "batch_size": 50,
        "servers": "2",
        "checkpoint_steps": 0,
        "checkpoint_seconds": 10_000,
        "output": tmp_path / "out",
        **MODELS,
    }
    gates = {"GATES": "step-3 step-6"}
    with RunningJob("train", tmp_path, "brought", environment=gates, **fields) as job:
        job.at_gate("step-3")
        job.kill("ps", 0)
        job.open("step-3")
        job.at_gate("step-6")
        job.kill_whole()
        done = resume(job.folder)
        assert done.returncode == 0, done.stdout + done.stderr
        report = audited(job.folder)
    assert report["records"]["once"] == report["records"]["total"] == 600
    result = json.loads((tmp_path / "brought" / "result.json").read_text())
    predicted = np.asarray(twin.predict(columns, verbose=0))
    wanted = float(keras.losses.binary_crossentropy(clicked[:, None], predicted).numpy().mean())
    assert result["metrics"]["crossentropy"] == pytest.approx(wanted, abs=1e-5)
    exported = keras.models.load_model(tmp_path / "out" / "model.keras")
    for name in ("users", "places"):
        np.testing.assert_array_equal(
            exported.get_layer(name).embeddings, twin.get_layer(name).embeddings
        )
