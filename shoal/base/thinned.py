"""metrics.csv in few rows: of months, too, in bounded memory and without reading it again.

Owns which rows are left out. What is in them is master/figures/metrics_file.py's.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import BinaryIO

TEXT_BYTES = 100_000
"""Of the file as it goes to those who cannot read the job's folder."""

MARK = b"evaluated_version"
"""The column that is not empty in the rows of evaluations."""


class _Rows:
    """Every n-th of the rows of one kind: (place, line). n doubles when there are too many."""

    def __init__(self) -> None:
        self.kept: list[tuple[int, bytes]] = []
        self._step, self._seen = 1, 0

    def add(self, place: int, line: bytes) -> int:
        """Returns the bytes that are kept more."""
        keep = self._seen % self._step == 0
        self._seen += 1
        if keep:
            self.kept.append((place, line))
        return len(line) if keep else 0

    def halve(self) -> int:
        """Leave out every second one. Returns its bytes."""
        gone = sum(len(line) for _, line in self.kept[1::2])
        self._step *= 2
        self.kept = self.kept[::2]
        return gone


class ThinnedFile:
    """The rows of a metrics.csv in at most `limit` bytes; for any thread.

    Every second row is left out, again and again, and those of evaluations only when no others are
    left. The last row stays. Of a file that grew only what is new is read.
    """

    def __init__(self, path: Path, limit: int = TEXT_BYTES) -> None:
        self._path, self._limit = path, limit
        self._lock = threading.Lock()
        self._begin(None)

    def _begin(self, file: tuple[int, int] | None) -> None:
        self._file, self._read = file, 0
        self._head = self._last = b""
        self._rows, self._evaluations = _Rows(), _Rows()
        self._bytes = self._place = 0

    def text(self) -> str:
        """The file as it is now, without a last line that is not whole; "" without the file."""
        with self._lock:
            try:
                with self._path.open("rb") as file:
                    self._go_on(file)
            except OSError:
                return ""
            lines = [line for _, line in sorted(self._rows.kept + self._evaluations.kept)]
            if self._last and (not lines or lines[-1] != self._last):
                lines.append(self._last)
            return b"".join([self._head, *lines]).decode(errors="replace")

    def _go_on(self, file: BinaryIO) -> None:
        status = os.fstat(file.fileno())
        now = status.st_dev, status.st_ino
        if now != self._file or status.st_size < self._read:
            self._begin(now)  # with other columns it is another file
        file.seek(self._read)
        for line in file:
            if not line.endswith(b"\n"):
                break
            self._read += len(line)
            if self._head:
                self._take(line)
            else:
                self._head = line
                names = line.rstrip().split(b",")
                self._column = names.index(MARK) if MARK in names else None

    def _take(self, line: bytes) -> None:
        cells = line.rstrip(b"\n").split(b",")
        marked = self._column is not None and any(cells[self._column : self._column + 1])
        self._place += 1
        self._bytes += (self._evaluations if marked else self._rows).add(self._place, line)
        self._last = line
        while self._bytes + len(self._head) + len(line) > self._limit:
            rows = self._rows if len(self._rows.kept) > 1 else self._evaluations
            if not (gone := rows.halve()):
                break
            self._bytes -= gone
