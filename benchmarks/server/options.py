"""Does any of gRPC's options make large messages faster? Bare echoes that differ in one.

    python benchmarks/server/options.py [--rounds N]

Each set of options has a server process of its own; the sets take turns, call by call, so that
a machine whose speed drifts slows all of them. Prints, for a pull's and a push's sizes, the
median time of a call and the median of its speed by that of gRPC's defaults in the same round.
"""

from __future__ import annotations

import argparse
import statistics
import time

from parts import Echo, Options, message
from rich.console import Console
from rich.table import Table

from shoal.proto.memory import keep_freed_memory

MIB = 1 << 20
SETS: dict[str, Options] = {
    "defaults": [],
    "frames of 1 MiB": [("grpc.http2.max_frame_size", MIB)],
    "frames of 16 MiB": [("grpc.http2.max_frame_size", 16 * MIB - 1)],
    "window of 8 MiB": [("grpc.http2.lookahead_bytes", 8 * MIB)],
    "window of 16 MiB, no probing": [
        ("grpc.http2.lookahead_bytes", 16 * MIB),
        ("grpc.http2.bdp_probe", 0),
    ],
    "reads of 1 MiB and more": [
        ("grpc.experimental.tcp_read_chunk_size", MIB),
        ("grpc.experimental.tcp_min_read_chunk_size", MIB),
        ("grpc.experimental.tcp_max_read_chunk_size", 4 * MIB),
    ],
    "write buffer of 4 MiB": [("grpc.http2.write_buffer_size", 4 * MIB)],
    "throughput": [("grpc.optimization_target", "throughput")],
}
SIZES = {
    "pull, dim 16": (520_000, 4_200_000),
    "push, dim 16": (4_700_000, 0),
    "pull, dim 64": (520_000, 16_800_000),
}
"""Bytes up and down of 65,536 rows."""


def seconds(echo: Echo, up: int, down: int) -> float:
    """Time of one exchange."""
    request = message(up, down)
    began = time.perf_counter()
    echo.exchange(request)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40)
    given = parser.parse_args()
    keep_freed_memory()
    echoes: dict[str, Echo] = {}
    try:
        for name, options in SETS.items():
            echoes[name] = Echo(options)
        names = list(SETS)
        for kind, (up, down) in SIZES.items():
            # Each round begins with another set: who comes first finds colder caches.
            rounds = [
                {name: seconds(echoes[name], up, down) for name in names[turn:] + names[:turn]}
                for turn in (number % len(names) for number in range(given.rounds + 1))
            ][1:]
            table = Table(title=f"{kind}: {up:,} bytes up, {down:,} down")
            for heading in ("options", "ms", "GB/s", "speed by the defaults'"):
                table.add_column(heading, justify="left" if heading == "options" else "right")
            for name in SETS:
                median = statistics.median(each[name] for each in rounds)
                ratio = statistics.median(each["defaults"] / each[name] for each in rounds)
                rate = (up + down) / median / 1e9
                table.add_row(name, f"{median * 1e3:.2f}", f"{rate:.2f}", f"{ratio:.2f}")
            Console(width=100).print(table)
    finally:
        for echo in echoes.values():
            echo.close()


if __name__ == "__main__":
    main()
