"""The use of this machine's cores, as the master tells the job."""

import os
import subprocess
import sys

from shoal.master.machine import processor_time


def test_the_cores_of_this_process_are_told_and_their_time_goes_on():
    before = processor_time()
    assert before.cores == len(os.sched_getaffinity(0))
    assert 0 < before.busy < before.total
    while (now := processor_time()).busy == before.busy:
        sum(range(100_000))
    assert now.total > before.total


def test_cores_of_others_do_not_count():
    code = """
import os
from shoal.master.machine import processor_time
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
print(processor_time().cores)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"
