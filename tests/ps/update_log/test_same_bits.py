"""A server that died has the bits that it would have: of each optimizer, each dtype of rows.

A job has a table for each of their pairs, and two servers, each of which keeps the other's log.
"""

import random

import numpy as np
import pytest

from shoal.native.initializers import InitializerSpec
from shoal.native.optimizers import KINDS, OptimizerSpec
from tests.ps.caller import model_spec
from tests.ps.logged import DIM, POINTS, POINTS_OF_UPDATES, SIZE, STATE
from tests.ps.update_log.test_log_of_updates import Master, protected

pytestmark = pytest.mark.slow

OPTIMIZERS = {
    **{kind: OptimizerSpec(kind) for kind in KINDS},
    "nesterov": OptimizerSpec("momentum", {"nesterov": True}),
    "amsgrad": OptimizerSpec("adam", {"amsgrad": True, "clipnorm": 1.0}),
    "centered": OptimizerSpec("rmsprop", {"centered": True, "momentum": 0.9}),
    "clipped": OptimizerSpec("momentum", {"clipvalue": 0.5, "weight_decay": 0.01}),
}
DTYPES = ["", "bfloat16", "float16"]


def spec_of(dense):
    """Tables of all optimizers and dtypes of rows, and dense variables of one optimizer."""
    names = [f"{name}-{dtype}" for name in OPTIMIZERS for dtype in DTYPES]
    spec = model_spec(
        DIM, names, SIZE, STATE, optimizer=dense.to_json(), initial=InitializerSpec("uniform")
    )
    for table in spec.tables:
        name, table.value_dtype = table.name.split("-")
        table.optimizer = OPTIMIZERS[name].to_json()
    return spec


@pytest.mark.parametrize(
    ("dense", "synchronous"),
    [("adam", False), ("nesterov", False), ("ftrl", False), ("momentum", True), ("amsgrad", True)],
)
def test_rows_slots_and_dense_values_of_a_server_that_died(world, dense, synchronous):
    draw = random.Random(dense)
    job = world(2, spec=spec_of(OPTIMIZERS[dense]), synchronous=synchronous)
    master = Master(job)

    def push():
        ids = np.array(draw.sample(range(12), draw.randrange(1, 6)), np.int64) * 9973
        master.push(draw.randrange(3), ids, draw)
        if not synchronous:
            master.waiting.clear()
        elif draw.random() < 0.5:
            master.update(draw.randint(1, len(master.waiting)))
        job.same()

    for number in range(9):
        if number % 4 == 3:
            job.checkpoint(draw.choice(["begun", "written", "complete", "told"]))
        elif number:
            protected(job)
            points = POINTS_OF_UPDATES if synchronous else POINTS
            job.faults.armed = draw.choice([each for each in points if each != "log-replaying"])
        push()
    assert sum(job.incarnations) > 0

    # By a checkpoint alone, as without a log.
    if master.waiting:
        master.update(len(master.waiting))
    job.faults.armed = ""
    job.checkpoint()
    for index in range(2):
        job.kill(index)
    for index in range(2):
        job.start(index, replay=False)
        job.meet(index)
    job.same()
    push()
