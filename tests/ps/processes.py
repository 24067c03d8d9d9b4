"""Server processes of a job whose master is the test."""

import os
import subprocess
import sys

from shoal.config.job import JobConfig
from shoal.proto import faults


def write_job(folder, **fields):
    """The configuration of a job that trains, in `folder`, and the folder of its faults."""
    job = JobConfig(
        command="train",
        job_name="test",
        job_dir=str(folder),
        model_zoo=".",
        model_def="none.custom_model",
        training_data="none",
        **fields,
    )
    (folder / "job.json").write_text(job.to_json())
    (folder / "faults").mkdir(exist_ok=True)


def start_server(folder, index, master, incarnation=0):
    """Start ps-`index` of the job in `folder`, which logs beside it; the process.

    master: the test's port.
    """
    command = [sys.executable, "-m", "shoal.ps", "--config", str(folder / "job.json")]
    command += ["--index", str(index), "--incarnation", str(incarnation)]
    command += ["--master", f"127.0.0.1:{master}"]
    named = {
        faults.VARIABLE: str(folder / "faults"),
        faults.PROCESS_VARIABLE: f"ps-{index}",
    }
    with log_of(folder, index).open("w") as log:
        return subprocess.Popen(command, env=os.environ | named, stdout=log, stderr=log)


def log_of(folder, index):
    """The file of what a server has written."""
    return folder / f"ps-{index}.log"
