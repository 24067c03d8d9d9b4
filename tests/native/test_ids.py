"""Hash, routing, deduplication and partition, against NumPy."""

import json
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.native.ids import (
    SLOTS,
    mix64,
    partition,
    places,
    slot_of,
    unique,
    unique_by_server,
)
from tests.native.strategies import EXTREMES, few_ids, id_arrays

batches = st.one_of(id_arrays(), id_arrays(few_ids))
owner_tables = st.integers(1, 40).flatmap(
    lambda servers: st.tuples(
        st.just(servers),
        st.integers(0, 2**32 - 1).map(
            lambda seed: np.random.default_rng(seed).integers(0, servers, SLOTS).astype(np.uint16)
        ),
    )
)


def splitmix64(x):
    """The reference, in Python's own integers."""
    mask = 2**64 - 1
    x = (x + 0x9E3779B97F4A7C15) & mask
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
    return x ^ (x >> 31)


@given(batches)
def test_mix64_is_splitmix64_and_slots_are_its_top_bits(ids):
    ids = np.concatenate([ids, np.array(EXTREMES)])
    expected = [splitmix64(key % 2**64) for key in ids.tolist()]
    assert mix64(ids).tolist() == expected
    assert slot_of(ids).tolist() == [h >> 50 for h in expected]
    assert slot_of(ids).dtype == np.uint16


def test_known_hashes():
    """The first outputs of the published generator from seed 0."""
    golden = 0x9E3779B97F4A7C15
    seeds = np.array([0, golden - 2**64, (2 * golden) % 2**64], np.int64)
    assert [hex(h) for h in mix64(seeds)] == [
        "0xe220a8397b1dcdaf", "0x6e789e6aa1b965f4", "0x6c45d188009454f"
    ]  # fmt: skip


def test_consecutive_ids_spread_over_the_slots():
    counts = np.bincount(slot_of(np.arange(SLOTS * 100)), minlength=SLOTS)
    assert counts.min() > 50
    assert counts.max() < 160


@given(batches)
def test_unique(ids):
    ids.flags.writeable = False
    distinct, inverse, counts = unique(ids)
    first_seen = list(dict.fromkeys(ids.tolist()))
    assert distinct.tolist() == first_seen
    assert (distinct[inverse] == ids).all()
    assert counts.tolist() == [ids.tolist().count(key) for key in first_seen]
    assert (distinct.dtype, inverse.dtype, counts.dtype) == (np.int64, np.int32, np.int32)


def unmix(hashes):
    """The ids of these hashes: uint64 [n] to int64 [n]."""

    def unshifted(x, by):
        for _ in range(64 // by):  # bits that come again by the later shifts cancel out
            x = x ^ (x >> np.uint64(by))
            by *= 2
        return x

    x = unshifted(hashes, 31) * np.uint64(pow(0x94D049BB133111EB, -1, 2**64))
    x = unshifted(x, 27) * np.uint64(pow(0xBF58476D1CE4E5B9, -1, 2**64))
    x = unshifted(x, 30) - np.uint64(0x9E3779B97F4A7C15)
    return x.view(np.int64)


def looks(starts, words):
    """How many words of a table are looked at for new ids whose search starts there, in order."""
    taken, total = np.zeros(2 * words, bool), 0
    for start in starts.tolist():
        free = start + int(np.argmin(taken[start : start + words]))
        taken[free] = taken[free % words] = taken[free % words + words] = True
        total += free - start + 1
    return total


def test_chosen_ids_do_not_make_unique_look_long():
    """Their hashes end in zeros: without a key all of them are looked for at the same place."""
    n, words = 1 << 12, 1 << 13
    ids = unmix(np.arange(n, dtype=np.uint64) << np.uint64(40))
    hashes = mix64(ids)
    assert not (hashes & np.uint64(words - 1)).any()
    assert looks(hashes & np.uint64(words - 1), words) == n * (n + 1) // 2
    # In a table that is half full, a search looks at 1.5 words in the mean.
    assert looks(places(ids), words) < 3 * n
    assert (places(ids) < words).all()
    distinct, inverse, counts = unique(np.concatenate([ids, ids[::-1]]))
    assert (distinct == ids).all()
    assert (inverse == np.concatenate([np.arange(n), np.arange(n)[::-1]])).all()
    assert (counts == 2).all()


def test_another_process_places_ids_elsewhere():
    """A key that could be known would be no key."""
    ids = np.arange(64)
    program = "import numpy, shoal.native.ids as ids; print(ids.places(numpy.arange(64)).tolist())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) != places(ids).tolist()


@pytest.mark.parametrize("spread", [10, 1000, 2**40])
def test_unique_of_large_batches(spread):
    ids = np.random.default_rng(spread).integers(-spread, spread, 100_000)
    distinct, inverse, counts = unique(ids)
    expected, expected_counts = np.unique(ids, return_counts=True)
    order = np.argsort(distinct)
    assert (distinct[order] == expected).all()
    assert (counts[order] == expected_counts).all()
    assert (distinct[inverse] == ids).all()


@settings(deadline=None)
@given(batches, owner_tables)
def test_partition(ids, table):
    servers, owners = table
    order, offsets = partition(ids, owners, servers)
    owner = owners[slot_of(ids)]
    assert order.tolist() == np.argsort(owner, kind="stable").tolist()
    assert offsets.tolist() == np.searchsorted(np.sort(owner), np.arange(servers + 1)).tolist()


@settings(deadline=None)
@given(batches, owner_tables)
def test_unique_by_server(ids, table):
    servers, owners = table
    distinct, inverse, offsets, counts = unique_by_server(ids, owners, servers)
    assert (distinct[inverse] == ids).all()
    assert inverse.dtype == np.int32
    plain, _, plain_counts = unique(ids)
    owner = owners[slot_of(plain)]
    order = np.argsort(owner, kind="stable")
    assert distinct.tolist() == plain[order].tolist()
    assert counts.tolist() == plain_counts[order].tolist()
    assert offsets.tolist() == np.searchsorted(np.sort(owner), np.arange(servers + 1)).tolist()


def test_unknown_owner_is_refused():
    owners = np.full(SLOTS, 3, np.uint16)
    for function in (partition, unique_by_server):
        with pytest.raises(ValueError, match="owners names a server"):
            function(np.arange(5), owners, 3)
        with pytest.raises(ValueError, match="servers must be"):
            function(np.arange(5), owners, 0)
        with pytest.raises(ValueError, match="owners must have shape"):
            function(np.arange(5), owners[1:].copy(), 4)
