"""The process of a worker, as far as it can be seen without a job."""

import os
import subprocess
import sys

import pytest

from shoal.config.job import JobConfig

PATIENCE = 120.0
SIGNALLED_ON_IMPORT = """
import os, signal, sys
os.kill(os.getpid(), signal.{number})
# A thread acts on the signal, at its own time.
frame = sys._getframe()
while "progress" not in frame.f_locals:
    frame = frame.f_back
assert frame.f_locals["progress"].stopped.wait({patience})
"""


@pytest.mark.parametrize("number", ["SIGTERM", "SIGINT"])
def test_a_worker_told_to_end_while_tensorflow_is_imported_leaves_in_order(tmp_path, number):
    (tmp_path / "tensorflow.py").write_text(
        SIGNALLED_ON_IMPORT.format(number=number, patience=PATIENCE)
    )
    config = tmp_path / "job.json"
    config.write_text(JobConfig(model_def="a.b", training_data="c").to_json())
    ended = subprocess.run(
        # Nobody listens there: a worker that goes on would fail to join the job.
        [
            sys.executable,
            "-m",
            "shoal.worker",
            "--config",
            str(config),
            "--index",
            "0",
            "--master",
            "127.0.0.1:1",
        ],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert ended.returncode == 0, ended.stderr
    assert "worker-0" in ended.stderr
    assert ended.stderr.rstrip().endswith("ended")
