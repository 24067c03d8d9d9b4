"""One server's share of a checkpoint: speed against a plain write, and lookups beside it.

    python benchmarks/checkpoint.py [FOLDER]     default: /dev/shm, a tmpfs

Three million rows of dim 16 with Adagrad. In process, without gRPC.
"""

import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from shoal.checkpoints.storage import LocalStorage
from shoal.native.initializers import InitializerSpec
from shoal.native.optimizers import OptimizerSpec
from shoal.proto import shoal_pb2 as pb
from shoal.proto.routing import Routing
from shoal.ps.checkpoint import cut, write_share
from shoal.ps.pushes import PushRegister
from shoal.ps.tables import ServerModel

ROWS, DIM, LOOKUP, CALM_SECONDS, TURNS = 3_000_000, 16, 4096, 4.0, 2
STRIDE = 7919  # between ids


def filled():
    optimizer = OptimizerSpec("adagrad").to_json()
    table = pb.TableSpec(
        name="t", dim=DIM, optimizer=optimizer, initializer=InitializerSpec("uniform").to_json()
    )
    spec = pb.ModelSpec(tables=[table], dense_optimizer=optimizer)
    model = ServerModel(spec, 0, 1)
    model.initialize_dense(np.zeros(0, np.float32), np.zeros(0, np.float32))
    ones = np.ones((100_000, DIM), np.float32)
    for start in range(0, ROWS, len(ones)):
        ids = np.arange(start, start + len(ones), dtype=np.int64) * STRIDE
        model.tables[0].update(ids, ones, learning_rate=0.1, step=1)
    return model


def save(model, folder):
    folder.mkdir()
    at = cut(model, PushRegister())
    write_share(LocalStorage(folder), 0, Routing.even(1), model, at)


def lookups(model, ended):
    """Seconds of each lookup until ended()."""
    chance = np.random.default_rng(1)
    seconds = []
    while not ended():
        ids = chance.integers(0, ROWS, LOOKUP) * STRIDE
        before = time.perf_counter()
        model.tables[0].lookup(ids)
        seconds.append(time.perf_counter() - before)
    return seconds


def main(root):
    model = filled()
    for turn in range(TURNS):
        folder = root / str(turn)
        before = time.perf_counter()
        save(model, folder)
        took = time.perf_counter() - before
        data = b"".join(file.read_bytes() for file in folder.iterdir())
        before = time.perf_counter()
        (folder / "plain").write_bytes(data)
        plain = time.perf_counter() - before
        shutil.rmtree(folder)
        print(
            f"{len(data) / 1e6:.0f} MB: share {len(data) / took / 1e6:.0f} MB/s, "
            f"plain write {len(data) / plain / 1e6:.0f} MB/s, ratio {plain / took:.2f}"
        )
    end = time.monotonic() + CALM_SECONDS
    calm = np.percentile(lookups(model, lambda: time.monotonic() > end), 99) * 1e3
    saving = threading.Thread(target=save, args=(model, root / "last"))
    saving.start()
    beside = np.percentile(lookups(model, lambda: not saving.is_alive()), 99) * 1e3
    print(f"p99 of a lookup: {calm:.2f} ms, beside it {beside:.2f} ms, ratio {beside / calm:.1f}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if sys.argv[1:] else "/dev/shm") as name:
        main(Path(name))
