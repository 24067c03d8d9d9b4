"""What users import computes the same on each backend of Keras as here, on TensorFlow."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from tests.backends.computed import computed

pytestmark = pytest.mark.slow

BACKENDS = ("jax", "torch")


@pytest.fixture(scope="module")
def on_tensorflow():
    return computed()


@pytest.fixture(scope="module", params=BACKENDS)
def elsewhere(request):
    """The output of a process of another backend."""
    pytest.importorskip(request.param)
    done = subprocess.run(
        [sys.executable, "-m", "tests.backends.computed"],
        env={**os.environ, "KERAS_BACKEND": request.param, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_backend_computes_what_tensorflow_does(on_tensorflow, elsewhere):
    assert elsewhere["computed"].keys() == on_tensorflow.keys()
    for name, expected in on_tensorflow.items():
        np.testing.assert_allclose(
            elsewhere["computed"][name], expected, rtol=2e-5, atol=1e-5, err_msg=name
        )


def test_no_backend_loads_tensorflow(elsewhere):
    assert "tensorflow" not in elsewhere["loaded"]


def test_a_model_is_refused_what_only_tensorflow_has(elsewhere):
    of_layers, of_tables = elsewhere["refused"][:2], elsewhere["refused"][2:]
    for name, told in zip(("hash", "scale"), of_layers, strict=True):
        assert f"{name!r} was given a tensor" in told
        assert "call it in feed_batch, on arrays of NumPy" in told
    for name, told in zip(("any", "some"), of_tables, strict=True):
        assert f"embedding {name!r} was given strings" in told
        assert "declare the input as keras.Input(..., dtype='int64')" in told
