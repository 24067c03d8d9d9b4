"""The processes that load a user's module for a command, and so have its framework.

Owns their command and the folder in which they work. What they do is worker/'s.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from shoal.client.run.engine import with_engine
from shoal.config.job import JobConfig


@contextmanager
def model_process(module: str, config: JobConfig) -> Iterator[tuple[list[str], Path]]:
    """Python's arguments for `shoal.worker.MODULE`, and its folder, which is gone afterwards.

    Indexes of the data go into that folder too, so nothing else is left behind. Raises UserError if
    the user's module asks for two engines.
    """
    config = with_engine(config)
    with tempfile.TemporaryDirectory(prefix="shoal-") as work:
        folder = Path(work)
        path = folder / "job.json"
        path.write_text(replace(config, job_dir=work).to_json())
        yield ["-m", f"shoal.worker.inspect.{module}", "--config", str(path)], folder


def run(arguments: Sequence[str], *, captured: bool = False) -> subprocess.CompletedProcess[str]:
    """Run `python ARGUMENTS` to its end; captured: return its output and errors.

    Raises UserError if SHOAL_SEED names a folder that cannot be used.
    """
    from shoal.seed import starting  # late: few commands need it

    return starting.run(arguments, captured=captured)
