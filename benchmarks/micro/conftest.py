"""Fixtures that the microbenchmarks share: sizes, ids, and the rate beside each time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from shoal.native.rowstore import use_cores
from shoal.proto.memory import keep_freed_memory

BATCHES = 16


def pytest_addoption(parser: pytest.Parser) -> None:
    """Sizes: of what fits a cache, other things are measured than of what does not."""
    parser.addoption("--rows", type=int, default=1_000_000, help="rows of each table")
    parser.addoption("--ids", type=int, default=65_536, help="distinct ids of a call")


@dataclass(frozen=True)
class Sizes:
    """rows: of a table. ids: distinct ones of a call."""

    rows: int
    ids: int


@pytest.fixture(scope="session")
def sizes(request: pytest.FixtureRequest) -> Sizes:
    """The sizes that --rows and --ids give."""
    keep_freed_memory()  # as servers and workers do
    use_cores(1)  # how many are free may change from one version's run to the other's
    rows, ids = request.config.getoption("--rows"), request.config.getoption("--ids")
    if not 0 < ids <= rows:
        raise pytest.UsageError(f"--ids {ids}: it must be from 1 to --rows, {rows}")
    return Sizes(rows, ids)


@pytest.fixture(scope="session")
def batches(sizes: Sizes) -> list[np.ndarray]:
    """Batches of distinct ids, uniform over the rows."""
    rng = np.random.default_rng(0)
    return [rng.choice(sizes.rows, sizes.ids, replace=False) for _ in range(BATCHES)]


@pytest.fixture(scope="session")
def repeated(sizes: Sizes) -> list[np.ndarray]:
    """Batches with repeats: a Zipf law of exponent 1.1 over the rows."""
    rng = np.random.default_rng(1)
    weights = np.arange(1, sizes.rows + 1) ** -1.1
    total = np.cumsum(weights)
    return [np.searchsorted(total, rng.random(sizes.ids) * total[-1]) for _ in range(BATCHES)]


Measure = Callable[[Callable[[np.ndarray], Any], list[np.ndarray]], None]


@pytest.fixture
def measure(benchmark: Any) -> Measure:
    """Times a call on one batch after the other, and notes the rate of the median."""

    def timed(call: Callable[[np.ndarray], Any], batches: list[np.ndarray]) -> None:
        taken = 0

        def one() -> None:
            nonlocal taken
            taken += 1
            call(batches[taken % len(batches)])

        benchmark.pedantic(one, rounds=5 * BATCHES, warmup_rounds=BATCHES)
        if benchmark.stats is not None:  # else measuring is switched off
            rate = len(batches[0]) / benchmark.stats.stats.median
            benchmark.extra_info["million_a_second"] = round(rate / 1e6, 3)

    return timed
