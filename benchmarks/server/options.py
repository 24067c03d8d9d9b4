"""Does any of gRPC's options make large messages faster? Bare echoes that differ in one.

    python benchmarks/server/options.py [--rounds N]

Each set of options has a server process of its own; the sets take turns, call by call, so that
a machine whose speed drifts slows all of them. Prints, for a pull's and a push's sizes, the
median time of a call and the median of its speed by that of gRPC's defaults in the same round.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent import futures
from typing import Any

import grpc
from rich.console import Console
from rich.table import Table

from shoal.proto.memory import keep_freed_memory
from shoal.proto.transport import MAXIMUM_MESSAGE_BYTES

Options = list[tuple[str, Any]]

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


def limits() -> Options:
    """What messages of this size need in any case."""
    sizes = "grpc.max_send_message_length", "grpc.max_receive_message_length"
    return [(name, MAXIMUM_MESSAGE_BYTES) for name in sizes]


class _Echo(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Answers with as many bytes as the first eight of the request say."""

    def __init__(self) -> None:
        self._answers: dict[int, bytes] = {}

    def service(self, _: Any) -> Any:
        return grpc.unary_unary_rpc_method_handler(self._answer)

    def _answer(self, request: bytes, _: Any) -> bytes:
        size = int.from_bytes(request[:8], "little")
        return self._answers.setdefault(size, bytes(size))


def serve(options: Options) -> None:
    """Serve until the process is ended; prints the port."""
    server = grpc.server(futures.ThreadPoolExecutor(2), options=options)
    server.add_generic_rpc_handlers((_Echo(),))
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    server.start()
    server.wait_for_termination()


def seconds(call: Callable[[bytes], bytes], up: int, down: int) -> float:
    """Time of one exchange."""
    request = down.to_bytes(8, "little") + bytes(up)
    began = time.perf_counter()
    call(request)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--serve", metavar="JSON", help=argparse.SUPPRESS)
    given = parser.parse_args()
    keep_freed_memory()
    if given.serve is not None:
        serve([(name, value) for name, value in json.loads(given.serve)])
        return
    processes = []
    calls: dict[str, Callable[[bytes], bytes]] = {}
    try:
        for name, options in SETS.items():
            command = [sys.executable, __file__, "--serve", json.dumps(limits() + options)]
            processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            assert processes[-1].stdout is not None
            address = f"127.0.0.1:{processes[-1].stdout.readline().strip()}"
            channel = grpc.insecure_channel(address, options=limits() + options)
            calls[name] = channel.unary_unary("/bare/Echo")
        names = list(SETS)
        for kind, (up, down) in SIZES.items():
            # Each round begins with another set: who comes first finds colder caches.
            rounds = [
                {name: seconds(calls[name], up, down) for name in names[turn:] + names[:turn]}
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
        for process in processes:
            process.kill()
            process.wait()


if __name__ == "__main__":
    main()
