"""Compare the cost of channels: plain TCP, a Unix socket, and mutual TLS over TCP, in turns.

    python benchmarks/server/channels.py [--rounds N]

Each kind has a server process of its own, which is served and called as a job's are; it answers
with as many bytes as it is asked for. The kinds take turns, call by call. Prints, per size, the
median time of a call and the median of its speed by that of plain TCP in the same round.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import tempfile
import threading
import time
from multiprocessing.connection import Connection as Pipe

from rich.console import Console
from rich.table import Table

from shoal.proto import methods
from shoal.proto.channels import rpc, serving
from shoal.proto.identity import Identity
from shoal.proto.memory import keep_freed_memory
from shoal.proto.wire.transport import peer_name
from shoal.security.authority import Authority

TOKEN = "benchmark"
PEER = peer_name(TOKEN, "ps", 0)
SIZES = {"10 kB each way": (10_000, 10_000), "4 MB up": (4_000_000, 8), "4 MB down": (8, 4_000_000)}


def serve(address: str, identity: Identity | None, pipe: Pipe) -> None:
    keep_freed_memory()
    answers: dict[int, bytes] = {}

    def answer(sent: memoryview) -> bytes:
        size = int.from_bytes(sent[:8], "little")
        return answers.setdefault(size, bytes(size))

    _server, port = serving.serve({methods.ASSIGN_ROWS: answer}, address, 4, PEER, identity)
    pipe.send(address if address.startswith("unix:") else f"127.0.0.1:{port}")
    threading.Event().wait()


def seconds(connection: rpc.Connection, up: int, down: int) -> float:
    """Time of one exchange."""
    request = down.to_bytes(8, "little") + bytes(up - 8)
    began = time.perf_counter()
    connection.call(methods.ASSIGN_ROWS, request)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=200)
    given = parser.parse_args()
    keep_freed_memory()
    authority = Authority.made("benchmark")
    spawn = multiprocessing.get_context("spawn")
    processes, connections = [], {}
    with tempfile.TemporaryDirectory() as folder:
        kinds = {
            "TCP": ("127.0.0.1:0", None, None),
            "Unix socket": (f"unix:{folder}/ps", None, None),
            "TCP, mutual TLS": ("127.0.0.1:0", authority.issue("ps"), authority.issue("worker")),
        }
        try:
            for name, (address, server, worker) in kinds.items():
                ours, theirs = spawn.Pipe()
                process = spawn.Process(target=serve, args=(address, server, theirs), daemon=True)
                process.start()
                processes.append(process)
                connections[name] = rpc.Connection(ours.recv(), peer=PEER, identity=worker)
            names = list(kinds)
            for kind, (up, down) in SIZES.items():
                rounds = [
                    {name: seconds(connections[name], up, down) for name in turned}
                    for number in range(given.rounds + 1)
                    for turned in [names[number % 3 :] + names[: number % 3]]
                ][1:]
                table = Table(title=kind)
                for heading in ("channel", "ms", "speed by plain TCP's"):
                    table.add_column(heading, justify="left" if heading == "channel" else "right")
                for name in names:
                    median = statistics.median(each[name] for each in rounds)
                    ratio = statistics.median(each["TCP"] / each[name] for each in rounds)
                    table.add_row(name, f"{median * 1e3:.2f}", f"{ratio:.2f}")
                Console(width=80).print(table)
        finally:
            for connection in connections.values():
                connection.close()
            for process in processes:
                process.kill()
                process.join()


if __name__ == "__main__":
    main()
