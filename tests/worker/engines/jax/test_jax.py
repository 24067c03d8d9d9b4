"""The engine of JAX: in a process of its own, as Keras has one backend in each process.

own/ has what that process checks besides keras_ops/shared; its steps are held against TensorFlow's.
"""

from pathlib import Path

import pytest

from tests.worker.engines.keras_ops.models import SEEDS
from tests.worker.engines.keras_ops.processes import assert_as_tensorflow, checked

pytest.importorskip("jax")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def steps(tmp_path_factory):
    return checked("jax", Path(__file__).with_name("own"), tmp_path_factory.mktemp("jax"))


def test_all_that_is_checked_in_its_process(steps):
    assert set(steps) == set(SEEDS)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_step_is_that_of_tensorflow(steps, seed):
    assert_as_tensorflow(steps[seed], seed)
