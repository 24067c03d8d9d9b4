"""Shares are read as they were written, and damage is told."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.checkpoints.formats.manifests import CheckpointError
from shoal.deltas import chain, shares
from shoal.deltas.schema import SchemaError, checked_delta, runs_of, slots_of
from shoal.deltas.shares import Page
from shoal.files.storage import LocalStorage
from shoal.native.values import decode, encoded
from shoal.proto.values.routing import SLOTS
from tests.deltas.published import ALL, NONE, model_spec, write_delta, write_model

DTYPES = st.sampled_from(["float32", "bfloat16", "float16"])


@st.composite
def pages(draw):
    kind = draw(st.sampled_from(["removed", "rows", "trainable", "state"]))
    n = draw(st.integers(1, 40))
    numbers = np.random.default_rng(draw(st.integers(0, 1000)))
    ids = numbers.integers(-(2**62), 2**62, n)
    if kind == "removed":
        return Page(kind, draw(st.integers(0, 5)), ids=ids)
    if kind == "rows":
        dtype = draw(DTYPES)
        values = numbers.normal(size=(n, draw(st.integers(1, 9)))).astype(np.float32)
        values = decode(encoded(values, dtype))
        return Page(kind, draw(st.integers(0, 5)), ids=ids, values=values, value_dtype=dtype)
    values = numbers.normal(size=n).astype(np.float32)
    return Page(kind, first=draw(st.integers(0, 5)), values=values)


@given(st.lists(pages(), max_size=6))
def test_pages_are_read_as_they_were_written(tmp_path_factory, written):
    storage = LocalStorage(str(tmp_path_factory.mktemp("share")))
    described = shares.write(storage, "share.arrows", written)

    found = list(shares.read(storage, described))

    for ours, theirs in zip(written, found, strict=True):
        assert (ours.kind, ours.table, ours.first) == (theirs.kind, theirs.table, theirs.first)
        assert ours.value_dtype == theirs.value_dtype
        for a, b in ((ours.ids, theirs.ids), (ours.values, theirs.values)):
            assert a is b is None or (a.dtype == b.dtype and np.array_equal(a, b))


def test_pyarrow_alone_reads_a_file(tmp_path):
    rows = np.arange(6, dtype=np.float32).reshape(3, 2)
    page = Page("rows", 1, ids=np.array([3, 4, 5]), values=rows)
    shares.write(LocalStorage(str(tmp_path)), "s", [Page("removed", 0, ids=np.array([9])), page])

    with pa.OSFile(str(tmp_path / "s")) as file:
        first = pa.ipc.open_stream(file).read_all()
        second = pa.ipc.open_stream(file).read_all()

    assert first.schema.metadata == {b"kind": b"removed", b"table": b"0"}
    assert first["id"].to_pylist() == [9]
    assert second.schema.metadata[b"kind"] == b"rows"
    assert second["values"].to_pylist() == rows.tolist()


@pytest.mark.parametrize("at", [0, 100, -1])
def test_a_changed_byte_is_damage(tmp_path, at):
    storage = LocalStorage(str(tmp_path))
    described = shares.write(storage, "s", [Page("removed", 0, ids=np.arange(50))])
    data = bytearray((tmp_path / "s").read_bytes())
    data[at] ^= 1
    (tmp_path / "s").write_bytes(data)

    with pytest.raises(CheckpointError, match=f"{tmp_path}/s: damaged"):
        list(shares.read(storage, described))


def test_a_page_of_another_kind_than_its_manifest_says_is_refused(tmp_path):
    storage = LocalStorage(str(tmp_path))
    described = shares.write(storage, "s", [Page("state", values=np.ones(3, np.float32))])
    described["pages"][0] |= {"kind": "removed", "table": 0}

    with pytest.raises(CheckpointError, match="not a share: of other columns"):
        list(shares.read(storage, described))


@given(st.lists(st.integers(0, SLOTS - 1), max_size=60))
def test_runs_give_their_slots_back(slots):
    flags = np.zeros(SLOTS, bool)
    flags[slots] = True

    runs = runs_of(flags)

    assert (slots_of("whole", runs) == flags).all()
    assert len(runs) <= len(set(slots))


@pytest.mark.parametrize("runs", [[[3, 2]], [[0, 5], [5, 6]], [[7, 8], [1, 2]]])
def test_runs_out_of_order_are_refused(runs):
    with pytest.raises(SchemaError, match="whole: runs that are not in order"):
        slots_of("whole", runs)


def _halves():
    left = np.arange(SLOTS) < 100
    return left, ~left


@pytest.fixture
def published(tmp_path):
    root = LocalStorage(str(tmp_path))
    model = write_model(root, model_spec(2))
    left, right = _halves()
    write_delta(root, 1, "", model, [(left, left, []), (right, right, [])])
    return root, model


def test_the_newest_delta_is_found_by_name(published):
    root, model = published
    first = chain.newest(root)
    left, right = _halves()
    second = write_delta(root, 2, first.checksum, model, [(left, NONE, []), (right, NONE, [])])
    newest = chain.newest(root)

    assert newest.number == second.number
    assert newest.checksum == second.checksum
    assert not newest.manifest["base"]
    assert first.manifest["base"]
    assert chain.read_model(root, model)[1] == model_spec(2)


def test_a_delta_without_its_manifest_is_none(published):
    root, _ = published
    root.child(chain.delta_name(2)).make()

    assert chain.newest(root).number == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": -1}, "version: "),
        ({"format": "shoal-delta-0"}, "of format shoal-delta-0, this version reads shoal-delta-1"),
        ({"created": "today"}, "created"),
        ({"more": 1}, "more"),
        ({"nonce": "0" * 16}, "of another delta"),
    ],
)
def test_a_manifest_that_is_not_right_is_refused(tmp_path, changes, message):
    root = LocalStorage(str(tmp_path))
    write_delta(root, 1, "", write_model(root, model_spec(2)), [(ALL, ALL, [])], **changes)

    with pytest.raises(CheckpointError, match=message):
        chain.read_delta(root, 1)


def test_shares_have_each_slot_once(published):
    root, _ = published
    manifest = dict(chain.read_delta(root, 1).manifest)
    manifest.pop("checksum", None)
    share = manifest["shares"][0]

    for shares_now in ([share], [*manifest["shares"], {**share, "server": 2}]):
        with pytest.raises(SchemaError, match="not all slots, each once"):
            checked_delta({**manifest, "shares": shares_now})
    with pytest.raises(SchemaError, match="slots that are not the server's"):
        checked_delta({**manifest, "shares": [{**share, "whole": [[0, 200]]}]})
    with pytest.raises(SchemaError, match="not whole, of a base"):
        checked_delta({**manifest, "shares": [{**share, "whole": []}]})
    no_base = {"base": False, "newest_base": 1, "number": 2, "previous": ""}
    with pytest.raises(SchemaError, match="previous: missing, of a delta that is no base"):
        checked_delta({**manifest, **no_base})
    with pytest.raises(SchemaError, match="previous: of the first delta"):
        checked_delta({**manifest, "previous": "0" * 32})
