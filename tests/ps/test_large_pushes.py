"""Large pushes over real sockets: several threads of a server come to what one thread does."""

import numpy as np
import pytest

from shoal.native.initializers import InitializerSpec
from shoal.native.optimizers import OptimizerSpec
from shoal.native.rowstore import MAX_THREADS, RowStore, use_cores
from shoal.proto import shoal_pb2 as pb
from shoal.worker.servers.pushing import Push

DIM, ROWS, STEPS = 256, 10_000, 5
NONE = np.zeros(0, np.float32)
RULE, START = OptimizerSpec("adagrad"), InitializerSpec("uniform")


@pytest.fixture(autouse=True)
def many_cores():
    use_cores(MAX_THREADS)
    yield
    use_cores(None)


@pytest.mark.parametrize("servers", [1, 2])
def test_rows_are_those_of_one_thread(cluster, server_group, servers):
    """Of each server's part, at least 8 MiB of rows with their slots; some are new in each push."""
    made = cluster(servers)
    group = server_group(made)
    table = pb.TableSpec(
        name="items",
        dim=DIM,
        seed=3,
        optimizer=RULE.to_json(),
        initializer=START.to_json(),
    )
    group.register(pb.ModelSpec(tables=[table], dense_optimizer=RULE.to_json()), NONE, NONE)
    reference = RowStore(DIM, RULE, START, 3)
    random = np.random.default_rng(0)
    for step in range(1, STEPS + 1):
        ids = random.permutation(ROWS + 100 * step)[:ROWS]
        gradients = random.standard_normal((ROWS, DIM), np.float32)
        pulled, times = [step - 1] * servers, [0.0] * servers
        group.push(Push({0: (ids, gradients)}, (NONE, NONE), 0.1, pulled, times, pulled, 0, 0))
        use_cores(1)
        reference.update(ids, gradients, learning_rate=0.1, step=step)
        use_cores(MAX_THREADS)
    seen = 0
    for server in made.servers:
        for ids, values, slots, _, uses in server.model.tables[0].export():
            assert values.tobytes() == reference.lookup(ids).tobytes()
            found = [reference.find(int(key)) for key in ids[::50]]
            for name, slot in slots.items():
                assert slot[::50].tobytes() == b"".join(row[1][name].tobytes() for row in found)
            assert uses[::50].tolist() == [row[3] for row in found]
            seen += len(ids)
    assert seen == len(reference)
