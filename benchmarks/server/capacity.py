"""Measure what one server carries: steps a second of one core, and bytes a row.

    python benchmarks/server/capacity.py [--ids N] [--seconds S]

Clients without TensorFlow pull and push what a worker of the end-to-end benchmark does
(benchmarks/end_to_end: minibatches of 4096 of the SYNTHETIC stream, tables of 1 and 16 columns
over the same ids, the dense block of its network), one after the other and as fast as they
can. The server's own CPU time by the steps it served gives the steps a second of one core; by
the steps a second of one worker, that is the number of workers. The same with one client that
has a row cache of 64 MB (--row-cache), by its staleness.

Then 10 million rows of 16 columns with Adagrad are pushed, and the server's resident memory
is read. Prints a table and writes build/bench/capacity.json in the form of native.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from parts import RATE, master_of, start_server
from rich.console import Console
from rich.table import Table

from shoal.native.initializers import InitializerSpec
from shoal.native.optimizers import OptimizerSpec
from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.channels import rpc
from shoal.proto.memory import keep_freed_memory
from shoal.worker.servers.group import ServerGroup
from shoal.worker.servers.pushing import Push

BATCH = 4096
BATCHES = 32
DENSE = 429 * 256 + 256 + 256 * 128 + 128 + 128 * 64 + 64 + 64 + 1 + 13 + 1
"""Weights of the network's dense layers."""
ROWS = 10_000_000
OUTPUT = Path("build/bench/capacity.json")
CACHE_BYTES = 64 << 20
STREAM = Path("build/bench")
TICKS = os.sysconf("SC_CLK_TCK")
ADAGRAD = OptimizerSpec("adagrad").to_json()


def spec(dims: tuple[int, ...], dense: int) -> pb.ModelSpec:
    uniform = InitializerSpec("uniform").to_json()
    return pb.ModelSpec(
        tables=[
            pb.TableSpec(name=f"t{dim}", dim=dim, optimizer=ADAGRAD, initializer=uniform)
            for dim in dims
        ],
        trainable=[pb.VariableSpec(name="dense", shape=[dense])] if dense else [],
        dense_optimizer=ADAGRAD,
    )


def client(master: str, number: int, ids: int, seconds: float, staleness: int) -> None:
    """Train for so long; prints the steps. staleness: of a row cache, -1 for none."""
    keep_freed_memory()
    table = pq.read_table(STREAM / f"criteo-{ids}" / "train.parquet")
    table = table.slice(number * BATCH * BATCHES, BATCH * BATCHES)
    columns = np.stack([table[f"c{i + 1}"].to_numpy() for i in range(26)], axis=1)
    batches = [
        np.ascontiguousarray(columns[first : first + BATCH]).reshape(-1)
        for first in range(0, len(columns), BATCH)
    ]
    group = ServerGroup(
        rpc.Connection(master),
        number,
        0,
        threading.Event(),
        cache_bytes=CACHE_BYTES if staleness >= 0 else 0,
        cache_staleness=max(0, staleness),
    )
    none = np.zeros(0, np.float32)
    dense = np.zeros(DENSE, np.float32)
    group.register(spec((1, 16), DENSE), dense, none)

    def step(batch: np.ndarray) -> None:
        pulled = group.pull([[batch], [batch]], training=True)
        tables = {t: (pulled.ids[t].unique, 0.01 * rows) for t, rows in enumerate(pulled.rows)}
        group.push(
            Push(tables, (dense, none), RATE, pulled.versions, pulled.times, pulled.applied, 0, 0)
        )

    for batch in batches:
        step(batch)
    print("ready", flush=True)
    sys.stdin.readline()
    end, done = time.perf_counter() + seconds, 0
    while time.perf_counter() < end:
        step(batches[done % len(batches)])
        done += 1
    unique = float(np.mean([np.unique(batch).size for batch in batches]))
    hits = cache.hits / cache.asked if (cache := group.pulls.cache) else 0.0
    print(json.dumps({"steps": done, "unique": unique, "hits": hits}), flush=True)


def cpu_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def resident(process: int) -> int:
    """Bytes of memory that the process holds."""
    status = Path(f"/proc/{process}/status").read_text()
    return 1024 * int(status.split("VmRSS:")[1].split()[0])


def capacity(
    folder: Path, ids: int, seconds: float, clients: int, staleness: int = -1
) -> dict[str, float]:
    """CPU seconds of the server a step, and steps a second, with so many clients."""
    server, address = start_server(folder)
    master, port = master_of(address)
    command = [sys.executable, __file__, "--client", f"127.0.0.1:{port}", "--ids", str(ids)]
    processes = [
        subprocess.Popen(
            [
                *command,
                *("--number", str(number), "--seconds", str(seconds)),
                *("--staleness", str(staleness)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(clients)
    ]
    try:
        for each in processes:
            assert each.stdout is not None
            assert each.stdout.readline() == "ready\n"
        cpu, began = cpu_seconds(server.pid), time.perf_counter()
        answers = [json.loads(each.communicate("go\n")[0]) for each in processes]
        spent, took = cpu_seconds(server.pid) - cpu, time.perf_counter() - began
        steps = sum(answer["steps"] for answer in answers)
        return {
            "cpu": spent / steps,
            "rate": steps / took,
            "unique": answers[0]["unique"],
            "hits": answers[0]["hits"],
            "busy": spent / took,
        }
    finally:
        for each in (*processes, server):
            each.kill()
            each.wait()
        master.stop(None)


def bytes_a_row(folder: Path) -> float:
    """Resident memory of a server a row of 16 columns with Adagrad, of 10 million rows."""
    server, address = start_server(folder)
    master, port = master_of(address)
    connection = rpc.Connection(f"127.0.0.1:{port}")
    group = ServerGroup(connection, 0, 0, threading.Event())
    none = np.zeros(0, np.float32)
    try:
        group.register(spec((16,), 0), none, none)
        chunk = 1 << 16
        zeros = np.zeros((chunk, 16), np.float32)
        group.push(Push({0: (np.arange(chunk), zeros)}, (none, none), RATE, [0], [0.0], [0], 0, 0))
        before = resident(server.pid)
        for first in range(chunk, ROWS + chunk, chunk):
            some = np.arange(first, first + chunk)
            group.push(Push({0: (some, zeros)}, (none, none), RATE, [0], [0.0], [0], 0, 0))
        to_server = rpc.Connection(address)
        rows = to_server.call(methods.STATUS, pb.ServerStatusRequest()).tables[0].rows
        to_server.close()
        return (resident(server.pid) - before) / (rows - chunk)
    finally:
        group.close()
        connection.close()
        server.kill()
        server.wait()
        master.stop(None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ids", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--client", default="", help=argparse.SUPPRESS)
    parser.add_argument("--number", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--staleness", type=int, default=-1, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.client:
        client(options.client, options.number, options.ids, options.seconds, options.staleness)
        return
    if not (STREAM / f"criteo-{options.ids}").is_dir():
        raise SystemExit(
            f"Error: --ids {options.ids}: there is no such stream yet; run "
            f"benchmarks/end_to_end/run.py --ids {options.ids} first"
        )
    lines: list[dict[str, Any]] = []
    table = Table(title="what one server carries")
    for heading in ("", "value", "unit"):
        table.add_column(heading)

    def note(name: str, value: float, unit: str, clients: int = 0) -> None:
        common = {"operation": "step", "dim": 16, "ids": options.ids, "threads": clients}
        lines.append({"name": name, **common, "value": value, "unit": unit})
        lines[-1] |= {"against": "", "ratio": None}
        label = f"{name}, {clients} clients" if clients else name
        table.add_row(label, f"{value:,}", unit)

    with tempfile.TemporaryDirectory() as folder:
        for clients in (1, 2):
            found = capacity(Path(folder), options.ids, options.seconds, clients)
            note("distinct ids", round(found["unique"]), "a step", clients)
            note("served", round(found["rate"], 1), "steps/s", clients)
            note("server busy", round(found["busy"], 2), "cores", clients)
            note("server", round(1e3 * found["cpu"], 2), "CPU ms a step", clients)
            note("one core", round(1 / found["cpu"], 1), "steps/s", clients)
            samples = round(BATCH / found["cpu"])
            note("one core", samples, "samples/s", clients)
        for staleness in (2, 8, 24):
            found = capacity(Path(folder), options.ids, options.seconds, 1, staleness)
            name = f"row cache, staleness {staleness}"
            note(f"{name}: found in it", round(found["hits"], 3), "of the ids")
            note(f"{name}: served", round(found["rate"], 1), "steps/s")
            note(f"{name}: server", round(1e3 * found["cpu"], 2), "CPU ms a step")
        note("memory of 10 million rows", round(bytes_a_row(Path(folder)), 1), "bytes a row")
    Console(width=120).print(table)
    OUTPUT.write_text(json.dumps(lines, indent=1) + "\n")
    print(f"written to {OUTPUT}")


if __name__ == "__main__":
    main()
