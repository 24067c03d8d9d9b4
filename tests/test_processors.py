"""The tests that may hang on the processor, as on older ones. `make test-processors` runs more."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processors import LEVELS, switches

FILES = [
    "data/test_analysis.py",
    "data/test_extrapolation.py",
    "master/job/test_autoscaling.py",
    "master/job/test_diagnosis.py",
    "master/job/test_memory_forecast.py",
    "master/job/test_placement.py",
    "master/job/test_server_scaling.py",
    "master/job/test_stragglers.py",
    "master/job/test_worker_search.py",
    "master/work/test_evaluation.py",
    "master/work/test_rules.py",
    "native/test_gradients.py",
]


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
def test_an_older_processor_passes(level):
    here = Path(__file__).parent
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q"),
            *("-m", "not slow", "--hypothesis-profile", "fast"),
            *(str(here / each) for each in FILES),
        ],
        env=os.environ | switches(level),
        cwd=here.parent,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
