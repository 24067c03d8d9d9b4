"""A forked process: it becomes what an executed one would be, and runs its module."""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import runpy
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from shoal.seed.kinds import READ_AGAIN


@dataclass(frozen=True)
class Request:
    """A process to be forked.

    arguments: Python's, -m MODULE first. folder: its working directory. streams: the file
    descriptors of its output and errors.
    """

    arguments: list[str]
    environment: dict[str, str]
    folder: str
    streams: tuple[int, ...]

    @classmethod
    def read(cls, told: int, *streams: int) -> Self:
        """Read what pool.py has written to the file `told`, which is closed."""
        with os.fdopen(told, "rb") as file:
            file.seek(0)
            return cls(**json.load(file), streams=streams)

    def close(self) -> None:
        """Close the streams."""
        for stream in self.streams:
            os.close(stream)

    def become(self) -> None:
        """Take on session, streams, folder, environment and command line. Raises OSError."""
        os.setsid()
        for number, stream in enumerate(self.streams, 1):
            os.dup2(stream, number)
        self.close()
        os.chdir(self.folder)
        os.environ.clear()
        os.environ.update(self.environment)
        take_command_line([sys.executable, *self.arguments])

    def run(self) -> None:
        """Run the module as `python -m` does."""
        for name in READ_AGAIN:
            if name in sys.modules:
                sys.modules[name].read_environment()
        tempfile.tempdir = None  # as an import may have asked for the seed's
        if "numpy.random" in sys.modules:
            sys.modules["numpy.random"].seed()  # or all forked processes would draw the same
        if not sys.flags.safe_path:
            sys.path[0] = self.folder
        importlib.invalidate_caches()
        module = self.arguments[1]
        for name in (module, f"{module}.__main__"):
            # Imported for what it imports: now it is run as the program.
            if name in sys.modules and not hasattr(sys.modules[name], "__path__"):
                del sys.modules[name]
        sys.argv[1:] = self.arguments[2:]
        runpy.run_module(module, run_name="__main__", alter_sys=True)


def take_command_line(arguments: Sequence[str]) -> None:
    """Make the kernel tell these arguments as the command line of this process.

    Raises OSError if the command line with which it was executed has not the room.
    """
    text = b"".join(os.fsencode(each) + b"\0" for each in arguments)
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin, end = int(fields[45]), int(fields[46])  # arg_start and arg_end, see proc(5)
    if not begin or len(text) >= end - begin:
        raise OSError(f"a command line of {len(text)} bytes has no room in that of the seed")
    ctypes.memset(begin, 0, end - begin)
    ctypes.memmove(begin, text, len(text))
