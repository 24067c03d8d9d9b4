"""What the light processes import, and that they stay light."""

import re
import subprocess
import sys

import pytest

pytestmark = pytest.mark.job

HEAVY = {"tensorflow", "keras", "shoal.worker", "shoal.data"}


@pytest.mark.parametrize("module", ["shoal", "shoal.ps", "shoal.master"])
def test_help_imports_no_tensorflow(module):
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", module, "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "Usage: " in done.stdout
    imported = set(re.findall(r"^import time:[^|]*\|[^|]*\| +(\S+)$", done.stderr, re.MULTILINE))
    assert {"click", "shoal.errors"} <= imported
    packages = imported | {name.split(".")[0] for name in imported}
    assert not packages & HEAVY
