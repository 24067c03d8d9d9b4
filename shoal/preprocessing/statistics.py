"""The findings of `shoal analyze` about columns, for the arguments of layers.

Reads the file; computing it is shoal.data's.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from shoal.base.words import near
from shoal.data.samples.sketches import boundaries_of

FORMAT = "shoal-statistics-1"


class ColumnStatistics:
    """The statistics of one column; of a column of lists, of their elements.

    values, missing: how many values are there, and how many are not. distinct: how many
    are different. min, max, mean, stddev: of numbers.
    """

    def __init__(self, name: str, told: Mapping[str, Any]) -> None:
        self.name = name
        self._told = told

    def _get(self, what: str) -> Any:
        if what not in self._told:
            raise ValueError(
                f"column {self.name!r} of type {self._told['type']} with "
                f"{self.values} values has no {what}"
            )
        return self._told[what]

    @property
    def values(self) -> int:
        """Values that are there."""
        return int(self._told["values"])

    @property
    def missing(self) -> int:
        """Values that are missing, NaN among them."""
        return int(self._told["missing"])

    @property
    def distinct(self) -> int:
        """Different values: exact up to 8,192, an estimate beyond."""
        return int(self._told["distinct"])

    @property
    def min(self) -> float:
        """The least value. Raises ValueError if the column holds no numbers."""
        return self._get("min")  # type: ignore[no-any-return]

    @property
    def max(self) -> float:
        """The greatest value. Raises ValueError if the column holds no numbers."""
        return self._get("max")  # type: ignore[no-any-return]

    @property
    def mean(self) -> float:
        """The mean. Raises ValueError if the column holds no numbers."""
        return float(self._get("mean"))

    @property
    def stddev(self) -> float:
        """The standard deviation of all values. Raises ValueError as `mean` does."""
        return float(self._get("stddev"))

    def boundaries(self, bins: int) -> list[float]:
        """Up to bins - 1 boundaries between parts of about as many values each, ascending.

        Fewer where one value makes up more than a part. Raises ValueError if the column
        holds no numbers, or for less than two bins.
        """
        if bins < 2:
            raise ValueError(f"bins must be at least 2, not {bins}")
        return boundaries_of(self._get("quantiles"), bins)

    def vocabulary(self, limit: int | None = None, min_count: int = 1) -> list[Any]:
        """The most frequent values, text or integers, most frequent first.

        limit: how many at most. min_count: only values that came so often.
        Raises ValueError for a column of other values.
        """
        words = self._get("vocabulary")
        found = [
            value
            for value, count in zip(words["values"], words["counts"], strict=True)
            if count >= min_count
        ]
        return found[:limit]

    @property
    def counts(self) -> dict[Any, int]:
        """The count of each value of `vocabulary`. Raises ValueError as it does."""
        words = self._get("vocabulary")
        return dict(zip(words["values"], words["counts"], strict=True))


class Statistics(Mapping[str, ColumnStatistics]):
    """The statistics of a data set by column, from the file that `shoal analyze` wrote.

    records: how many there were.
    Raises OSError if the file cannot be read, ValueError if it is another file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        told = json.loads(Path(path).read_text())
        if not isinstance(told, dict) or told.get("format") != FORMAT:
            raise ValueError(f"{path} was not written by shoal analyze: its format is not {FORMAT}")
        self.records = int(told["records"])
        self._columns = {name: ColumnStatistics(name, c) for name, c in told["columns"].items()}

    def __getitem__(self, column: str) -> ColumnStatistics:
        """Raises KeyError that names the nearest column."""
        if column not in self._columns:
            hint = near(column, self._columns, most=1)
            raise KeyError(f"no statistics of column {column!r}{hint}")
        return self._columns[column]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)
