"""A traceback of the user's code with the user's own lines, and the libraries' left out.

TensorFlow and Keras put dozens of their own calls around the lines that matter. The whole
text is in the logs and in result.json.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

import shoal

_FRAME = re.compile(r'\s*File "(?P<file>.+?)", line (?P<line>\d+), in (?P<function>.+?)\s*\**$')
_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib/python3[.\d]*/|__autograph_generated_|^<")
_ROOT = Path(shoal.__file__).parent

_PARTS = ("native", "proto", "worker", "ps", "master")


def _folders(part: str) -> list[str]:
    # Found, not imported: TensorFlow, pyarrow and more would come with them.
    spec = find_spec(f"shoal.{part}")
    return list(spec.submodule_search_locations or ()) if spec is not None else []


_OURS = tuple(f"{folder}/" for folder in (_ROOT, *(each for p in _PARTS for each in _folders(p))))

LINES_OF_ERROR = 12
"""Of the exception's own text, which Keras makes long, so many are shown."""


def own_lines(text: str) -> str:
    """The user's own calls with their source lines, then the exception's text.

    text: a traceback, as `traceback.format_exc()` gives it. "" if no call in it is the user's: then
    the exception is about how a function is called, or what it returned.
    """
    lines = text.rstrip().splitlines()
    shown: list[str] = []
    last = left_out = 0
    own: set[tuple[str, ...]] = set()
    for number, line in enumerate(lines):
        if (frame := _FRAME.match(line)) is None:
            continue
        source = number + 1 < len(lines) and lines[number + 1]
        code = source.strip() if source and _FRAME.match(source) is None else ""
        last = number + bool(code)
        if is_library(frame["file"]):
            left_out += 1
            continue
        if frame.group("file", "line", "function") in own:
            continue  # AutoGraph names it a second time, in the text of the exception
        own.add(frame.group("file", "line", "function"))
        shown += _gap(left_out) if shown else []  # what called the user's function is of no use
        left_out = 0
        shown.append(f'  File "{frame["file"]}", line {frame["line"]}, in {frame["function"]}')
        shown += [f"    {code}"] if code else []
    if not own:
        return ""
    shown += _gap(left_out)
    # Below the last line of source: markers of the place in it, blank lines, the exception.
    told = [line for line in lines[last + 1 :] if line.strip(" ^~")]
    more = ["..."] if len(told) > LINES_OF_ERROR else []
    return "\n".join(["Your code, the last call last:", *shown, *told[:LINES_OF_ERROR], *more])


def line_of(error: BaseException) -> str:
    """The last of the user's lines that led to an error, as "model.py, line 12"; "" if none did."""
    return _last(
        (frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)
    )


def line_now() -> str:
    """The last of the user's lines that led to this call, as `line_of` gives it."""
    return _last(
        (frame.f_code.co_filename, line) for frame, line in reversed([*traceback.walk_stack(None)])
    )


def _last(places: Iterable[tuple[str, int]]) -> str:
    found = [place for place in places if not is_library(place[0])]
    return f"{Path(found[-1][0]).name}, line {found[-1][1]}" if found else ""


def is_library(file: str) -> bool:
    """True if a source file is a library's or shoal's own, and not the user's."""
    return bool(_LIBRARY.search(file)) or file.startswith(_OURS)


def _gap(left_out: int) -> list[str]:
    return [f"    ... calls of libraries: {left_out}"] if left_out else []
