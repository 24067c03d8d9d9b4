"""Measure the servers' check for NaN and infinities, as a share of applying a push.

    python benchmarks/finite.py

Pushes of 26 tables with 4,096 rows of dim 16 each, Adagrad and Adam, in process; the two are
measured in turns. Prints the median of the ratios.
"""

import statistics
import time

import numpy as np

from shoal.native.initializers import InitializerSpec
from shoal.native.optimizers import OptimizerSpec
from shoal.proto import shoal_pb2 as pb
from shoal.ps.model.finite import check_finite
from shoal.ps.model.gradients import Gradients
from shoal.ps.model.tables import ServerModel

TABLES, ROWS, DIM, DENSE, TURNS = 26, 4096, 16, 500_000, 40


def model_of(rule):
    optimizer = OptimizerSpec(rule).to_json()
    tables = [
        pb.TableSpec(
            name=f"t{i}",
            dim=DIM,
            optimizer=optimizer,
            initializer=InitializerSpec("uniform").to_json(),
        )
        for i in range(TABLES)
    ]
    dense = [pb.VariableSpec(name="kernel", shape=[DENSE])]
    spec = pb.ModelSpec(tables=tables, trainable=dense, dense_optimizer=optimizer)
    model = ServerModel(spec, 0, 1, 16384)
    model.dense.initialize(np.zeros(DENSE, np.float32), np.zeros(0, np.float32))
    return model


def measure(rule):
    chance = np.random.default_rng(1)
    model = model_of(rule)
    ids = np.arange(ROWS, dtype=np.int64) * 7919
    tables = {t: (ids, chance.normal(size=(ROWS, DIM)).astype(np.float32)) for t in range(TABLES)}
    dense = chance.normal(size=DENSE).astype(np.float32), np.zeros(0, np.float32)
    push = Gradients(tables, dense, 0.01, 0, 0.0)
    ratios, checks = [], []
    for _ in range(TURNS):
        began = time.perf_counter()
        model.apply(push, model.ticket(push))
        middle = time.perf_counter()
        check_finite(push, pb.PushIdentity(), model.spec, 0, 1)
        ended = time.perf_counter()
        ratios.append((ended - middle) / (middle - began))
        checks.append(ended - middle)
    gigabytes = (TABLES * ROWS * DIM + DENSE) * 4 / 1e9
    print(
        f"{rule}: the check takes {statistics.median(ratios):.1%} of the update, "
        f"{gigabytes / statistics.median(checks):.0f} GB/s"
    )


if __name__ == "__main__":
    for each in ("adagrad", "adam"):
        measure(each)
