"""Ids that are counted before they get a row, beside everything else that a store does."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from shoal.native.choices import ORDERS, Choice, order_of
from shoal.native.ids import SLOTS, slot_of
from shoal.native.rowstore import MANY_USES, MAX_ADMIT_AFTER, MAX_BOUNDS, USE_CLASSES
from tests.examples import examples
from tests.native.model import Model, assert_same_rows, counting_of, rows_of
from tests.native.strategies import any_id, few_ids, id_arrays, store

PARTS = 3
PART_OF = (np.arange(SLOTS) % PARTS).astype(np.uint16)


def collected(table, rows, counting, between=lambda: None):
    """All that `collect` gives, each id once."""
    found, cursor = [], 0
    while cursor is not None:
        ids, cursor = table.collect(rows, counting, cursor, 2048)
        found.append(ids)
        between()
    ids = np.concatenate(found)
    assert len(set(ids.tolist())) == len(ids)
    return ids


class StoreAgainstModel(RuleBasedStateMachine):
    """Every operation on a store and on the model of it, bit for bit."""

    @initialize(
        dim=st.sampled_from([1, 3, 8, 16]),
        optimizer=st.sampled_from(["sgd", "adagrad", "rowwise_adagrad", "adam", "ftrl"]),
        value_dtype=st.sampled_from(["float32", "bfloat16", "float16"]),
        admit_after=st.sampled_from([1, 2, 3, 5, MAX_ADMIT_AFTER]),
    )
    def begin(self, dim, optimizer, value_dtype, admit_after):
        self.options = dim, optimizer
        self.dtype = value_dtype
        self.model = Model(dim, optimizer, admit_after, value_dtype=value_dtype)
        self.table = self.create(admit_after)
        self.step = 0
        self.random = np.random.default_rng(1)
        self.fixed = None

    def create(self, admit_after):
        return store(*self.options, value_dtype=self.dtype, admit_after=admit_after)

    def normal(self, count):
        return self.random.standard_normal((count, self.options[0])).astype(np.float32)

    def push(self, ids):
        self.step += 1
        gradients = self.normal(len(ids))
        ids.flags.writeable = gradients.flags.writeable = False
        self.table.update(ids, gradients, learning_rate=0.1, step=self.step)
        self.model.update(ids, gradients, self.step)

    @rule(ids=id_arrays(few_ids, 60), times=st.integers(1, 3))
    def update(self, ids, times):
        for _ in range(times):
            self.push(ids)

    @rule(first=st.integers(0, 3), count=st.sampled_from([300, 5000]))
    def update_many(self, first, count):
        """Enough of them that segments double, and that ids of several blocks are missed."""
        self.push((first * 150 + np.arange(count)) * 7919)

    @rule(eras=st.integers(1, 5), less=st.integers(0, 2))
    def many_steps_pass(self, eras, less):
        """As in a job of months: headers have 32 bits for a step."""
        self.step = (((self.step >> 30) + eras) << 30) - less
        self.table.advance(self.step)
        self.model.advance(self.step)

    @rule(ids=id_arrays(any_id, 100))
    def insert(self, ids):
        self.table.insert(ids)
        self.model.insert(ids)

    @rule(ids=id_arrays(few_ids), missing=st.sampled_from(["initial", "default"]))
    def lookup(self, ids, missing):
        expected = self.model.table.lookup(ids, missing=missing)
        assert (self.table.lookup(ids, missing=missing) == expected).all()

    @rule(ids=id_arrays(few_ids, 20), uses=st.integers(0, 5000), given=st.booleans())
    def assign(self, ids, uses, given):
        values = self.normal(len(ids))
        numbers = (np.full(len(ids), self.step, np.int64), np.full(len(ids), uses, np.uint32))
        self.table.assign(ids, values, None, *(numbers if given else ()))
        self.model.assign(ids, values, numbers if given else ())

    @rule(ids=id_arrays(few_ids, 20), uses=st.integers(0, 5000))
    def assign_counting(self, ids, uses):
        numbers = np.full(len(ids), self.step, np.int64), np.full(len(ids), uses, np.uint32)
        self.table.assign_counting(ids, *numbers)
        self.model.assign_counting(ids, *numbers)

    @rule(data=st.data(), others=id_arrays(few_ids, 10), many=st.booleans())
    def remove(self, data, others, many):
        there = sorted(self.model.counting) + self.model.rows()[0].tolist()
        some = data.draw(st.lists(st.sampled_from(there), max_size=50)) if there else []
        chosen = there[:: data.draw(st.integers(1, 3))] if many else []
        ids = np.array([*some, *chosen, *others.tolist()], np.int64)
        assert self.table.remove(ids) == self.model.remove(ids)

    @rule(
        kinds=st.sampled_from([(1, 1), (1, 0), (0, 1)]),
        back=st.integers(0, 4),
        share=st.sampled_from([0.0, 0.3, 1.0]),
        use=st.booleans(),
    )
    def sweep(self, kinds, back, share, use):
        """Ids are collected, some are used meanwhile, and what still qualifies is removed."""
        cut = max(self.step - back, 1) - np.arange(USE_CLASSES)
        chosen = Choice(cut, cut + 2, min(int(share * ORDERS), ORDERS - 1))
        cuts = [chosen if kind else None for kind in kinds]
        ids = collected(self.table, *cuts)
        assert set(ids.tolist()) == self.model.expired(*cuts)[0]
        if use and len(ids):
            self.push(ids[::2].copy())
        qualify, rows = self.model.expired(*cuts)
        removed, of_rows = self.table.remove_chosen(ids, *cuts)
        assert removed.tolist() == [key for key in ids.tolist() if key in qualify]
        assert of_rows == len(rows & set(ids.tolist()))
        assert self.model.remove(removed) == len(removed)

    @rule(bounds=st.lists(st.integers(-1, 30), max_size=9).map(sorted), late=st.booleans())
    def histogram(self, bounds, late):
        bounds = [bound + late * max(0, self.step - 15) for bound in bounds]
        expected = np.zeros((2, len(bounds) + 1, USE_CLASSES), np.int64)
        for _, version, use_class, row in self.model.entries():
            place = np.searchsorted(bounds, version, side="right")
            expected[1 - row, place, use_class] += 1
        np.testing.assert_array_equal(self.table.histogram(np.array(bounds, np.int64)), expected)

    @rule(since=st.integers(0, 20), late=st.booleans())
    def changed(self, since, late):
        since += late * max(0, self.step - 10)
        ids, cursor = self.table.changed(since, 0, 1 << 17)
        expected = {
            key for key, version, _, row in self.model.entries() if row and version >= since
        }
        assert cursor is None
        assert sorted(ids.tolist()) == sorted(expected)

    @rule()
    def compact(self):
        self.table.compact()

    @rule(admit_after=st.sampled_from([1, 2, 4]))
    def restore(self, admit_after):
        """In a store with another threshold, as from a checkpoint."""
        self.end_snapshot()
        restored = self.create(admit_after)
        restored.advance(self.step)
        for piece in self.table.export():
            restored.assign(*piece)
        for piece in self.table.export_counting():
            restored.assign_counting(*piece)
        self.table, self.model.admit_after = restored, admit_after

    @precondition(lambda self: not self.fixed)
    @rule()
    def begin_snapshot(self):
        self.table.begin_snapshot()
        self.fixed = self.model.rows(), dict(self.model.counting)
        self.pieces = {"rows": [], "counting": []}
        self.reading = {
            "rows": self.table.snapshot_by(PART_OF, PARTS, 2048),
            "counting": self.table.snapshot_counting_by(PART_OF, PARTS, 2048),
        }

    @precondition(lambda self: self.fixed)
    @rule(which=st.sampled_from(["rows", "counting"]))
    def read_some(self, which):
        self.pieces[which] += itertools.islice(self.reading[which], 1)

    @precondition(lambda self: self.fixed)
    @rule(first=st.sampled_from(["rows", "counting"]))
    def read_rest(self, first):
        for which in (first, *({"rows", "counting"} - {first})):
            self.pieces[which] += self.reading[which]
            for part, (ids, *_) in self.pieces[which]:
                assert (PART_OF[slot_of(ids)] == part).all()
        rows, counting = ([piece for _, piece in self.pieces[each]] for each in self.pieces)
        # Steps may have been told apart when a piece was read, or fixed, that no longer are.
        fixed_rows, fixed_counting = self.fixed
        found = self.model.rows_since_base(rows_of(rows))
        assert_same_rows(found, self.model.rows_since_base(fixed_rows))
        found = self.model.counted_since_base(counting_of(counting))
        assert found == self.model.counted_since_base(fixed_counting)
        self.end_snapshot()

    @precondition(lambda self: self.fixed)
    @rule()
    def end_snapshot(self):
        self.fixed = self.reading = None
        self.table.end_snapshot()

    @rule(ids=id_arrays(few_ids, 5))
    def find(self, ids):
        for key in ids.tolist():
            found, expected = self.table.find(key), self.model.table.find(key)
            if key in self.model.counting:
                uses, version = self.model.counting[key]
                assert found == (None, {}, version, uses)
            elif expected is None:
                assert found is None
            else:
                for ours, theirs in zip(found, expected, strict=True):
                    np.testing.assert_equal(ours, theirs)

    @invariant()
    def same(self):
        expected = self.model.rows()
        assert_same_rows(rows_of(self.table.export(1)), expected)
        assert len(self.table) == len(expected[0])
        assert counting_of(self.table.export_counting(1)) == self.model.counting
        assert self.table.counting == len(self.model.counting)
        assert not any(key in self.table for key in list(self.model.counting)[:20])


StoreAgainstModel.TestCase.settings = settings(
    max_examples=examples(60), stateful_step_count=25, deadline=None
)
test_store_against_model = StoreAgainstModel.TestCase


@settings(max_examples=examples(40), deadline=None)
@given(
    admit_after=st.integers(1, 6),
    pushes=st.lists(st.lists(st.integers(0, 40), unique=True), max_size=30),
    data=st.data(),
)
def test_rows_are_the_ids_of_so_many_pushes(admit_after, pushes, data):
    """Whatever the order of the pushes, and over however many stores the ids are spread."""
    of = {key: [step for step, ids in enumerate(pushes, 1) if key in ids] for key in range(41)}
    for ordered in (pushes, data.draw(st.permutations(pushes))):
        tables = [store(2, "sgd", "zeros", admit_after=admit_after) for _ in range(2)]
        for step, ids in enumerate(ordered, 1):
            for part, table in enumerate(tables):
                some = np.array([key for key in ids if key % 2 == part], np.int64)
                ones = np.ones((len(some), 2), np.float32)
                table.update(some, ones, learning_rate=-1.0, step=step)
        for key, steps in of.items():
            admitted = len(steps) >= admit_after
            table = tables[key % 2]
            assert (key in table) == admitted
            value = len(steps) - admit_after + 1 if admitted else 0
            assert (table.lookup(np.array([key])) == value).all()
        counted = sum(0 < len(steps) < admit_after for steps in of.values())
        assert sum(table.counting for table in tables) == counted


def test_an_id_is_admitted_by_the_last_threshold_there_is():
    table = store(1, "sgd", "zeros", admit_after=MAX_ADMIT_AFTER)
    one = np.ones((1, 1), np.float32)
    for step in range(1, MAX_ADMIT_AFTER):
        table.update(np.array([7]), one, learning_rate=-1.0, step=step)
    assert len(table) == 0
    assert table.counting == 1
    table.update(np.array([7]), one, learning_rate=-1.0, step=9)
    (piece,) = table.export()
    assert [column.tolist() for column in (piece[0], piece[1], *piece[3:])] == [
        [7], [[1.0]], [9], [MAX_ADMIT_AFTER],
    ]  # fmt: skip
    assert MAX_ADMIT_AFTER < MANY_USES
    assert table.counting == 0


@pytest.mark.parametrize(
    ("optimizer", "dim"), [("adagrad", 64), ("adam", 32), ("adam", 64), ("adam", 16)]
)
def test_admission_beside_rows_of_a_large_table(optimizer, dim):
    """Large tables have kernels of their own: those rows, too, are all that is updated."""
    count = (80 << 20) // (dim * 4 * (3 if optimizer == "adam" else 2))
    table = store(dim, optimizer, admit_after=2)
    there = np.arange(count)
    table.insert(there)
    random = np.random.default_rng(3)
    ids = random.permutation(np.concatenate([there[::97], -1 - np.arange(500)]))
    gradients = random.standard_normal((len(ids), dim)).astype(np.float32)
    expected = store(dim, optimizer)
    old = np.flatnonzero(ids >= 0)
    expected.update(ids[old], gradients[old], learning_rate=0.1, step=1)
    table.update(ids, gradients, learning_rate=0.1, step=1)
    assert table.counting == 500
    assert len(table) == count
    assert (table.lookup(ids) == expected.lookup(ids)).all()
    table.update(ids, gradients, learning_rate=0.1, step=2)
    expected.update(ids, gradients, learning_rate=0.1, step=2)
    assert table.counting == 0
    assert len(table) == count + 500
    assert (table.lookup(ids) == expected.lookup(ids)).all()


def test_entries_of_many_snapshots_ago_are_not_taken_for_read_ones():
    """Snapshots are told apart by a number that begins again after half a million of them."""
    table = store(1, "sgd", admit_after=3)
    ids = np.arange(200)
    table.update(ids, np.ones((200, 1), np.float32), learning_rate=0.1, step=1)
    expected = counting_of(table.export_counting())
    for _ in range((1 << 19) + 1):
        table.begin_snapshot()
        table.end_snapshot()
    for _ in range(2):
        table.begin_snapshot()
        pieces = [piece for _, piece in table.snapshot_counting_by(None, 1)]
        table.end_snapshot()
        assert counting_of(pieces) == expected


def test_counted_ids_take_no_memory_of_rows():
    count, row_bytes = 300_000, 2 * 16 * 4
    ids, ones = np.arange(count), np.ones((count, 16), np.float32)
    counting, admitted = (store(16, "adagrad", admit_after=k) for k in (2, 1))
    for table in (counting, admitted):
        table.update(ids, ones, learning_rate=0.1, step=1)
    assert counting.counting == count
    assert len(counting) == 0
    assert counting.memory_bytes() <= admitted.memory_bytes() - count * row_bytes


@settings(max_examples=examples(20), deadline=None)
@given(growth=st.integers(0, 30_000), seed=st.integers(0, 99))
def test_a_walk_meets_each_id_once_while_the_store_changes(growth, seed):
    """Old ids that stay are met exactly once, whatever comes, goes or is compacted between."""
    random = np.random.default_rng(seed)
    table = store(1, "sgd", admit_after=2)
    old, passing, new = random.integers(-(2**63), 2**63, (3, 20_000))
    numbers = np.zeros(10_000, np.int64), np.ones(10_000, np.uint32)
    table.insert(old[:10_000])
    table.assign_counting(old[10_000:], *numbers)
    table.assign_counting(passing[:10_000], *numbers)
    table.insert(passing[10_000:])
    calls = itertools.count()

    def change():
        number = next(calls)
        some = new[: growth >> min(number, 20)]
        table.update(some, np.ones((len(some), 1), np.float32), learning_rate=0.1, step=9)
        if number == 3:
            table.remove(passing)
            table.compact()

    cuts = Choice.older_than(9)
    found = collected(table, cuts, cuts, change)
    assert set(old.tolist()) <= set(found.tolist())
    assert not set(new.tolist()) & set(found.tolist())


@settings(max_examples=examples(50), deadline=None)
@given(
    count=st.sampled_from([1, 2, 300, MAX_BOUNDS]),
    last=st.sampled_from([10, 5_000, 10**6, 10**9]),
    even=st.booleans(),
    seed=st.integers(0, 99),
)
def test_rows_are_counted_by_many_steps(count, last, even, seed):
    """Even bounds and crowded ones; rows before the first and after the last."""
    chance = np.random.default_rng(seed)
    table, ids = store(), np.arange(500)
    used = np.sort(chance.integers(1, last + last // 4, 50))
    for part, step in zip(np.split(ids, 50), used, strict=True):
        table.update(part, np.zeros((10, table.dim), np.float32), learning_rate=0.1, step=int(step))
    bounds = np.linspace(last // 8, last, count).astype(np.int64)
    if not even:
        bounds = np.sort(last // 8 + (chance.random(count) ** 8 * last).astype(np.int64))
    expected = np.bincount(np.searchsorted(bounds, used, side="right"), minlength=count + 1) * 10
    rows, counting = table.histogram(bounds)
    np.testing.assert_array_equal(rows.sum(axis=1), expected)
    assert not counting.any()


@pytest.mark.parametrize(
    ("error", "message", "call"),
    [
        (ValueError, "admit_after must be between 1 and 2047, got 0", lambda: store(admit_after=0)),
        (ValueError, "got 2048", lambda: store(admit_after=2048)),
        (TypeError, "admit_after must be an int, not float", lambda: store(admit_after=2.0)),
        (TypeError, "admit_after must be an int, not bool", lambda: store(admit_after=True)),
        (ValueError, "batch must be at least 1", lambda: store().export_counting(0)),
        (ValueError, "limit must be at least 2048", lambda: store().collect(None, None, 0, 9)),
        (ValueError, "cursor must be", lambda: store().collect(None, None, 1 << 32)),
        (
            ValueError,
            "rows.sure must have shape",
            lambda: store().collect(Choice(np.arange(3), np.arange(12)), None),
        ),
        (
            TypeError,
            "counting.maybe must be",
            lambda: store().remove_chosen(
                np.arange(3), None, Choice(np.arange(12), np.zeros(12, np.float32))
            ),
        ),
        (ValueError, "bounds must ascend", lambda: store().histogram(np.array([2, 1]))),
        (ValueError, "at most 4096", lambda: store().histogram(np.arange(MAX_BOUNDS + 1))),
        (ValueError, "no snapshot", lambda: store().snapshot_counting_by(None, 1)),
        (
            ValueError,
            "use_counts must have shape",
            lambda: store().assign_counting(
                np.arange(3), np.zeros(3, np.int64), np.zeros(2, np.uint32)
            ),
        ),
        (
            TypeError,
            "versions must be",
            lambda: store().assign_counting(
                np.arange(3), np.zeros(3, np.uint32), np.zeros(3, np.uint32)
            ),
        ),
    ],
)
def test_refusals_name_the_argument(error, message, call):
    with pytest.raises(error, match=message):
        call()


def splitmix(number):
    """Steele, Lea and Flood's splitmix64."""
    bits = 2**64 - 1
    number = (number + 0x9E3779B97F4A7C15) & bits
    number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 & bits
    number = (number ^ number >> 27) * 0x94D049BB133111EB & bits
    return number ^ number >> 31


def test_an_order_is_spread_and_the_same_everywhere():
    assert splitmix(0) == 0xE220A8397B1DCDAF
    ids = [0, 1, -1, 10**18]
    assert order_of(np.array(ids)).tolist() == [splitmix(splitmix(each % 2**64)) for each in ids]
    table, ids = store(1, "sgd"), np.arange(40_000)
    table.update(ids, np.ones((len(ids), 1), np.float32), learning_rate=0.1, step=1)
    none, cut = np.zeros(USE_CLASSES, np.int64), np.full(USE_CLASSES, 2)
    for share in (0.01, 0.5):
        found = collected(table, Choice(none, cut, int(share * ORDERS)), None)
        assert abs(len(found) - share * len(ids)) < 5 * np.sqrt(share * len(ids))
        assert (order_of(found) < np.uint64(share * ORDERS)).all()
