"""Large updates by several threads: the bits of one thread's, beside whatever else is at work."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal.native.optimizers import OptimizerSpec
from shoal.native.rowstore import MAX_THREADS, use_cores
from tests.examples import examples
from tests.native.strategies import store
from tests.native.test_concurrency import together
from tests.waiting import until

SHARED_BYTES, PART_BYTES = 8 << 20, 512 << 10  # native/run.h
HELPERS = "updates"
OPTIMIZERS = {
    "sgd": OptimizerSpec("sgd"),
    "decay": OptimizerSpec("sgd", {"weight_decay": 0.01, "clipnorm": 0.5}),
    "adagrad": OptimizerSpec("adagrad"),
    "rows": OptimizerSpec("rowwise_adagrad"),
    "adam": OptimizerSpec("adam"),
    "ftrl": OptimizerSpec("ftrl"),
}


@pytest.fixture(autouse=True)
def many_cores():
    use_cores(MAX_THREADS)
    yield
    use_cores(None)


def helpers():
    """The threads of this process that help, and the nanoseconds for which each has run."""
    found = {}
    for thread in Path("/proc/self/task").iterdir():
        if (thread / "comm").read_text().strip() == HELPERS:
            found[thread.name] = int((thread / "schedstat").read_text().split()[0])
    return found


def row_bytes(table):
    width = 4 if table.value_dtype == "float32" else 2
    return table.dim * width + 4 * len(table.slot_names) * table.slot_width


def rows_for(table):
    """As many rows as are updated by several threads, and a few; and how many are in a part."""
    return SHARED_BYTES // row_bytes(table) + 3, PART_BYTES // row_bytes(table)


def contents(table):
    """All that a store holds, by id, as bytes."""
    columns = {"ids": [], "values": [], "versions": [], "uses": []}
    columns |= {name: [] for name in table.slot_names}
    for ids, values, slots, versions, uses in table.export():
        found = {"ids": ids, "values": values, "versions": versions, "uses": uses, **slots}
        for name, column in found.items():
            columns[name].append(column.copy())
    whole = {name: np.concatenate(each) for name, each in columns.items() if each}
    order = np.argsort(whole["ids"]) if whole else []
    rows = {name: column[order].tobytes() for name, column in whole.items()}
    counted = [np.stack([a, b, c.astype(np.int64)]) for a, b, c in table.export_counting()]
    if counted:
        joined = np.concatenate(counted, axis=1)
        rows["counted"] = joined[:, np.argsort(joined[0])].tobytes()
    return rows


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=examples(40))
@given(data=st.data())
def test_several_threads_come_to_what_one_does(data):
    """Rows, slots, versions, use counts and counts, of new rows and old; also where ids repeat."""
    options = {
        "dim": data.draw(st.sampled_from([64, 300, 1024, 4096])),
        "optimizer": OPTIMIZERS[data.draw(st.sampled_from(sorted(OPTIMIZERS)))],
        "value_dtype": data.draw(st.sampled_from(["float32", "bfloat16", "float16"])),
        "admit_after": data.draw(st.sampled_from([1, 2, 3])),
    }
    one, several = store(**options), store(**options)
    count, part = rows_for(one)
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    every = random.permutation(2 * count) - count
    use_cores(1)
    known = every[: int(data.draw(st.sampled_from([0, 0.8, 0.99, 0.999, 1])) * every.size)]
    for table in (one, several):
        for step in range(1, 4):
            start = np.full((known.size, one.dim), 0.25, np.float32)
            table.update(known, start, learning_rate=0.1, step=step)
    for step in range(4, data.draw(st.integers(5, 7))):
        ids = random.permutation(every)[:count]
        if data.draw(st.booleans()):  # the first of one part, last in the part before
            ids[part - 1 : count - 1 : part] = ids[part:count:part]
        scale = data.draw(st.sampled_from([1.0, 0.125]))
        gradients = random.standard_normal((count, one.dim), np.float32)
        for table, cores in ((one, 1), (several, MAX_THREADS)):
            use_cores(cores)
            table.update(ids, gradients, learning_rate=0.1, step=step, gradient_scale=scale)
    assert contents(one) == contents(several)


def test_helpers_take_their_part():
    table = store(1024, "adam")
    count, _ = rows_for(table)
    ids, gradients = np.arange(count), np.ones((count, 1024), np.float32)
    table.update(ids, gradients, learning_rate=0.1, step=1)
    before = until("helpers", lambda: len(found := helpers()) == MAX_THREADS - 1 and found)

    def helped():
        """More than it takes to find that nothing is left to do."""
        table.update(ids, gradients, learning_rate=0.1, step=1)
        return any(run > before[name] + 2_000_000 for name, run in helpers().items())

    until("a helper's work", helped)


def test_beside_pulls_pushes_and_a_snapshot_no_update_is_lost_and_no_row_is_torn():
    """Each column counts the updates of its row, of large batches and small ones."""
    dim, threads, steps, small = 1024, 2, 12, 40
    table = store(dim, "sgd", "zeros")
    count, _ = rows_for(table)
    ids = np.arange(count)
    table.update(ids, np.ones((count, dim), np.float32), learning_rate=-1.0, step=1)

    def push(number):
        order = np.random.default_rng(number).permutation(count)
        gradients = np.ones((count, dim), np.float32)
        for step in range(2, steps + 2):
            table.update(order, gradients, learning_rate=-1.0, step=step)

    def push_few():
        gradients = np.ones((small, dim), np.float32)
        for step in range(2, 10 * steps + 2):
            table.update(ids[:small], gradients, learning_rate=-1.0, step=step)

    def pull():
        random = np.random.default_rng(9)
        for _ in range(20 * steps):
            found = table.lookup(random.integers(0, count, 100))
            assert (found == found[:, :1]).all()

    def snapshot():
        found = 0
        for _, values, _, _, uses in table.snapshot(2048):
            assert (values == 1).all()
            assert (uses == 1).all()
            found += len(values)
        assert found == count
        table.end_snapshot()

    table.begin_snapshot()
    together(*(lambda n=n: push(n) for n in range(threads)), push_few, pull, snapshot)
    expected = np.full(count, 1 + threads * steps, np.float32)
    expected[:small] += 10 * steps
    assert (table.lookup(ids) == expected[:, None]).all()


def test_new_rows_come_beside_other_stores_helpers():
    """One store at a time has helpers; all stores get their rows."""
    tables = [store(1024, "sgd", "zeros", admit_after=k % 2 + 1) for k in range(3)]
    count, _ = rows_for(tables[0])

    def push(table, first):
        for step in range(1, 4):
            ids = np.arange(first, first + count)
            table.update(ids, np.ones((count, 1024), np.float32), learning_rate=-1.0, step=step)

    together(*(lambda t=t, f=f: push(t, f) for t in tables for f in (0, count)))
    for table in tables:
        assert len(table) == 2 * count
        assert (table.lookup(np.arange(2 * count)) == 4 - table.admit_after).all()


FORKED = """
    import os
    import numpy as np
    from shoal.native.rowstore import use_cores
    from tests.native.test_crew import helpers, rows_for
    from tests.native.strategies import store
    from tests.waiting import until

    use_cores(4)
    table = store(1024, "sgd", "zeros")
    count, _ = rows_for(table)
    ids, ones = np.arange(count), np.ones((count, 1024), np.float32)

    def update(step):
        table.update(ids, ones, learning_rate=-1.0, step=step)
        until("helpers", lambda: len(helpers()) == 3, 100)

    update(1)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            use_cores(4)
            store(8)
            assert len(helpers()) == 0
            update(2)
            assert (table.lookup(ids) == 2).all()
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    update(2)
"""


@pytest.mark.skipif("SHOAL_SANITIZED" in os.environ, reason="sanitizers do not follow forks")
def test_a_forked_process_has_helpers_of_its_own():
    subprocess.run([sys.executable, "-c", textwrap.dedent(FORKED)], check=True, timeout=300)
