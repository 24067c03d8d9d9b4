"""A job trains by one text of the user's modules: the one that its first worker imported.

Owns reading that text, of the user's module and of all that it imports which are no installed
packages, and keeping it in the job's folder, whichever worker is first. A worker that begins later
would otherwise train by what has been edited meanwhile.
"""

from __future__ import annotations

import contextlib
import linecache
import logging
import os
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from shoal.base.disk.job_folder import JobFolder
from shoal.base.modules.module_texts import place_of

logger = logging.getLogger(__name__)

_INSTALLED = {"site-packages", "dist-packages"}
_STDLIB = sysconfig.get_path("stdlib")


class KeptModules(MetaPathFinder):
    """Finds modules as Python does, and has the user's run by their kept text.

    folder: where the texts are, of the job's folder; made when the first one is kept.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lines: dict[str, list[str]] = {}

    def install(self) -> None:
        """From now on, imports of this process, and who asks for lines of modules, come here."""
        sys.meta_path.insert(sys.meta_path.index(PathFinder), self)
        # AutoGraph reads the text of a function with it, anew from the file each time.
        of_file = linecache.updatecache

        def updatecache(filename: str, module_globals: dict[str, Any] | None = None) -> list[str]:
            return self._lines.get(filename) or of_file(filename, module_globals)

        linecache.updatecache = updatecache

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a module as Python's own finder of files does, but by its kept text."""
        spec = PathFinder.find_spec(name, path, target)
        return spec if spec is None else self.by_kept_text(spec)

    def by_kept_text(self, spec: ModuleSpec) -> ModuleSpec:
        """The same, with the kept text where the module is the user's."""
        if type(spec.loader) is SourceFileLoader and self._is_users(spec):
            assert spec.origin is not None
            spec.loader = _Loader(spec.name, spec.origin, self._folder, self._lines)
        return spec

    def has(self, path: Path) -> bool:
        """True if the text of a file is kept; the file itself may be gone."""
        return place_of(os.path.abspath(path), self._folder).is_file()

    def _is_users(self, spec: ModuleSpec) -> bool:
        path = os.path.abspath(spec.origin or "")
        # What was given by value is in the job's folder already.
        others = _STDLIB, os.path.abspath(JobFolder(self._folder.parent).given)
        return not (
            spec.name.partition(".")[0] == "shoal"
            or _INSTALLED.intersection(Path(path).parts)
            or any(path.startswith(f"{each}{os.sep}") for each in others)
        )


class _Loader(SourceFileLoader):
    """Loads a file by the text that is kept of it."""

    def __init__(self, name: str, path: str, folder: Path, lines: dict[str, list[str]]) -> None:
        """lines: of all modules that were loaded so, by file."""
        super().__init__(name, path)
        self._lines = lines
        self._kept = place_of(os.path.abspath(path), folder)

    def path_stats(self, path: Any) -> Any:  # noqa: ARG002
        """Bytecode that stands beside the file may be of another text."""
        raise OSError

    def get_data(self, path: str) -> bytes:
        """The kept text of the module; any other file, such as data of a package, as it is."""
        if path != self.path:
            return super().get_data(path)
        try:
            text = self._kept.read_bytes()
        except OSError:
            text = self._keep(super().get_data(path))
        self._lines[path] = text.decode("utf-8", "replace").splitlines(keepends=True)
        return text

    def _keep(self, text: bytes) -> bytes:
        """Keep a text, unless another worker was first; returns the one that is kept."""
        try:
            self._kept.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self._kept.parent) as file:
                file.write(text)
                file.flush()
                with contextlib.suppress(FileExistsError):
                    os.link(file.name, self._kept)
            return self._kept.read_bytes()
        except OSError as error:
            logger.warning("the text of %s cannot be kept: %s", self.path, error)
            return text
