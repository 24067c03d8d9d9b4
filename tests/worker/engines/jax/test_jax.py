"""The engine of JAX: in a process of its own, as Keras has one backend in each process.

own/ has what that process checks; here its steps are held against TensorFlow's.
"""

import importlib.util
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.worker.engines.jax.models import SEEDS, results

ROOT = Path(__file__).parents[4]
OWN = Path(__file__).with_name("own")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="JAX is not installed"),
]

PLUGIN = """
from shoal.worker.engines import check_backend, choose_engine, import_framework

choose_engine("jax")
import_framework()
import keras

check_backend()
"""
"""Of the other process: what a worker does before it loads a module."""


@pytest.fixture(scope="module")
def of_jax(tmp_path_factory):
    """The results of the process, all of whose checks have passed."""
    folder = tmp_path_factory.mktemp("jax")
    (folder / "as_worker.py").write_text(PLUGIN)
    path = folder / "results"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "as_worker", "-p", "no:cacheprovider"]
    command += ["-o", "python_files=checks_*.py", "-c", os.devnull, "--rootdir", str(ROOT)]
    command += ["--confcutdir", str(OWN), "--import-mode", "importlib", str(OWN)]
    path_of = os.pathsep.join([str(folder), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": path_of, "SHOAL_TEST_RESULTS": str(path)}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment, cwd=folder
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    return pickle.loads(path.read_bytes())


def test_all_that_is_checked_on_jax(of_jax):
    assert set(of_jax) == set(SEEDS)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_step_is_that_of_tensorflow(of_jax, seed):
    """Loss, gradients, statistics and metrics of a random model, for the same batches."""
    ours = of_jax[seed]
    theirs = results(seed, tf.constant, lambda each: tf.TensorSpec(each.shape, each.dtype))
    assert ours["names"] == theirs["names"]
    for mine, other in zip(ours["steps"], theirs["steps"], strict=True):
        np.testing.assert_allclose(mine[0], other[0], rtol=1e-6)
        assert_close(mine[1], other[1])
        # Differences of statistics, which are about 1, each rounded to float32.
        np.testing.assert_allclose(mine[2], other[2], rtol=0, atol=5e-7)
        assert mine[3].keys() == other[3].keys()
        for table, (ids, gradient) in mine[3].items():
            np.testing.assert_array_equal(ids, other[3][table][0])
            assert_close(gradient, other[3][table][1])
    assert ours["metrics"].keys() == theirs["metrics"].keys()
    for name, value in ours["metrics"].items():
        np.testing.assert_allclose(value, theirs["metrics"][name], rtol=1e-5)
    assert_close(ours["predictions"], theirs["predictions"])


def assert_close(ours, theirs):
    """Equal within 1e-5 of the largest number."""
    assert ours.shape == theirs.shape
    scale = max(np.abs(theirs).max(initial=0), 1e-3)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5 * scale)
