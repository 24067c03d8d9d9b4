"""The tests that may hang on the processor, as on older ones. `make test-processors` runs more."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processors import LEVELS, switches

FILES = [
    "data/samples/test_analysis.py",
    "data/samples/test_extrapolation.py",
    "master/job/scaling/test_autoscaling.py",
    "master/job/view/test_diagnosis.py",
    "master/job/scaling/test_memory_forecast.py",
    "master/job/moves/test_placement.py",
    "master/job/scaling/test_server_scaling.py",
    "master/job/scaling/test_stragglers.py",
    "master/job/scaling/test_worker_search.py",
    "master/work/evaluation/test_evaluation.py",
    "master/work/evaluation/test_rules.py",
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
