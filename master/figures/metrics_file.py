"""metrics.csv and metrics.parquet: the figures of a job over time, in its folder.

Owns the files; their columns are shoal/base/metrics_columns.py's, what the figures are is
job/view/sample.py's, when a row is due recorder.py's.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from shoal.base.disk.wholefile import replacing
from shoal.base.metrics_columns import TYPES
from shoal.master.work.evaluation.evaluation import EvaluationResult

METRIC = "val_"
"""Before the name of an evaluation metric, as Keras has it."""

_DIGITS = {"seconds": 3, "samples_per_second": 1, "mean_staleness": 4}
"""After the point, of figures that are measured."""


class MetricsFile:
    """Appends rows to a CSV file, which a master before this one may have begun.

    A row is there whole or not at all, for readers too: it is one write. Nothing is synced to
    the disk. Raises OSError, as its methods do.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._columns: list[str] = []
        self._evaluations: set[tuple[str, ...]] = set()
        self._size = 0
        if path.exists():
            self._go_on()
        self._add_columns(list(TYPES))

    def _go_on(self) -> None:
        """Read what there is, but for a last line that was cut by a kill."""
        with self._path.open("rb") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._size += len(line)
                cells = _cells(line)
                if not self._columns:
                    self._columns = cells
                    continue
                row = dict(zip(self._columns, cells, strict=False))
                if row.get("evaluated_version"):
                    self._evaluations.add(_key(row))

    def add(
        self, when: float, sample: Mapping[str, Any], evaluation: EvaluationResult | None = None
    ) -> bool:
        """Append a row, unless it is of an evaluation that has one; returns whether it has not.

        when: seconds since 1970. sample: as `sample_of` gives it.
        """
        at = datetime.fromtimestamp(when, UTC).isoformat(timespec="milliseconds")
        cells = {"time": at.replace("+00:00", "Z")}
        cells |= {name: _text(name, value) for name, value in sample.items()}
        if evaluation is not None:
            cells["evaluated_version"] = str(evaluation.version)
            cells |= {column_of(n): repr(value) for n, value in evaluation.metrics.items()}
            key = _key(cells)
            if key in self._evaluations:
                return False
        self._add_columns([name for name in cells if name not in self._columns])
        self._append(_line(cells.get(name, "") for name in self._columns))
        if evaluation is not None:
            self._evaluations.add(key)
        return True

    def _append(self, line: bytes) -> None:
        with self._path.open("r+b") as file:
            # Where the last line was cut, or a full disk took a part of it only.
            file.truncate(self._size)
            file.seek(self._size)
            file.write(line)
        self._size += len(line)

    def _add_columns(self, names: list[str]) -> None:
        """Add columns, empty in the rows there are. A reader sees the old file or the new one.

        It happens when the file is begun, and with the first evaluation.
        """
        new = [name for name in names if name not in self._columns]
        if not new:
            return
        columns = [*self._columns, *new]
        empty = [""] * len(new)
        with replacing(self._path) as temporary, temporary.open("wb") as written:
            written.write(_line(columns))
            if self._size:
                with self._path.open("rb") as old:
                    next(old)
                    # To the last whole line: row by row, as there may be those of months.
                    while old.tell() < self._size:
                        written.write(_line([*_cells(old.readline()), *empty]))
            self._size = written.tell()
        self._columns = columns


def _key(cells: Mapping[str, str]) -> tuple[str, ...]:
    """The key that tells the evaluation of a row from others."""
    metrics = [f"{n}={v}" for n, v in sorted(cells.items()) if n.startswith(METRIC) and v]
    return (cells["evaluated_version"], *metrics)


def column_of(metric: str) -> str:
    """The column of an evaluation metric."""
    return METRIC + " ".join(metric.split())


def _text(name: str, value: Any) -> str:
    if value is None:
        return ""
    if name in _DIGITS:
        return f"{value:.{_DIGITS[name]}f}"
    return value if isinstance(value, str) else repr(value)


def _cells(line: bytes) -> list[str]:
    return next(csv.reader(io.StringIO(line.decode(), newline="")), [])


def _line(cells: Any) -> bytes:
    line = io.StringIO(newline="")
    csv.writer(line, lineterminator="\n").writerow(cells)
    return line.getvalue().encode()


def write_parquet(source: Path, target: Path) -> None:
    """Write metrics.csv again as Parquet, with the types of its columns.

    Raises OSError, and pyarrow.ArrowException if somebody has changed the file.
    """
    import pyarrow as pa  # late: only now it is needed
    import pyarrow.csv
    import pyarrow.parquet as pq

    kinds = {
        "time": pa.timestamp("ms", "UTC"),
        "float": pa.float64(),
        "int": pa.int64(),
        "text": pa.string(),
    }
    with source.open(newline="") as file:
        columns = next(csv.reader(file))
    types = {name: kinds[TYPES.get(name, "float")] for name in columns}
    options = pyarrow.csv.ConvertOptions(column_types=types, strings_can_be_null=True)
    table = pyarrow.csv.read_csv(os.fspath(source), convert_options=options)
    with replacing(target) as temporary:
        pq.write_table(table, temporary)
