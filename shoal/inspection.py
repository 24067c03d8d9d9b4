"""`shoal check`: what is found before a job, by a process that has TensorFlow.

Owns starting that process. What it looks at is worker/check.py's.
"""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import tempfile
from pathlib import Path

import click

from shoal.checks import check_inputs
from shoal.config import JobConfig


def run_check(config: JobConfig) -> int:
    """Print the report on a module and its data; returns the exit code.

    Raises UserError for what is found without TensorFlow.
    """
    config = config.resolved()
    for doubt in check_inputs(config):
        click.echo(f"warning: {doubt}", err=True)
    with tempfile.TemporaryDirectory(prefix="shoal-check-") as folder:
        path = Path(folder, "job.json")
        # Indexes of the data go there too: a check leaves nothing behind.
        path.write_text(dataclasses.replace(config, job_dir=folder).to_json())
        command = [sys.executable, "-m", "shoal.worker.check", "--config", str(path)]
        return subprocess.run(command, check=False).returncode
