"""The row store against a dictionary, and what it refuses."""

import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from shoal.native.ids import mix64
from shoal.native.initializers import InitializerSpec
from shoal.native.optimizers import OptimizerSpec
from shoal.native.rowstore import MANY_USES, MAX_ROWS, MAX_STEP, RowStore
from tests.examples import examples
from tests.native.model import assert_same_rows, rows_of
from tests.native.strategies import EXTREMES, any_id, dims, exported, few_ids, id_arrays, store

RATE = np.float32(0.1)
EPSILON = np.float32(1e-7)


def adagrad(values, accumulator, gradient):
    """One Adagrad step in float32, in the order of operations of Keras."""
    accumulator = accumulator + gradient * gradient
    return values - RATE * gradient / np.sqrt(accumulator + EPSILON), accumulator


class StoreAgainstDictionary(RuleBasedStateMachine):
    """Every operation on a store and on a dictionary of NumPy rows, bit for bit."""

    DIM = 3

    def __init__(self):
        super().__init__()
        self.table = store(self.DIM)
        self.rows = {}
        self.step = 0
        self.random = np.random.default_rng(1)

    def start(self, key):
        return store(self.DIM).lookup(np.array([key]))[0], np.full(self.DIM, 0.1, np.float32), 0, 0

    @rule(ids=id_arrays(few_ids, 60))
    def update(self, ids):
        self.step += 1
        gradients = self.random.standard_normal((len(ids), self.DIM)).astype(np.float32)
        ids.flags.writeable = gradients.flags.writeable = False
        self.table.update(ids, gradients, learning_rate=0.1, step=self.step)
        for key, gradient in zip(ids.tolist(), gradients, strict=True):
            values, accumulator, _, uses = self.rows.get(key, self.start(key))
            self.rows[key] = (*adagrad(values, accumulator, gradient), self.step, uses + 1)

    @rule(ids=id_arrays(any_id, 300))
    def insert(self, ids):
        self.table.insert(ids)
        for key in ids.tolist():
            self.rows.setdefault(key, self.start(key))

    @rule(ids=id_arrays(few_ids), missing=st.sampled_from(["initial", "default"]))
    def lookup(self, ids, missing):
        reads = np.array([100, 10])
        found = self.table.lookup(ids, missing=missing, reads=reads)
        misses = sum(key not in self.rows for key in ids.tolist())
        assert reads.tolist() == [100 + len(ids), 10 + misses]
        for key, values in zip(ids.tolist(), found, strict=True):
            if key in self.rows:
                assert (values == self.rows[key][0]).all()
            elif missing == "initial":
                assert (values == self.start(key)[0]).all()
            else:
                assert (values == 0).all()

    @precondition(lambda self: self.rows)
    @rule(data=st.data(), others=id_arrays(few_ids, 10))
    def remove(self, data, others):
        some = data.draw(st.lists(st.sampled_from(sorted(self.rows)), max_size=200))
        ids = np.concatenate([np.array(some, np.int64), others])
        present = set(ids.tolist()) & set(self.rows)
        assert self.table.remove(ids) == len(present)
        for key in present:
            del self.rows[key]

    @rule()
    def compact(self):
        self.table.compact()

    @rule(rows=st.sampled_from([0, 1, 5000, 100_000]))
    def reserve(self, rows):
        self.table.reserve(rows)

    @rule(ids=id_arrays(few_ids, 20), version=st.integers(0, 2**32 - 1), uses=st.integers(0, 5000))
    def assign(self, ids, version, uses):
        values = self.random.standard_normal((len(ids), self.DIM)).astype(np.float32)
        slot = np.abs(self.random.standard_normal((len(ids), self.DIM))).astype(np.float32)
        numbers = np.full(len(ids), version, np.int64), np.full(len(ids), uses, np.uint32)
        self.table.assign(ids, values, {"accumulator": slot}, *numbers)
        for key, row, accumulator in zip(ids.tolist(), values, slot, strict=True):
            self.rows[key] = row, accumulator, version, uses

    @invariant()
    def same_rows(self):
        assert len(self.table) == len(self.rows)
        found = exported(self.table, batch=1)
        assert found.keys() == self.rows.keys()
        for key, (values, accumulator, version, uses) in self.rows.items():
            assert key in self.table
            assert (found[key][0] == values).all()
            assert (found[key][1]["accumulator"] == accumulator).all()
            assert found[key][2:] == (version, min(uses, MANY_USES))


StoreAgainstDictionary.TestCase.settings = settings(
    max_examples=examples(40), stateful_step_count=20, deadline=None
)
test_store_against_dictionary = StoreAgainstDictionary.TestCase


@settings(max_examples=examples(60), deadline=None)
@given(ids=id_arrays(), dim=dims, data=st.data())
def test_every_width(ids, dim, data):
    """Lookups and SGD updates at any dim, repeats in order, against NumPy."""
    table = store(dim, "sgd", "normal")
    gradients = np.random.default_rng(len(ids)).standard_normal((len(ids), dim))
    gradients = gradients.astype(np.float32)
    before = table.lookup(ids)
    assert len(table) == 0
    table.update(ids, gradients, learning_rate=0.5, step=1)
    expected = dict(zip(ids.tolist(), before, strict=True))
    for key, gradient in zip(ids.tolist(), gradients, strict=True):
        expected[key] = expected[key] - np.float32(0.5) * gradient
    out = np.empty((len(ids), dim), np.float32)
    assert table.lookup(ids, out) is out
    for key, values in zip(ids.tolist(), out, strict=True):
        assert (values == expected[key]).all()


@settings(max_examples=examples(25), deadline=None)
@given(
    seed=st.integers(0, 99),
    count=st.integers(0, 9000),
    dim=st.sampled_from([1, 3, 16]),
    there=st.integers(0, 2000),
    reserved=st.sampled_from([0, 100, 20_000]),
    parts=st.sampled_from([(), ("slots",), ("numbers",), ("slots", "numbers")]),
)
def test_many_rows_assigned_by_threads(seed, count, dim, there, reserved, parts):
    """Against NumPy: over rows that are there and new ones, repeats in order, four threads."""
    random = np.random.default_rng(seed)
    table = store(dim, "adagrad", "normal")
    ids = random.integers(-(2**63), 2**63, count) if seed % 2 else random.integers(0, 8000, count)
    first = np.arange(there)
    table.update(first, np.ones((there, dim), np.float32), learning_rate=0.1, step=3)
    expected = {
        key: (values, slots["accumulator"], *numbers)
        for key, (values, slots, *numbers) in exported(table).items()
    }
    initial = np.full(dim, 0.1, np.float32)
    values = random.standard_normal((count, dim)).astype(np.float32)
    slot = random.random((count, dim), np.float32)
    versions, uses = random.integers(0, 2000, (2, count))
    uses = uses.astype(np.uint32)
    for i, key in enumerate(ids.tolist()):
        _, accumulator, version, used = expected.get(key, (None, initial, 0, 0))
        if "slots" in parts:
            accumulator = slot[i]
        if "numbers" in parts:
            version, used = int(versions[i]), int(uses[i])
        expected[key] = values[i], accumulator, version, used
    table.reserve(reserved)

    def assign(some):
        # An id's repeats are one thread's, in order.
        table.assign(
            ids[some],
            values[some],
            {"accumulator": slot[some]} if "slots" in parts else None,
            versions[some] if "numbers" in parts else None,
            uses[some] if "numbers" in parts else None,
        )

    threads = [threading.Thread(target=assign, args=(ids % 4 == part,)) for part in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = exported(table)
    assert len(table) == len(found) == len(expected)
    assert found.keys() == expected.keys()
    for key, (row, accumulator, version, used) in expected.items():
        assert (found[key][0] == row).all()
        assert (found[key][1]["accumulator"] == accumulator).all()
        assert found[key][2:] == (version, used)
    # Records of ids that were there are used again: nothing is lost.
    table.remove(np.array(list(expected), np.int64))
    table.compact()
    assert len(table) == 0


@pytest.mark.parametrize(
    ("count", "dim"), [(100, 1), (1_500_000, 1), pytest.param(3_000_000, 1, marks=pytest.mark.slow)]
)
def test_a_table_with_room_grows_no_more(count, dim):
    """The index of reserved rows is there, and takes no more memory than a grown one."""
    ids = np.arange(count, dtype=np.int64) * 7919
    ones = np.ones((count, dim), np.float32)
    grown, ready = store(dim, "sgd"), store(dim, "sgd")
    ready.reserve(count)
    for table in (grown, ready):
        table.assign(ids, ones)
    assert ready.memory_bytes() <= 1.1 * grown.memory_bytes()
    full = ready.memory_bytes()
    ready.reserve(count)
    ready.reserve(0)
    assert ready.memory_bytes() == full
    for _ in range(5):  # the records that it took for rows that are there are used again
        ready.assign(ids, ones)
    assert ready.memory_bytes() <= full + (4 << 20)
    assert len(ready) == count
    assert (ready.lookup(ids) == 1).all()
    assert ready.remove(ids) == count


@pytest.mark.parametrize("dim", [1, 6, 16])
def test_growth_from_empty_to_a_million(dim):
    """Splits, chunks and directory doublings lose and mix up nothing."""
    table = store(dim, "sgd", InitializerSpec("zeros"))
    count = 1_000_000
    ids = (np.arange(count) * 7_919_000_003).astype(np.int64) - 2**62
    for first in range(0, count, 100_000):
        some = ids[first : first + 100_000]
        gradients = np.repeat(np.arange(first, first + 100_000, dtype=np.float32), dim)
        table.update(some, gradients.reshape(-1, dim), learning_rate=-1.0, step=first + 1)
    assert len(table) == count
    random = np.random.default_rng(0).permutation(count)
    assert (table.lookup(ids[random]) == random.astype(np.float32)[:, None]).all()
    seen = np.concatenate([part[0] for part in table.export()])
    assert len(seen) == count
    assert (np.sort(seen) == np.sort(ids)).all()


def test_removal_gives_memory_back():
    table = store(16, "adam", "zeros")
    ids = np.arange(400_000)
    table.update(ids, np.ones((len(ids), 16), np.float32), learning_rate=0.1, step=1)
    kept = table.lookup(ids[::10].copy())
    full = table.memory_bytes()
    assert table.remove(np.delete(ids, np.s_[::10])) == 360_000
    assert table.free_rows == 360_000
    table.compact()
    assert table.free_rows < 10_000
    assert table.memory_bytes() < 0.3 * full
    assert (table.lookup(ids[::10].copy()) == kept).all()
    assert sorted(exported(table)) == ids[::10].tolist()
    table.update(ids, np.ones((len(ids), 16), np.float32), learning_rate=0.1, step=2)
    assert len(table) == 400_000
    assert (table.lookup(ids) != 0).all()


@pytest.mark.parametrize("seed", range(3))
def test_an_index_that_was_larger_shrinks_and_grows_again(seed):
    """Segments that were split are joined, and then change their size, and lose no row."""
    random = np.random.default_rng(seed)
    table, there = store(1, "sgd", "zeros"), np.zeros(0, np.int64)
    table.reserve(8_000_000)  # which splits all segments
    for step, count in enumerate((100_000, 600_000, 50_000, 1_000_000), 1):
        ids = np.unique(random.integers(-(2**63), 2**63, count))
        values = (ids % 1000).astype(np.float32)[:, None]
        table.update(ids, values, learning_rate=-1.0, step=step)
        there = np.union1d(there, ids)
        gone = random.random(there.size) < 0.7
        assert table.remove(there[gone]) == gone.sum()
        there = there[~gone]
        table.compact()
        assert len(table) == there.size
        seen = np.concatenate([part[0] for part in table.export()])
        assert np.array_equal(np.sort(seen), there)
        assert np.array_equal(table.lookup(there)[:, 0], (there % 1000).astype(np.float32))


def test_ids_of_one_server_only():
    """Routing uses the top bits of the hash; a slice of the slots must fill the index evenly."""
    from shoal.native.ids import slot_of

    ids = np.arange(0, 40_000_000, 4)
    mine = ids[slot_of(ids) < 164]  # a hundredth of the slots
    sliced, whole = store(1, "sgd"), store(1, "sgd")
    sliced.insert(mine)
    whole.insert(ids[: len(mine)].copy())
    assert len(sliced) == len(mine) > 90_000
    # The key of the index is random, so one part in thousands may grow sooner here than there. A
    # hundredth of the parts that held everything would take many times as much.
    assert 0.5 < sliced.memory_bytes() / whole.memory_bytes() < 2


@settings(max_examples=examples(20), deadline=None)
@given(growth=st.integers(0, 30_000), batch=st.sampled_from([1, 5_000]), seed=st.integers(0, 99))
def test_iteration_sees_each_row_once_while_the_store_changes(growth, batch, seed):
    """Rows that stay come exactly once, whatever is inserted, removed or compacted between."""
    random = np.random.default_rng(seed)
    table = store(1, "sgd")
    staying = random.integers(-(2**63), 2**63, 10_000)
    passing = random.integers(-(2**63), 2**63, 20_000)
    table.insert(np.concatenate([staying, passing]))
    seen = []
    for number, part in enumerate(table.export(batch)):
        seen += part[0].tolist()
        if number % 2 == 0:
            table.insert(random.integers(-(2**63), 2**63, growth))
            growth //= 2
        if number == 3:
            table.remove(passing)
            table.compact()
    assert len(seen) == len(set(seen))
    assert set(staying.tolist()) <= set(seen)


def test_use_counts_stop_and_versions_follow():
    table, ids = store(1, "sgd"), np.array([5, -1])
    for step in range(1, MANY_USES + 3):
        table.update(ids[:1], np.zeros((1, 1), np.float32), learning_rate=0.1, step=step)
    table.update(ids[1:], np.zeros((1, 1), np.float32), learning_rate=0.1, step=2**32 - 1)
    rows = exported(table)
    assert rows[5][2:] == (MANY_USES + 2, MANY_USES)
    assert rows[-1][2:] == (2**32 - 1, 1)


def test_a_job_goes_on_past_2_to_the_32_steps():
    """Steps are told apart back to three eras of 2^30; older ones count as the oldest of these."""
    table, era = store(1, "sgd"), 1 << 30
    steps = [1, era, 2 * era, 3 * era + 7, 2**32 - 1, 2**32, 2**40 + 3, 2**40 + 4, MAX_STEP]
    for key, step in enumerate(steps):
        ids = np.array([key])
        table.update(ids, np.zeros((1, 1), np.float32), learning_rate=0.1, step=step)
        table.update(ids, np.zeros((1, 1), np.float32), learning_rate=0.1, step=max(1, step - 5))
        table.update(ids, np.zeros((1, 1), np.float32), learning_rate=0.1, step=step)
        oldest = max(0, step // era - 3) * era
        rows = exported(table)
        assert [rows[each][2] for each in range(key + 1)] == [
            max(each, oldest) for each in steps[: key + 1]
        ]
    with pytest.raises(ValueError, match="step must be from 1"):
        table.update(ids, np.zeros((1, 1), np.float32), learning_rate=0.1, step=MAX_STEP + 1)


@pytest.mark.parametrize("optimizer", ["adam", "adagrad"])
def test_rounding_and_bias_correction_do_not_depend_on_where_versions_begin(optimizer):
    """A store that began with the job, and one restored late: the same bits."""
    old, late = (store(8, optimizer, value_dtype="bfloat16") for _ in range(2))
    random, ids = np.random.default_rng(0), np.arange(50)
    for step in (1, 2, 2**33, 2**33 + 1):
        gradients = random.standard_normal((50, 8)).astype(np.float32)
        old.update(ids, gradients, learning_rate=0.1, step=step)
        if step > 2**33:
            late.update(ids, gradients, learning_rate=0.1, step=step)
        else:
            for piece in old.export():
                late.assign(*piece)
    assert_same_rows(rows_of(late.export()), rows_of(old.export()))


def test_extreme_ids_are_ordinary():
    table, ids = store(2, "sgd", "zeros"), np.array(EXTREMES)
    assert not any(key in table for key in EXTREMES)
    numbers = np.arange(2.0 * len(ids), dtype=np.float32).reshape(-1, 2) + 1
    table.update(ids, -numbers, learning_rate=1.0, step=1)
    assert (table.lookup(ids) == numbers).all()
    assert all(key in table for key in EXTREMES)


def test_empty_batches():
    table, none = store(5), np.empty(0, np.int64)
    assert table.lookup(none).shape == (0, 5)
    table.update(none, np.empty((0, 5), np.float32), learning_rate=0.1, step=1)
    table.insert(none)
    table.assign(none, np.empty((0, 5), np.float32), {"accumulator": np.empty((0, 5), np.float32)})
    assert table.remove(none) == 0
    table.compact()
    assert len(table) == 0
    assert list(table.export()) == []


@pytest.mark.skipif(
    "SHOAL_SANITIZED" in os.environ, reason="the sanitizers' own memory grows with the store's"
)
def test_memory_is_what_the_process_grows_by():
    """memory_bytes() against the resident set of a fresh process."""
    import subprocess
    import sys

    program = """
import numpy as np
from tests.native.model import assert_same_rows, rows_of
from tests.native.strategies import store
def resident():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4096
before, tables = resident(), []
for dim, optimizer, count in ((16, "adam", 500_000), (3, "adagrad", 700_000), (300, "sgd", 50_000)):
    tables.append(store(dim, optimizer))
    for first in range(0, count, 10_000):
        tables[-1].insert(np.arange(first, first + 10_000))
print(sum(table.memory_bytes() for table in tables), resident() - before)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    counted, grown = map(int, done.stdout.split())
    assert counted == pytest.approx(grown, rel=0.05)


GOOD = np.arange(3)
ROWS = np.zeros((3, 4), np.float32)


@pytest.mark.parametrize(
    ("error", "message", "call"),
    [
        (TypeError, "ids must be a NumPy array", lambda t: t.lookup([1, 2])),
        (TypeError, "ids must be of dtype int64", lambda t: t.lookup(GOOD.astype(np.int32))),
        (ValueError, "ids must have shape", lambda t: t.lookup(GOOD.reshape(1, 3))),
        (ValueError, "ids must be contiguous", lambda t: t.lookup(np.arange(6)[::2])),
        (ValueError, "out must have shape", lambda t: t.lookup(GOOD, ROWS[:2])),
        (TypeError, "out must be of dtype", lambda t: t.lookup(GOOD, ROWS.astype(float))),
        (ValueError, "missing must be", lambda t: t.lookup(GOOD, missing="zero")),
        (
            ValueError,
            "gradients must have shape",
            lambda t: t.update(GOOD, ROWS[:, :3].copy(), learning_rate=0.1, step=1),
        ),
        (ValueError, "step must be", lambda t: t.update(GOOD, ROWS, learning_rate=0.1, step=0)),
        (
            ValueError,
            "learning_rate must be finite",
            lambda t: t.update(GOOD, ROWS, learning_rate=float("nan"), step=1),
        ),
        (ValueError, "no slot momentum", lambda t: t.assign(GOOD, ROWS, {"momentum": ROWS})),
        (
            ValueError,
            r"slots\['accumulator'\] must have shape",
            lambda t: t.assign(GOOD, ROWS, {"accumulator": ROWS[:2]}),
        ),
        (
            TypeError,
            "versions must be",
            lambda t: t.assign(GOOD, ROWS, versions=GOOD.astype(np.uint32)),
        ),
        (
            ValueError,
            "versions must be at least 0, got -1",
            lambda t: t.assign(GOOD, ROWS, versions=GOOD * 0 - 1),
        ),
        (ValueError, "batch must be at least 1", lambda t: t.export(0)),
        (ValueError, "rows must be between 0", lambda t: t.reserve(-1)),
        (ValueError, "rows must be between 0", lambda t: t.reserve(MAX_ROWS + 1)),
        (OverflowError, "int", lambda t: 2**63 in t),
    ],
)  # fmt: skip
def test_refusals_name_the_argument(error, message, call):
    table = store(4)
    with pytest.raises(error, match=message):
        call(table)
    assert len(table) == 0


def test_read_only_output_is_refused():
    out = ROWS.copy()
    out.flags.writeable = False
    with pytest.raises(ValueError, match="out must be writable"):
        store(4).lookup(GOOD, out)


@pytest.mark.parametrize(
    ("error", "arguments", "options"),
    [
        (ValueError, (0,), {}),
        (ValueError, (65537,), {}),
        (TypeError, (4.0,), {}),
        (ValueError, (4,), {"value_dtype": "float64"}),
        (ValueError, (4,), {"seed": 2**64}),
    ],
)
def test_bad_stores_are_refused(error, arguments, options):
    seed = options.pop("seed", 1)
    with pytest.raises(error):
        RowStore(*arguments, OptimizerSpec("sgd"), InitializerSpec("zeros"), seed, **options)


def unmixed(x):
    """The inverse of splitmix64, of whose results ids can be chosen."""
    mask = 2**64 - 1
    x = (x ^ (x >> 31) ^ (x >> 62)) * 0x319642B2D24D8EC3 & mask
    x = (x ^ (x >> 27) ^ (x >> 54)) * 0x96DE1B173F119089 & mask
    return ((x ^ (x >> 30) ^ (x >> 60)) - 0x9E3779B97F4A7C15) & mask


def test_ids_chosen_by_their_hash_cost_no_more_memory_than_others():
    """The index once doubled its directory until all the equal bits were used: with 32 of
    them, up to 56 GB. 23 show it in memory that a test may have."""
    chosen = np.array([unmixed(high << 23 | 5) for high in range(2000)], np.uint64).view(np.int64)
    assert len(set((mix64(chosen) & np.uint64(2**23 - 1)).tolist())) == 1
    others = np.arange(2000, dtype=np.int64)
    sizes = []
    for ids in (others, chosen):
        table = RowStore(1, OptimizerSpec("sgd"), InitializerSpec("zeros"), 0)
        table.insert(ids)
        assert len(table) == 2000
        assert set(np.concatenate([batch[0] for batch in table.export()])) == set(ids)
        sizes.append(table.memory_bytes())
    assert sizes[1] < 4 * sizes[0]


def test_the_noise_of_16_bit_rows_is_the_same_in_every_process():
    """It is of the seed, the id and the step; where a row lies differs by the process."""
    script = (
        "import numpy as np, hashlib\n"
        "from shoal.native.rowstore import RowStore\n"
        "from shoal.native.optimizers import OptimizerSpec\n"
        "from shoal.native.initializers import InitializerSpec\n"
        "table = RowStore(3, OptimizerSpec('sgd'), InitializerSpec('uniform'), 7,"
        " value_dtype='bfloat16')\n"
        "ids = np.arange(500, dtype=np.int64)\n"
        "for step in range(1, 9):\n"
        "    gradients = np.full((500, 3), 0.001, np.float32)\n"
        "    table.update(ids, gradients, learning_rate=0.1, step=step)\n"
        "print(hashlib.sha256(table.lookup(ids).tobytes()).hexdigest())\n"
    )
    command = [sys.executable, "-c", script]
    runs = [subprocess.run(command, capture_output=True, check=True).stdout for _ in range(2)]
    assert runs[0] == runs[1]
