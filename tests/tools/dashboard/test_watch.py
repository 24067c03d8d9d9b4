"""What the page makes of the process that reads the journal for it."""

import subprocess
import sys

from shoal.base.disk.job_folder import JobFolder
from shoal.client.ask.local_jobs import LocalJob
from shoal.tools.dashboard.watch import Watch
from tests.waiting import until

TELLS = """
import sys
sys.stderr.write("a warning of many\\n" * 20_000)  # more than a pipe holds
print('{"t": 2.0, "ledger": [10, 0, 0, 90], "version": 3}\\n{}', flush=True)
sys.exit("the last reason\\n")
"""


class Told(LocalJob):
    """A job whose journal is read by a process that says much beside it."""

    def teller(self):
        return subprocess.Popen(
            [sys.executable, "-c", TELLS],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


def test_a_reader_of_the_journal_that_warns_much_goes_on(tmp_path):
    with Watch(Told(JobFolder(tmp_path))) as watch:
        until("why it ended", lambda: watch.facts()["untold"] == "the last reason")
        assert watch.course()["ledger"][0] == [2.0]
