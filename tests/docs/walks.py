"""The ways in docs/architecture.md, and the modules that a thread really enters."""

import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import shoal.master
import shoal.native
import shoal.proto
import shoal.worker

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| (\w+/[\w/.]+) \| `(\w+)` \| ", re.MULTILINE)
FOLDERS = {
    Path(package.__file__).parent: package.__name__.removeprefix("shoal.")
    for package in (shoal.master, shoal.native, shoal.proto, shoal.worker)
}
"""Where the packages are that a way passes -> their names at the root of the sources."""

Stops = list[tuple[str, str]]
"""Modules and the functions that are entered in them."""


def tables(title: str) -> list[Stops]:
    """The (module, entry) pairs of each table under a heading."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    _, _, section = page.partition(f"\n## {title}\n")
    parts = section.partition("\n## ")[0].split("| --- | --- | --- |")
    return [ROW.findall(part) for part in parts[1:]]


@contextmanager
def traced(calls: dict[str, Stops]) -> Iterator[None]:
    """Add to `calls` what this thread, and each that is started meanwhile, enters of shoal.

    By the thread's name.
    """

    def enter(frame, event, _):
        path = Path(frame.f_code.co_filename)
        if event == "call":
            for folder, name in FOLDERS.items():
                if path.is_relative_to(folder):
                    stop = (f"{name}/{path.relative_to(folder)}", frame.f_code.co_name)
                    calls[threading.current_thread().name].append(stop)

    threading.setprofile(enter)
    sys.setprofile(enter)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def beside(calls: Stops, way: Stops) -> list[str]:
    """The modules that calls enter beside a way, sorted; they enter its stops in their order."""
    left = iter(calls)
    for stop in way:
        assert stop in left, f"{stop} is not entered, or not in its place"
    return sorted({module for module, _ in calls} - {module for module, _ in way})
