"""Files, commands and servers of the guide's pages, run as a user does."""

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

from tests.docs.pages import blocks
from tests.waiting import until

ENVIRONMENT = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
"""Commands are those that are installed beside this Python."""

NOT_RUN = ("pip install", "curl")


def save(page, folder, *names, changes=()):
    """Save the blocks of a page that are files of these names, with texts replaced by others."""
    found = {each.file: each.text for each in blocks(page) if each.file}
    for name in names:
        text = found[name]
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        (folder / name).write_text(text)


def commands(page, part):
    """The commands of the only block of shell that contains this part."""
    (found,) = (each for each in blocks(page) if each.language == "sh" and part in each.text)
    return [each for each in found.commands if not any(no in each for no in NOT_RUN)]


def typed(command, folder):
    """Run a command, which must succeed; returns what it prints."""
    done = subprocess.run(
        ["bash", "-c", command], cwd=folder, env=ENVIRONMENT, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def free_port():
    """A port that nobody listens at, and that the kernel gives to nobody who wants any."""
    while True:
        port = random.randrange(20_000, 30_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


@contextlib.contextmanager
def server(command, folder, **environment):
    """A command that runs until it is interrupted."""
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            ["bash", "-c", f"exec {command}"],
            cwd=folder,
            env={**ENVIRONMENT, "HOME": str(folder), **environment},  # where some keep files
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    except BaseException:
        print((folder / "server.log").read_text())
        raise
    finally:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(60)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def post(process, url, body):
    """The answer in JSON, as soon as a server gives one."""
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )

    def ask():
        assert process.poll() is None, "the server has ended"
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return [json.load(answer)]
        except (ConnectionError, urllib.error.URLError):
            return None

    return until(url, ask)[0]
