"""What a process counts as memory that it uses is what it uses: within a fifth, of each account."""

import subprocess
import sys

import pytest

from tests.base.accounts_of_memory import CASES, FILLED


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("case", CASES)
def test_an_account_of_memory_says_what_its_process_uses(case):
    command = [sys.executable, "-m", "tests.base.accounts_of_memory", case]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    used, said = map(int, done.stdout.split())
    assert said > FILLED / 2
    assert 0.8 < used / said < 1.2
