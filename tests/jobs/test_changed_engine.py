"""Whole jobs whose model of Keras JAX or PyTorch computes, and what TensorFlow makes of them."""

import json

import keras
import numpy as np
import pyarrow.csv
import pytest

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
