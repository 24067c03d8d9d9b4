"""Rows a second of one parameter server by the type in which rows and gradients travel.

    python benchmarks/server/dtypes.py [--rounds N] [--dims 16 64]

A server process for each pair of a table's dtype and a type on the wire, and one client process;
65,536 distinct ids a call out of a table of a million rows, from arrays to arrays. The pairs take
turns call by call; a ratio is the median of single turns.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from parts import IDS, ROWS, Server

from shoal.proto import shoal_pb2 as pb
from shoal.proto.memory import keep_freed_memory

BATCHES = 16
PAIRS = {
    "float32 as float32": ("float32", pb.FLOAT32),
    "float32 as bfloat16": ("float32", pb.BFLOAT16),
    "float32 as float16": ("float32", pb.FLOAT16),
    "bfloat16 as float32": ("bfloat16", pb.FLOAT32),
    "bfloat16 as it is": ("bfloat16", pb.DATA_TYPE_UNSPECIFIED),
}
"""A table's dtype and a type on the wire; float32 of each comes first, and is compared with."""


def measure(dim: int, rounds: int, folder: Path) -> None:
    """Print the rates of pulls and Adagrad pushes of each pair."""
    rng = np.random.default_rng(0)
    batches = [rng.choice(ROWS, IDS, replace=False) for _ in range(BATCHES)]
    gradients = np.random.default_rng(1).normal(size=(IDS, dim)).astype(np.float32)
    servers = {
        name: Server(folder, dim, value_dtype=held, value_type=travels)
        for name, (held, travels) in PAIRS.items()
    }
    try:
        calls: dict[str, Callable[[Server, np.ndarray], object]] = {
            "pull": lambda server, ids: server.pull(ids),
            "push": lambda server, ids: server.push(ids, gradients),
        }
        for operation, call in calls.items():
            spent = np.zeros((rounds + 2, len(servers)))
            for turn in range(rounds + 2):
                for place, server in enumerate(servers.values()):
                    began = time.perf_counter()
                    call(server, batches[turn % BATCHES])
                    spent[turn, place] = time.perf_counter() - began
            spent = spent[2:]  # the first ones make buffers
            for place, name in enumerate(servers):
                rate = IDS / np.median(spent[:, place]) / 1e6
                if PAIRS[name][1] == pb.FLOAT32:
                    exact = spent[:, place]
                ratio = np.median(exact / spent[:, place])
                print(f"{operation}, dim {dim}, {name}: {rate:.2f} million rows/s, {ratio:.2f}")
    finally:
        for server in servers.values():
            server.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--dims", type=int, nargs="+", default=[16, 64])
    options = parser.parse_args()
    keep_freed_memory()  # as workers do
    for dim in options.dims:
        with tempfile.TemporaryDirectory() as folder:
            measure(dim, options.rounds, Path(folder))


if __name__ == "__main__":
    main()
