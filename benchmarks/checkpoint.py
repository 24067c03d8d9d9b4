"""One server's shard of a checkpoint: speed against a plain write, and pulls beside it.

    python -m benchmarks.checkpoint [--folder FOLDER] [--turns N]
        [--malloc-defaults] [--piece BYTES] [--nice N]

Three million rows of dim 16 with Adagrad; the checkpoint goes to FOLDER (default: /dev/shm, a
tmpfs). A server process and this one, which pulls 4,096 rows a call over a loopback socket, one
call after the other: for some seconds, then while a shard is written, in turns, since this kind
of machine's speed drifts.

Then the same in this process with lookups of a row store, without gRPC, and where their time
goes: CPU time of the thread, waiting for a processor (schedstat of Linux), and the rest, which is
waiting for locks, the interpreter's among them. The last flags are for this part: memory that is
not kept as servers keep theirs (proto/memory.py), bytes a piece, and the writing thread's niceness.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.server.parts import Server
from shoal.checkpoints.folders import begin
from shoal.files.storage import LocalStorage
from shoal.native.initializers import InitializerSpec
from shoal.native.optimizers import OptimizerSpec
from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.channels import rpc
from shoal.proto.memory import keep_freed_memory
from shoal.proto.values.routing import Routing
from shoal.ps.model.pushes import PushRegister
from shoal.ps.model.tables import ServerModel
from shoal.ps.saved import checkpoint
from shoal.ps.saved.checkpoint import cut, write_shard

ROWS, DIM, LOOKUP, CALM_SECONDS = 3_000_000, 16, 4096, 2.0

Call = Callable[[np.ndarray], object]
Times = list[tuple[float, float, float]]
"""Of each call: seconds, seconds of CPU, seconds of waiting for a processor."""


def filled() -> ServerModel:
    """A server's model, in this process."""
    optimizer = OptimizerSpec("adagrad").to_json()
    table = pb.TableSpec(
        name="t", dim=DIM, optimizer=optimizer, initializer=InitializerSpec("uniform").to_json()
    )
    spec = pb.ModelSpec(tables=[table], dense_optimizer=optimizer)
    model = ServerModel(spec, 0, 1, 16384)
    model.dense.initialize(np.zeros(0, np.float32), np.zeros(0, np.float32))
    ones = np.ones((100_000, DIM), np.float32)
    for start in range(0, ROWS, len(ones)):
        ids = np.arange(start, start + len(ones), dtype=np.int64)
        model.tables[0].update(ids, ones, learning_rate=0.1, step=1)
    return model


def timed(call: Call, chance: np.random.Generator, ended: Callable[[], bool]) -> Times:
    """The times of calls with random ids, until ended()."""
    times = []
    with Path(f"/proc/self/task/{threading.get_native_id()}/schedstat").open("rb") as schedstat:

        def now() -> np.ndarray:
            waited = int(os.pread(schedstat.fileno(), 100, 0).split()[1]) / 1e9
            return np.array((time.perf_counter(), time.thread_time(), waited))

        while not ended():
            ids = np.unique(chance.integers(0, ROWS, LOOKUP))
            before = now()
            call(ids)
            times.append(tuple(now() - before))
    return times


def compare(what: str, call: Call, save: Callable[[Path], None], folder: Path, turns: int) -> None:
    """Print the speed of `save` into `folder`, which is removed, and what it does to `call`."""
    chance = np.random.default_rng(1)
    calm: Times = []
    beside: Times = []
    for _ in range(turns):
        end = time.monotonic() + CALM_SECONDS
        calm += timed(call, chance, lambda end=end: time.monotonic() > end)
        alone = speed(save, folder)
        saving = threading.Thread(target=save, args=(folder,))
        began = time.perf_counter()
        saving.start()
        beside += timed(call, chance, lambda saving=saving: not saving.is_alive())
        took = time.perf_counter() - began
        shutil.rmtree(folder)
        print(f"{what}: {alone}; beside calls it took {took:.2f} s", flush=True)
    print(f"{what} of {LOOKUP} rows: {len(calm)}, and {len(beside)} while a shard is written")
    both = [parts(each) for each in (calm, beside)]
    for name in ("all", *(PARTS if what == "lookup" else ())):
        for quantile in (50, 99):
            usual, then = (np.percentile(each[name], quantile) * 1e3 for each in both)
            ratio = f", ratio {then / usual:.2f}" if name == "all" else ""
            print(f"  {name}, percentile {quantile}: {usual:.2f} ms, {then:.2f} ms{ratio}")


PARTS = ("CPU", "waiting for a processor", "waiting for locks")


def parts(times: Times) -> dict[str, np.ndarray]:
    """The times by what they are of, seconds."""
    whole, *first = np.array(times).T
    rest = np.maximum(0, whole - sum(first))
    return {"all": whole, **dict(zip(PARTS, (*first, rest), strict=True))}


def speed(save: Callable[[Path], None], folder: Path) -> str:
    """Report the speed of saving one shard, and of a plain write of the same bytes."""
    before = time.perf_counter()
    save(folder)
    took = time.perf_counter() - before
    data = b"".join(file.read_bytes() for file in folder.rglob("*") if file.is_file())
    before = time.perf_counter()
    (folder / "plain").write_bytes(data)
    plain = time.perf_counter() - before
    shutil.rmtree(folder)
    return (
        f"{len(data) / 1e6:.0f} MB at {len(data) / took / 1e6:.0f} MB/s, "
        f"plain write {len(data) / plain / 1e6:.0f} MB/s, ratio {plain / took:.2f}"
    )


def over_grpc(folder: Path, turns: int) -> None:
    """Pulls from a server process."""
    server = Server(folder, DIM, rows=ROWS)
    connection = rpc.Connection(server.address)
    number = 0

    def save(root: Path) -> None:
        nonlocal number
        number += 1
        of = {"number": number, "nonce": begin(LocalStorage(root), number, "bench").nonce}
        connection.call(methods.BEGIN_CHECKPOINT, pb.BeginCheckpointRequest(**of))
        connection.call(methods.WRITE_SHARD, pb.WriteShardRequest(**of))

    try:
        compare("pull", server.pull, save, server.checkpoints, turns)
    finally:
        connection.close()
        server.close()


def in_process(folder: Path, turns: int, niceness: int) -> None:
    """Lookups of a row store in this process."""
    model = filled()

    def save(root: Path) -> None:
        attempt = begin(LocalStorage(root), 1, "bench")
        if threading.current_thread() is not threading.main_thread():
            # Of this thread alone, on Linux.
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness)
        at = cut(model, PushRegister())
        write_shard(attempt, 0, Routing.even(1), model, at)

    compare("lookup", lambda ids: model.tables[0].lookup(ids), save, folder / "checkpoints", turns)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", default="/dev/shm")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--malloc-defaults", action="store_true")
    parser.add_argument("--piece", type=int, default=checkpoint.PIECE_BYTES)
    parser.add_argument("--nice", type=int, default=0)
    options = parser.parse_args()
    if not options.malloc_defaults:
        keep_freed_memory()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        over_grpc(Path(name), options.turns)
        checkpoint.PIECE_BYTES = options.piece
        in_process(Path(name), options.turns, options.nice)


if __name__ == "__main__":
    main()
