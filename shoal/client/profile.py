"""`shoal profile`: where one process of a job spends its time, as a flame graph.

By py-spy where it is installed and may look at the process, which must be of this machine; else by
the process itself, which looks at its own threads over the job's calls.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from shoal.base.tracebacks import is_library
from shoal.base.wholefile import write_text
from shoal.client.flame import Call, flame_graph
from shoal.client.stacks import STACKS_SECONDS
from shoal.errors import UserError
from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError
from shoal.proto.rpc import Connection

PY_SPY = "py-spy"
RATE = 100
"""Looks of py-spy a second."""

SPY_SECONDS = 60.0
"""For py-spy to begin and to write what it has seen, on a busy machine."""

MOST_SECONDS = 600.0

_FRAME = re.compile(r"(?P<function>.*) \((?P<file>[^()]*?)(?::(?P<line>\d+))?\)$")
_THREAD = re.compile(r"thread \((?:0x)?[0-9A-Fa-f]+\)(?:: (?P<name>.*))?$")

Stacks = list[tuple[tuple[Call, ...], int]]


@dataclass(frozen=True)
class Profile:
    """stacks: the calls, the outermost first, and how often they were seen. how: by what."""

    stacks: Stacks
    how: str


def profile_of(master: Connection, role: str, index: int, seconds: float) -> Profile:
    """Have a process look at its own threads. Raises UserError if it cannot; CallError."""
    request = pb.ProfileJobRequest(role=role, index=index, seconds=seconds)
    try:
        told = master.call(methods.PROFILE_JOB, request, deadline=seconds + STACKS_SECONDS)
    except WireError as error:
        if error.kind != pb.BAD_REQUEST:
            raise
        raise UserError(error.message) from error
    if told.problem:
        raise UserError(f"{told.process} did not tell its stacks: {told.problem}")
    stacks = [
        ((Call(each.names[0], "thread"), *map(_call, each.frames)), each.threads)
        for each in told.stacks
    ]
    return Profile(stacks, f"{told.samples:,} looks of the process at its own threads")


def _call(frame: pb.StackFrame) -> Call:
    kind = "own" if frame.own else "shoal" if frame.where.startswith("shoal.") else "library"
    where = Path(frame.where).name if frame.own else frame.where
    return Call(f"{frame.function} ({where})", kind)


def spied(process: int, seconds: float) -> Profile | str:
    """Have py-spy look at a process of this machine; why it could not, in a line, if not."""
    command = shutil.which(PY_SPY)
    if command is None:
        return f"{PY_SPY} is not installed"
    with tempfile.TemporaryDirectory(prefix="shoal-") as folder:
        path = Path(folder) / "raw"
        line = [command, "record", "--pid", str(process), "--duration", f"{max(1, round(seconds))}"]
        line += ["--rate", str(RATE), "--threads", "--full-filenames"]
        line += ["--format", "raw", "--output", str(path)]
        try:
            done = subprocess.run(
                line,
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
                timeout=seconds + SPY_SECONDS,
            )
        except subprocess.TimeoutExpired:
            return f"{PY_SPY} has not ended {SPY_SECONDS:g} s after its time"
        if done.returncode or not path.is_file():
            said = (done.stderr.strip() or done.stdout.strip()).splitlines()
            return f"{PY_SPY} may not look at process {process}: {said[0] if said else ''}"
        said = path.read_text(errors="replace").splitlines()
        return Profile(list(raw_stacks(said)), f"{PY_SPY}, {RATE} looks a second")


def raw_stacks(lines: Iterable[str]) -> Iterator[tuple[tuple[Call, ...], int]]:
    """The stacks in py-spy's raw format: `thread (7): main;function (file:line);... count`."""
    for line in lines:
        calls, _, count = line.rpartition(" ")
        if count.isdigit():
            yield tuple(_spied_call(each) for each in calls.split(";")), int(count)


def _spied_call(text: str) -> Call:
    if (thread := _THREAD.match(text)) is not None:
        return Call(thread["name"] or "thread", "thread")
    if (frame := _FRAME.match(text)) is None:
        return Call(text, "library")
    file = frame["file"]
    # Modules that come with Python have no file, and a name without a folder.
    if not file.startswith("/"):
        kind = "library"
    elif is_library(file):
        kind = "library" if "site-packages" in file or "/lib/python" in file else "shoal"
    else:
        kind = "own"
    return Call(f"{frame['function']} ({Path(file).name})", kind)


def write_graph(path: Path, title: str, profile: Profile) -> int:
    """Write a flame graph; returns how many stacks were seen. Raises UserError if it cannot."""
    count = sum(seen for _, seen in profile.stacks)
    note = f"{count:,} stacks of threads that did not wait; {profile.how}"
    try:
        write_text(path, flame_graph(title, profile.stacks, note))
    except OSError as error:
        raise UserError(f"--output: {path} cannot be written: {error.strerror}") from error
    return count
