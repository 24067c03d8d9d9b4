"""Restoring a checkpoint, against reading its bytes once.

    python -m benchmarks.restore [--gigabytes N] [--folder FOLDER] [--turns N] [--cached]
        [--continued]

Two servers' shards of a table of dim 16 with Adagrad are written to FOLDER (default: the system's
for temporary files) and restored onto 1, 2 and 4 servers: that many processes at once, each with
the threads that a server takes, timed from a common start, without the interpreter's own, until
the last is through. In turns with that, since this kind of machine's speed drifts, the same
files are read once by one process with as many threads: only read, and read and compared with
their checksums. Before each the files are put out of the system's memory, unless --cached.

With --continued the servers are those of another job that begins with --continue-from. The memory
of a server is the most that its process has held meanwhile, beyond what it held before, by the
bytes of its table.

A ratio is the time of a restore by the time of reading in the same turn. Seconds of CPU tell on a
busy machine what times do not. The files are removed at
the end.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import xxhash

from shoal.checkpoints.folders import Checkpoint, begin, complete
from shoal.checkpoints.threads import cores, for_each
from shoal.files.storage import LocalStorage, open_storage
from shoal.native import ids as native_ids
from shoal.native.initializers import InitializerSpec
from shoal.native.optimizers import OptimizerSpec
from shoal.proto import shoal_pb2 as pb
from shoal.proto.memory import keep_freed_memory
from shoal.proto.values.routing import Routing
from shoal.ps.model.pushes import PushRegister
from shoal.ps.model.tables import ServerModel
from shoal.ps.saved.checkpoint import cut, write_shard
from shoal.ps.saved.continued import Continued
from shoal.ps.saved.progress import Progress
from shoal.ps.saved.restoring import restore

DIM, WRITERS, SERVERS = 16, 2, (1, 2, 4)
ROW_BYTES = 8 + 2 * 4 * DIM + 8
CHUNK = 200_000


def specification() -> pb.ModelSpec:
    """A table of dim 16 with Adagrad, and no dense variables."""
    optimizer = OptimizerSpec("adagrad").to_json()
    initializer = InitializerSpec("uniform").to_json()
    table = pb.TableSpec(name="t", dim=DIM, optimizer=optimizer, initializer=initializer)
    return pb.ModelSpec(tables=[table], dense_optimizer=optimizer)


def write(root: LocalStorage, rows: int) -> Checkpoint:
    """A checkpoint of so many rows, by one server after the other."""
    attempt, routing = begin(root, 1, "benchmark"), Routing.even(WRITERS)
    shards = []
    for server in range(WRITERS):
        model = ServerModel(specification(), server, WRITERS, 16384 // WRITERS)
        model.dense.initialize(np.zeros(0, np.float32), np.zeros(0, np.float32))
        ones = np.ones((CHUNK, DIM), np.float32)
        for start in range(0, rows, CHUNK):
            ids = np.arange(start, min(start + CHUNK, rows), dtype=np.int64) * 7919
            ids = ids[routing.owners[native_ids.slot_of(ids)] == server]
            model.tables[0].update(ids, ones[: ids.size], learning_rate=0.1, step=1)
        at = cut(model, PushRegister())
        shards.append(write_shard(attempt, server, routing, model, at))
        del model
    complete(attempt, shards, {})
    return Checkpoint(root, 1)


def read(checkpoint: Checkpoint, *, checked: bool) -> None:
    """Read every page of the checkpoint's files once."""

    def page(place: tuple[str, int, int]) -> None:
        data = checkpoint.folder.read_part(*place)
        if checked:
            xxhash.xxh3_64_hexdigest(data)

    for_each(page, places(checkpoint))


def places(checkpoint: Checkpoint) -> list[tuple[str, int, int]]:
    """File, first byte and size of each page."""
    found = []
    for shard in checkpoint.shards:
        for file in shard["files"]:
            start = 0
            for each in file["pages"]:
                found.append((file["name"], start, each["bytes"]))
                start += each["bytes"]
    return found


def held(field: str) -> int:
    """Bytes of memory of this process: VmRSS now, or VmHWM, the most so far."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith(field))


def serve(root: str, server: int, servers: int, continued: bool, pipe: Connection) -> None:
    """One server's process."""
    keep_freed_memory()
    checkpoint = Checkpoint(LocalStorage(root), 1)
    routing = Routing.even(servers)
    given = Continued(root, server, routing, Progress(), open_storage)
    pipe.send("ready")
    pipe.recv()
    before, memory = time.process_time(), held("VmRSS")
    if continued:
        model = given.read(checkpoint.model)
    else:
        model = restore(checkpoint, server, routing, PushRegister(), Progress())
    used = time.process_time() - before
    table = model.tables[0]
    pipe.send((len(table), used, (held("VmHWM") - memory) / table.memory_bytes()))


def restored(
    root: Path, servers: int, rows: int, continued: bool, uncache: Callable[[], None]
) -> tuple[float, float, float]:
    """Seconds until so many servers have restored all rows, their CPU, and the largest memory.

    The memory is by the bytes of the server's table.
    """
    spawn = multiprocessing.get_context("spawn")
    ends, processes = [], []
    for server in range(servers):
        ours, theirs = spawn.Pipe()
        process = spawn.Process(target=serve, args=(str(root), server, servers, continued, theirs))
        process.start()
        ends.append(ours)
        processes.append(process)
    for end in ends:
        end.recv()
    uncache()
    before = time.perf_counter()
    for end in ends:
        end.send("go")
    answers = [end.recv() for end in ends]
    took = time.perf_counter() - before
    found, cpu = (sum(each) for each in list(zip(*answers, strict=True))[:2])
    for process in processes:
        process.join()
    if found != rows:
        raise SystemExit(f"{found} rows restored, of {rows}")
    return took, cpu, max(memory for *_, memory in answers)


def put_out(checkpoint: Checkpoint) -> None:
    """Drop the checkpoint's files from the system's page cache."""
    for shard in checkpoint.shards:
        for file in shard["files"]:
            descriptor = os.open(checkpoint.folder.path(file["name"]), os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=4.0)
    parser.add_argument("--folder", default=None)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--cached", action="store_true")
    parser.add_argument("--continued", action="store_true")
    options = parser.parse_args()
    rows = int(options.gigabytes * 1e9 / ROW_BYTES)
    ratios: dict[tuple[int, str], list[float]] = {}
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        checkpoint = write(LocalStorage(name), rows)
        size = sum(size for _, _, size in places(checkpoint))
        print(f"{size / 1e9:.2f} GB, {rows:,} rows, {cores()} cores", flush=True)

        def uncache() -> None:
            if not options.cached:
                put_out(checkpoint)

        for turn in range(options.turns):
            took = {}
            for what, checked in (("read", False), ("read and checked", True)):
                uncache()
                before, used = time.perf_counter(), time.process_time()
                read(checkpoint, checked=checked)
                took[what] = time.perf_counter() - before
                used = time.process_time() - used
                print(f"turn {turn}: {what} in {took[what]:.2f} s, CPU {used:.2f} s", flush=True)
            for servers in SERVERS:
                seconds, cpu, memory = restored(
                    Path(name), servers, rows, options.continued, uncache
                )
                for what, reading in took.items():
                    ratios.setdefault((servers, what), []).append(seconds / reading)
                print(
                    f"turn {turn}: onto {servers} in {seconds:.2f} s, CPU {cpu:.2f} s, memory of a "
                    f"server by its table {memory:.2f}",
                    flush=True,
                )
    for (servers, what), each in ratios.items():
        median, least, most = statistics.median(each), min(each), max(each)
        print(f"onto {servers} by {what}: {median:.2f} ({least:.2f} to {most:.2f})")


if __name__ == "__main__":
    main()
