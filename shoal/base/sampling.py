"""Where the threads of this process spend their time: their stacks, looked at many times a second.

Runs in the process itself, so it needs no privilege. Threads that wait, as far as their innermost
call tells it, are left out. What it costs is one look at all threads each SECONDS_APART.
"""

from __future__ import annotations

import contextlib
import linecache
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from types import CodeType, FrameType

from shoal.base.stacks import SHOWN_FRAMES, module_of, sendable, stack_of, thread_frames
from shoal.base.tracebacks import is_library
from shoal.proto import shoal_pb2 as pb

SECONDS_APART = 0.02
"""Between two looks: with 50 a second the looks themselves take about a hundredth of a core."""

TURN_SECONDS = 0.0005
"""How long a thread may keep others from running Python meanwhile (Python's own: 0.005). Calls that
are shorter than that, from threads that are TensorFlow's, would have ended before each look."""

MOST_PLACES = 2000
"""Stacks that are told, those seen most often first."""

MOST_SECONDS = 600.0

_WAITING = frozenset({"threading", "queue", "selectors", "socket", "concurrent.futures.thread"})
"""Modules in which an innermost call waits for other threads, or for another process."""

_WAITS = re.compile(r"\b(sleep|wait|waitid|acquire|accept|recv\w*|poll|select|join)\(")
"""In the line of an innermost call that waits: C functions have no frame of their own."""

_NUMBER = re.compile(r"[-_ ]?\d+$")

_samplers_lock = threading.Lock()
_samplers: list[float] = []
"""For each that looks at this time, the turn of threads that it found."""


@contextlib.contextmanager
def _short_turns() -> Iterator[None]:
    with _samplers_lock:
        _samplers.append(_samplers[0] if _samplers else sys.getswitchinterval())
        sys.setswitchinterval(min(TURN_SECONDS, _samplers[0]))
    try:
        yield
    finally:
        with _samplers_lock:
            usual = _samplers.pop()
            if not _samplers:
                sys.setswitchinterval(usual)


Key = tuple[str, tuple[CodeType, ...]]


def sampled_stacks(
    process: str,
    seconds: float,
    stopped: threading.Event,
    *,
    incarnation: int = 0,
    question: int = 0,
) -> pb.ProcessStacks:
    """The stacks of all threads but the caller's over some seconds, or until `stopped` is set.

    In the message, `threads` counts how often a stack was seen, and lines are those where functions
    begin. process, question: as of pb.ProcessStacks.
    """
    seen: Counter[Key] = Counter()
    # A frame of each function, for what its code does not know.
    modules: dict[CodeType, str] = {}
    looks = 0
    end = time.monotonic() + min(seconds, MOST_SECONDS)
    with _short_turns():
        while time.monotonic() < end and not stopped.wait(SECONDS_APART):
            looks += 1
            for name, frame in thread_frames():
                if _waits(frame):
                    continue
                stack = stack_of(frame)[-SHOWN_FRAMES:]
                for each in stack:
                    modules.setdefault(each.f_code, module_of(each))
                seen[_NUMBER.sub("", name), tuple(each.f_code for each in stack)] += 1
    told = pb.ProcessStacks(
        process=process, incarnation=incarnation, question=question, samples=looks
    )
    for (name, codes), count in seen.most_common(MOST_PLACES):
        place = told.stacks.add(threads=count, names=[sendable(name)])
        for code in codes:
            own = not is_library(code.co_filename)
            place.frames.add(
                where=sendable(code.co_filename if own else modules[code] or code.co_filename),
                line=code.co_firstlineno,
                function=sendable(code.co_name),
                own=own,
            )
    told.threads = sum(seen.values())
    return told


def _waits(frame: FrameType) -> bool:
    """Whether a thread whose innermost call this is waits, as far as can be told."""
    if module_of(frame) in _WAITING:
        return True
    file, line = frame.f_code.co_filename, frame.f_lineno or 0
    return bool(_WAITS.search(linecache.getline(file, line, frame.f_globals)))
