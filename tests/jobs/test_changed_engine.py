"""Whole jobs whose model of Keras JAX or PyTorch computes, and what TensorFlow makes of them."""

import json

import keras
import numpy as np
import pyarrow.csv
import pytest
import tensorflow as tf

from shoal.config.job import JobConfig
from tests.jobs.running import RunningJob, resume, run

pytestmark = pytest.mark.job

MODELS = {"jax": "by_jax.small_at_gates", "torch": "by_torch.keras_at_gates"}
"""The modules of the same model, by the engine that their imports ask for."""


@pytest.mark.parametrize("begins", MODELS)
def test_a_job_goes_on_with_another_engine(tmp_path, clicks, begins):
    """One engine begins it, TensorFlow ends it; both find the same in its last checkpoint."""
    pytest.importorskip(begins)
    fields = {
        "model_def": f"{MODELS[begins]}.custom_model",
        "training_data": clicks,
        "batch_size": 8,
        "num_minibatches_per_task": 1,
        "checkpoint_steps": 2,
    }
    environment = {"GATES": "step-9"}
    with RunningJob("train", tmp_path, "small", environment=environment, **fields) as job:
        job.at_gate("step-9")
        job.wait_taken()
        assert JobConfig.load(job.folder.config).engine == begins
        job.kill_whole()
        done = resume(job.folder, engine="tensorflow")
        assert done.returncode == 0, done.stderr
        assert JobConfig.load(job.folder.config).engine == "tensorflow"
    result = json.loads(job.folder.result.read_text())
    software, ledger = result["software"], result["ledger"]
    assert (software["engine"], begins in software) == ("tensorflow", False)
    assert ledger["trained_once"] == ledger["total"]
    found = {
        engine: run(
            *("evaluate", tmp_path, engine),
            model_def=fields["model_def"],
            validation_data=clicks,
            restore_from=tmp_path / "small" / "checkpoints",
            engine=engine,
        ).succeeded()
        for engine in (begins, "tensorflow")
    }
    first, second = (each.result["metrics"] for each in found.values())
    assert first == pytest.approx(second, rel=1e-4)
    assert found[begins].result["software"][begins]


def test_keras_on_pytorch_exports_what_tensorflow_loads(tmp_path, clicks):
    pytest.importorskip("torch")
    done = run(
        *("train", tmp_path, "small"),
        model_def="by_torch.keras_at_gates.custom_model",
        training_data=clicks,
        validation_data=clicks,
        output=tmp_path / "out",
        export="auto",
    ).succeeded()
    assert done.result["software"]["engine"] == "torch"
    loaded = keras.models.load_model(tmp_path / "out" / "model.keras")
    columns = pyarrow.csv.read_csv(clicks)
    features = {name: columns[name].to_numpy() for name in ("user", "item")}
    predicted = np.asarray(loaded(features)).reshape(-1)
    losses = keras.losses.binary_crossentropy(
        columns["label"].to_numpy()[:, None].astype("f"), predicted[:, None]
    )
    assert float(np.mean(losses)) == pytest.approx(done.result["metrics"]["loss"], rel=1e-4)


def test_tensorflow_saves_the_model_that_jax_has_trained(tmp_path, clicks):
    run(
        *("train", tmp_path, "small"),
        model_def="by_jax.small.custom_model",
        training_data=clicks,
        batch_size=8,
        export="keras,savedmodel",
        output=tmp_path / "out",
    ).succeeded()
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert (manifest["keras"], manifest["saved_model"]) == ("model.keras", "saved_model")
    ids = tf.range(40, dtype=tf.int64)
    features = {"user": ids % 7, "item": ids % 5 + tf.constant(2**40, tf.int64) * (ids % 2)}
    module = tf.saved_model.load(tmp_path / "out" / "saved_model")
    saved = module.serve(features)
    loaded = keras.models.load_model(tmp_path / "out" / "model.keras", safe_mode=False)
    np.testing.assert_allclose(saved, loaded(features), atol=1e-6)
    assert np.ptp(saved) > 0
    assert not list((tmp_path / "out").glob("shoal-*"))


OF_JAX = """
import jax.numpy as jnp
import keras
from shoal.layers import Embedding

class Own(keras.layers.Layer):
    def call(self, inputs):
        return jnp.tanh(inputs)

def custom_model():
    ids = keras.Input([], dtype="int64", name="user")
    return keras.Model({"user": ids}, Own(name="own")(Embedding(1, name="users")(ids)))

def feed_batch(columns, mode, metadata):
    features = {"user": columns["user"]}
    return features if mode == "prediction" else (features, columns["label"])

loss = keras.losses.MeanSquaredError()

def optimizer():
    return keras.optimizers.SGD(0.1)
"""


def test_a_model_that_jax_alone_computes_has_no_saved_model(tmp_path, clicks):
    (tmp_path / "alone.py").write_text(OF_JAX)
    ended = run(
        *("train", tmp_path, "alone"),
        model_def="alone.custom_model",
        model_zoo=tmp_path,
        training_data=clicks,
        export="savedmodel",
        output=tmp_path / "out",
    )
    assert ended.code == 1
    assert "alone.py cannot be exported. No SavedModel: a process of TensorFlow" in ended.err
    assert "which says: custom_model() of alone.py raised TypeError: Could not" in ended.err
    assert "    return jnp.tanh(inputs)\n" in ended.err
    assert ended.result["ledger"]["trained_once"] == 0
