"""The stacks of this process's threads, as a message of bounded size.

Threads that stand at the same place are told once, with their number. Taking the stacks waits for
nobody and needs no privilege: Python keeps the frames of its own threads. Threads that have never
run Python, such as TensorFlow's own, are not among them.
"""

from __future__ import annotations

import linecache
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from types import FrameType

from shoal.base.modules.tracebacks import is_library
from shoal.proto import shoal_pb2 as pb

SHOWN_PLACES = 100
SHOWN_FRAMES = 60
SHOWN_NAMES = 4
SHOWN_CODE = 120

MAIN_THREAD = "MainThread"

_BEGINNINGS = frozenset({"threading", "runpy"})
"""Modules of the outermost calls of each thread, which say nothing."""

_BETWEEN = frozenset({"click.core"})
"""Modules whose calls say nothing anywhere: the command line's, of which there are many."""

Stack = tuple[FrameType, ...]
Place = tuple[tuple[str, int, str], ...]


def thread_frames() -> Iterator[tuple[str, FrameType]]:
    """(name, innermost frame) of all threads but the caller's."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        if ident != threading.get_ident():
            yield names.get(ident, f"thread {ident}"), frame


def process_stacks(process: str, incarnation: int = 0, question: int = 0) -> pb.ProcessStacks:
    """The stacks of all threads but the caller's: those in the user's code first.

    process: its name, such as worker-0. question: as of pb.ProcessStacks.
    """
    standing: defaultdict[Place, list[str]] = defaultdict(list)
    stacks: dict[Place, Stack] = {}
    for name, frame in thread_frames():
        stack = _stack_of(frame)
        # By their values: a thread goes on while it is looked at, and its frames change.
        place = tuple(
            (each.f_code.co_filename, each.f_lineno or 0, each.f_code.co_name) for each in stack
        )
        standing[place].append(name)
        stacks[place] = stack
    found = [
        _message(names, place, stacks[place])
        for place, names in sorted(standing.items(), key=lambda each: _order(*each))
    ]
    return pb.ProcessStacks(
        process=process,
        incarnation=incarnation,
        threads=sum(map(len, standing.values())),
        stacks=found[:SHOWN_PLACES],
        question=question,
    )


def _order(place: Place, names: list[str]) -> tuple[bool, bool, str]:
    own = any(not is_library(file) for file, _, _ in place)
    return not own, MAIN_THREAD not in names, min(names)


def _stack_of(frame: FrameType | None) -> Stack:
    """The frames of a thread, the outermost first, without what begins each thread."""
    frames = []
    while frame is not None:
        if _module_of(frame) not in _BETWEEN:
            frames.append(frame)
        frame = frame.f_back
    while len(frames) > 1 and _module_of(frames[-1]) in _BEGINNINGS:
        frames.pop()
    return tuple(reversed(frames))


def _module_of(frame: FrameType) -> str:
    """The name of the module that a frame is in."""
    name = str(frame.f_globals.get("__name__", ""))
    # `python -m` runs a module by the name __main__.
    spec = frame.f_globals.get("__spec__")
    return str(getattr(spec, "name", name)) if name == "__main__" else name


def _sendable(text: str) -> str:
    """The text as a message takes it: what is no Unicode, as of file names, is written out."""
    return text.encode(errors="backslashreplace").decode()


def _message(names: list[str], place: Place, stack: Stack) -> pb.ThreadStacks:
    left_out = max(0, len(stack) - SHOWN_FRAMES)
    message = pb.ThreadStacks(
        threads=len(names), names=map(_sendable, sorted(names)[:SHOWN_NAMES]), left_out=left_out
    )
    for (file, line, function), frame in list(zip(place, stack, strict=True))[left_out:]:
        own = not is_library(file)
        message.frames.add(
            where=_sendable(file if own else _module_of(frame) or file),
            line=line,
            function=_sendable(function),
            code=_sendable(linecache.getline(file, line, frame.f_globals).strip()[:SHOWN_CODE]),
            own=own,
        )
    return message
