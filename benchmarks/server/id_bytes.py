"""The bytes of ids on the wire, and what it would cost to make them fewer.

    python benchmarks/server/id_bytes.py [--rounds N]

Distinct ids of one call in the order in which a minibatch has them, 8,192 or 65,536: of a table
of a million that are numbered, and hashes of 64 bits. Two ways to send them beside the 8 bytes of
today: sorted, their differences as varints (the worker sorts, and has each occurrence, four an id,
point to the new place); and five bytes each, where all fit. id_bytes.c has both, compiled with
`cc`.

Prints for each: bytes an id; what share that saves of the bytes of ids and rows, by the row;
nanoseconds of CPU an id at both ends together; and below how many bytes a second this takes less
time than sending what it saves.
"""

from __future__ import annotations

import argparse
import ctypes
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

ROWS = {"16 bfloat16": 32, "16 float32": 64, "64 bfloat16": 128, "64 float32": 256}
"""Bytes of a row."""
OCCURRENCES = 4


def compiled(folder: str) -> ctypes.CDLL:
    """The functions of id_bytes.c."""
    target = Path(folder, "id_bytes.so")
    source = Path(__file__).with_suffix(".c")
    subprocess.run(["cc", "-O3", "-shared", "-fPIC", source, "-o", target], check=True)
    found = ctypes.CDLL(str(target))
    found.pack_differences.restype = found.pack_five.restype = ctypes.c_int64
    return found


def at(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def median_ns(call: Callable[[], Any], rounds: int) -> float:
    """CPU of a call in nanoseconds."""
    spent = []
    for _ in range(rounds):
        began = time.thread_time_ns()
        call()
        spent.append(time.thread_time_ns() - began)
    return float(np.median(spent))


def measured(
    library: ctypes.CDLL, ids: np.ndarray, way: str, rounds: int
) -> tuple[float, float] | None:
    """Bytes an id, and nanoseconds an id at both ends; None: the ids do not fit."""
    count = ctypes.c_int64(ids.size)
    packed, back = np.empty(10 * ids.size + 8, np.uint8), np.empty_like(ids)
    inverse = np.random.default_rng(2).integers(0, ids.size, OCCURRENCES * ids.size, np.int32)
    if way == "differences":
        calls = ctypes.c_int64(inverse.size)
        # The places stay within the ids however often they are changed.
        pack = lambda: library.pack_differences(at(ids), count, at(inverse), calls, at(packed))  # noqa: E731
        unpack = library.unpack_differences
        expected = np.sort(ids)
    else:
        pack = lambda: library.pack_five(at(ids), count, at(packed))  # noqa: E731
        unpack = library.unpack_five
        expected = ids
    size = pack()
    if size < 0:
        return None
    unpack(at(packed), count, at(back))
    np.testing.assert_array_equal(back, expected)
    spent = median_ns(pack, rounds) + median_ns(lambda: unpack(at(packed), count, at(back)), rounds)
    return size / ids.size, spent / ids.size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=200)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    table = Table(title="ids as fewer bytes than 8")
    table.add_column("ids")
    saved = [f"saved, {row}" for row in ROWS]
    for heading in ("a call", "as", "bytes", *saved, "ns", "pays below"):
        table.add_column(heading, justify="right")
    with tempfile.TemporaryDirectory() as folder:
        library = compiled(folder)
        for count in (8_192, 65_536):
            for kind, ids in (
                ("numbers", rng.choice(1_000_000, count, replace=False).astype(np.uint64)),
                ("hashes", rng.integers(0, 2**64, count, np.uint64)),
            ):
                for way in ("differences", "five bytes"):
                    found = measured(library, ids, way, options.rounds)
                    if found is None:
                        continue
                    size, spent = found
                    saved = [f"{(8 - size) / (8 + row):.1%}" for row in ROWS.values()]
                    pays = f"{(8 - size) / spent:.2f} GB/s"
                    table.add_row(
                        kind, f"{count:,}", way, f"{size:.2f}", *saved, f"{spent:.1f}", pays
                    )
    Console(width=150).print(table)


if __name__ == "__main__":
    main()
