"""A parameter server without a master, for the benchmarks beside this file."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shoal.config.job import JobConfig


@contextmanager
def lone_server(config: JobConfig) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A parameter server in a process of its own, and its address."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "job.json").write_text(config.to_json())
        command = [sys.executable, "-m", "shoal.ps", "--config", f"{folder}/job.json"]
        process = subprocess.Popen(
            [*command, "--index", "0"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().strip()
        finally:
            process.terminate()
            process.wait()
