"""`python -m tests.seed.observed FILE [exit CODE|wait|raise]`: tells what it finds itself to be."""

import contextlib
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import numpy as np


def opened(number):
    """What a file descriptor is of; None for that which lists them."""
    with contextlib.suppress(FileNotFoundError):
        return os.readlink(f"/proc/self/fd/{number}")
    return None


def observe():
    """All that a process may see of itself and that does not differ from run to run."""
    return {
        "argv": sys.argv,
        "command line": Path("/proc/self/cmdline").read_bytes().rstrip(b"\0").decode().split("\0"),
        "environment": dict(os.environ),
        "environment in C": sorted(subprocess.check_output(["env"], text=True).splitlines()),
        "files": sorted(filter(None, map(opened, os.listdir("/proc/self/fd")))),
        "folder": os.getcwd(),
        "leads": [os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid()],
        "limits": [
            resource.getrlimit(getattr(resource, n)) for n in dir(resource) if "RLIMIT_" in n
        ],
        "main": [sys.modules["__main__"].__name__, sys.modules["__main__"].__file__],
        "mask": os.umask(0o77),
        "nice": os.nice(0),
        "path": sys.path,
        "signals": [
            str(signal.getsignal(n)) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        ],
        "standard input": sys.stdin.read(),
        "streams": [os.readlink(f"/proc/self/fd/{n}") for n in (1, 2)],
        "temporary folder": tempfile.gettempdir(),
        "threads": threading.active_count(),
    }


if __name__ == "__main__":
    told = {"pid": os.getpid(), "drawn": [random.random(), float(np.random.random())]}
    path = Path(sys.argv[1])
    path.with_suffix(".new").write_text(json.dumps(told | observe()))
    path.with_suffix(".new").rename(path)
    print("said")
    match sys.argv[2:]:
        case ["exit", code]:
            sys.exit(int(code))
        case ["wait"]:
            threading.Event().wait()
        case ["raise"]:
            raise ValueError("as any program may")
