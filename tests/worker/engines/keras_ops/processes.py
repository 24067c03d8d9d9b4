"""Checks of an engine of Keras's models, in a process of its own; its steps as they are here."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

from tests.worker.engines.keras_ops.models import results

ROOT = Path(__file__).parents[4]
SHARED = Path(__file__).with_name("shared")

PLUGIN = """
from shoal.worker.engines import check_backend, choose_engine, import_framework

choose_engine("ENGINE")
import_framework()
import keras

check_backend()
"""
"""Of the other process: what a worker does before it loads a module."""


def checked(engine, own, folder):
    """The steps of the random models on an engine, all of whose checks have passed.

    own: the folder of those that are the engine's alone.
    """
    (folder / "as_worker.py").write_text(PLUGIN.replace("ENGINE", engine))
    path = folder / "results"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "as_worker", "-p", "no:cacheprovider"]
    command += ["-o", "python_files=checks_*.py", "-c", os.devnull, "--rootdir", str(ROOT)]
    command += ["--confcutdir", str(own), "--import-mode", "importlib", str(SHARED), str(own)]
    path_of = os.pathsep.join([str(folder), str(ROOT)])
    more = {"PYTHONPATH": path_of, "SHOAL_TEST_RESULTS": str(path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **more},
        cwd=folder,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    return pickle.loads(path.read_bytes())


def assert_as_tensorflow(ours, seed):
    """Loss, gradients, statistics and metrics of a random model are those here, on TensorFlow."""
    theirs = results(seed, tf.constant, lambda each: tf.TensorSpec(each.shape, each.dtype))
    assert ours["names"] == theirs["names"]
    for mine, other in zip(ours["steps"], theirs["steps"], strict=True):
        np.testing.assert_allclose(mine[0], other[0], rtol=1e-6)
        _assert_close(mine[1], other[1])
        # Differences of statistics, which are about 1, each rounded to float32.
        np.testing.assert_allclose(mine[2], other[2], rtol=0, atol=5e-7)
        assert mine[3].keys() == other[3].keys()
        for table, (ids, gradient) in mine[3].items():
            np.testing.assert_array_equal(ids, other[3][table][0])
            _assert_close(gradient, other[3][table][1])
    assert ours["metrics"].keys() == theirs["metrics"].keys()
    for name, value in ours["metrics"].items():
        np.testing.assert_allclose(value, theirs["metrics"][name], rtol=1e-5)
    _assert_close(ours["predictions"], theirs["predictions"])


def _assert_close(ours, theirs):
    """Equal within 1e-5 of the largest number."""
    assert ours.shape == theirs.shape
    scale = max(np.abs(theirs).max(initial=0), 1e-3)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5 * scale)
