"""Rows a second of one parameter server over a loopback socket, against what its parts allow.

    python benchmarks/server/run.py [--rounds N] [--dims 16 64]

One server process and one client process; 65,536 distinct ids a call out of a table of a
million rows, one call after the other, as a worker makes them: from arrays to arrays. The
parts are a bare exchange of the same bytes over a socket with a third process (nothing but bytes,
in memory that both ends keep), plus the same kernel call on a row store in this process, by one
thread. All three take turns call by call, since this kind of machine's speed drifts; a ratio is the
median of the time of both parts by the time of the call, in one turn.

Prints a table and writes build/bench/server.json in the form of native.json.
"""

from __future__ import annotations

import argparse
import functools
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from parts import IDS, RATE, ROWS, Echo, Server, filled
from rich.console import Console
from rich.table import Table

from shoal.native.rowstore import use_cores
from shoal.proto.memory import keep_freed_memory

OUTPUT = Path("build/bench/server.json")
BATCHES = 16
UPDATES = ("sgd", "rowwise_adagrad", "adam", "ftrl")

Line = dict[str, Any]


def seconds(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def line(operation: str, dim: int, name: str, spent: float) -> Line:
    common = {"name": name, "operation": operation, "dim": dim, "ids": IDS, "threads": 1}
    rate = round(IDS / spent / 1e6, 2)
    return common | {"value": rate, "unit": "million rows/s", "against": "", "ratio": None}


def compare(
    operation: str,
    dim: int,
    rounds: int,
    ours: Callable[[np.ndarray], Any],
    exchange: Callable[[], Any],
    kernel: Callable[[np.ndarray], Any],
    batches: list[np.ndarray],
) -> list[Line]:
    """The lines of one operation: ours, each part, and the share of the parts reached."""
    for ids in batches[:3]:
        ours(ids)
        exchange()
        kernel(ids)
    spent: dict[str, list[float]] = {"server": [], "bare exchange": [], "kernel": []}
    for number in range(rounds):
        ids = batches[number % len(batches)]
        spent["server"].append(seconds(lambda ids=ids: ours(ids)))
        spent["bare exchange"].append(seconds(exchange))
        spent["kernel"].append(seconds(lambda ids=ids: kernel(ids)))
    made = [line(operation, dim, name, float(np.median(each))) for name, each in spent.items()]
    parts = np.array(spent["bare exchange"]) + np.array(spent["kernel"])
    share = float(np.median(parts / np.array(spent["server"])))
    return [*made, made[0] | {"against": "its parts", "ratio": round(share, 3)}]


def measure(dim: int, rounds: int, folder: Path, echo: Echo) -> list[Line]:
    """Pull and Adagrad push against their parts, and pushes of other optimizers."""
    rng = np.random.default_rng(0)
    batches = [rng.choice(ROWS, IDS, replace=False) for _ in range(BATCHES)]
    gradients = np.random.default_rng(1).normal(size=(IDS, dim)).astype(np.float32)
    out = np.empty((IDS, dim), np.float32)
    store = filled(dim, "adagrad")
    lines = []
    ids_bytes, row_bytes = IDS * 8, IDS * dim * 4
    server = Server(folder, dim)
    try:
        np.testing.assert_array_equal(server.pull(batches[0]).shape, (IDS, dim))
        asked = bytes(ids_bytes)
        lines += compare(
            *("pull", dim, rounds, server.pull),
            lambda: echo.exchange(asked, row_bytes),
            lambda ids: store.lookup(ids, out),
            batches,
        )
        sent = bytes(ids_bytes + row_bytes)
        lines += compare(
            *("push", dim, rounds, lambda ids: server.push(ids, gradients)),
            lambda: echo.exchange(sent, 8),
            lambda ids: store.update(ids, gradients, learning_rate=RATE, step=1),
            batches,
        )
    finally:
        server.close()
    for optimizer in UPDATES:
        server = Server(folder, dim, optimizer)
        try:
            push = functools.partial(server.push, gradients=gradients)
            times = [seconds(functools.partial(push, ids)) for ids in 2 * batches]
        finally:
            server.close()
        lines.append(line("push", dim, f"server, {optimizer}", float(np.median(times))))
    return lines


def show(lines: list[Line]) -> None:
    """Print the table."""
    table = Table(title=f"one server over a loopback socket, {IDS:,} ids a call, {ROWS:,} rows")
    for heading in ("operation", "dim", "what", "million rows/s", "share"):
        table.add_column(heading, justify="left" if heading in ("operation", "what") else "right")
    shares = {(each["operation"], each["dim"]): each["ratio"] for each in lines if each["against"]}
    for each in lines:
        if each["against"]:
            continue
        share = shares[each["operation"], each["dim"]]
        table.add_row(
            each["operation"],
            str(each["dim"]),
            each["name"],
            f"{each['value']:.2f}",
            f"{share:.2f}" if each["name"] == "server" else "",
        )
    Console(width=120).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--dims", type=int, nargs="+", default=[16, 64])
    options = parser.parse_args()
    keep_freed_memory()  # as workers do
    use_cores(1)  # the server has as many as are free
    echo = Echo()
    lines: list[Line] = []
    try:
        with tempfile.TemporaryDirectory() as folder:
            for dim in options.dims:
                lines += measure(dim, options.rounds, Path(folder), echo)
    finally:
        echo.close()
    show(lines)
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    OUTPUT.write_text(json.dumps(lines, indent=1) + "\n")
    print(f"written to {OUTPUT}")


if __name__ == "__main__":
    main()
