"""Microbenchmarks of one parameter server process over a loopback socket: updates and pulls.

From arrays to arrays, as a worker sees it, one call after the other. `make bench-server`
sets the same calls against what their parts allow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from benchmarks.micro.conftest import Measure, Sizes
from benchmarks.server.parts import Server

DIMS = (16, 64)
DENSE = 152_000
"""Elements of the dense variables of the DeepFM of benchmarks/end_to_end."""

Start = Callable[..., Server]


@pytest.fixture
def start(tmp_path: Path, sizes: Sizes) -> Iterator[Start]:
    """Starts a server: Server's arguments but for folder and rows."""
    running: list[Server] = []

    def started(dim: int, optimizer: str = "adagrad", dense: int = 0) -> Server:
        running.append(Server(tmp_path, dim, optimizer, sizes.rows, dense))
        return running[-1]

    yield started
    for server in running:
        server.close()


def gradients(sizes: Sizes, dim: int) -> np.ndarray:
    """Gradients of one call, float32 [ids, dim]."""
    return np.random.default_rng(1).normal(size=(sizes.ids, dim)).astype(np.float32)


@pytest.mark.benchmark(group="server: update (push)")
@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "rowwise_adagrad", "adam", "ftrl"])
def test_push(
    measure: Measure,
    sizes: Sizes,
    batches: list[np.ndarray],
    start: Start,
    optimizer: str,
    dim: int,
) -> None:
    server = start(dim, optimizer)
    given = gradients(sizes, dim)
    before = server.pull(batches[0])
    measure(lambda ids: server.push(ids, given), batches)
    assert np.abs(server.pull(batches[0]) - before).max() > 0


@pytest.mark.benchmark(group="server: update of rows and of dense variables (push)")
def test_push_with_dense(
    measure: Measure, sizes: Sizes, batches: list[np.ndarray], start: Start
) -> None:
    server = start(16, dense=DENSE)
    given = gradients(sizes, 16)
    dense = np.random.default_rng(2).normal(size=DENSE).astype(np.float32)
    measure(lambda ids: server.push(ids, given, dense), batches)


@pytest.mark.benchmark(group="server: pull")
@pytest.mark.parametrize("dim", DIMS)
def test_pull(measure: Measure, batches: list[np.ndarray], start: Start, dim: int) -> None:
    server = start(dim)
    measure(server.pull, batches)
    assert server.pull(batches[0]).shape == (len(batches[0]), dim)
