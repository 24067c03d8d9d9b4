"""Whole jobs whose model JAX computes, and what TensorFlow makes of their checkpoints."""

import importlib.util
import json

import pytest

from shoal.config.job import JobConfig
from tests.jobs.running import RunningJob, resume, run

pytestmark = [
    pytest.mark.job,
    pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="JAX is not installed"),
]


def test_a_job_goes_on_with_another_engine(tmp_path, clicks):
    """JAX begins it, TensorFlow ends it; both find the same in its last checkpoint."""
    fields = {
        "model_def": "by_jax.small_at_gates.custom_model",
        "training_data": clicks,
        "batch_size": 8,
        "num_minibatches_per_task": 1,
        "checkpoint_steps": 2,
    }
    environment = {"GATES": "step-9"}
    with RunningJob("train", tmp_path, "small", environment=environment, **fields) as job:
        job.at_gate("step-9")
        job.wait_taken()
        assert JobConfig.load(job.folder.config).engine == "jax"
        job.kill_whole()
        done = resume(job.folder, engine="tensorflow")
        assert done.returncode == 0, done.stderr
        assert JobConfig.load(job.folder.config).engine == "tensorflow"
    result = json.loads(job.folder.result.read_text())
    software, ledger = result["software"], result["ledger"]
    assert (software["engine"], "jax" in software) == ("tensorflow", False)
    assert ledger["trained_once"] == ledger["total"]
    found = {
        engine: run(
            *("evaluate", tmp_path, engine),
            model_def=fields["model_def"],
            validation_data=clicks,
            restore_from=tmp_path / "small" / "checkpoints",
            engine=engine,
        ).succeeded()
        for engine in ("jax", "tensorflow")
    }
    first, second = (each.result["metrics"] for each in found.values())
    assert first == pytest.approx(second, rel=1e-4)
    assert found["jax"].result["software"]["jax"]
