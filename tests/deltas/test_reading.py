"""Whoever reads a folder's deltas has the job's rows, or is told why not."""

import shutil
from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shoal
from shoal.checkpoints.formats import manifests
from shoal.deltas import chain
from shoal.deltas import delta as deltas
from shoal.errors import StorageError
from shoal.files.storage import LocalStorage
from tests.deltas.history import History, apply
from tests.deltas.published import write_model

EACH = st.sampled_from(["push", "push", "sweep", "lose", "publish", "publish", "base"])


def play(history, steps):
    history.push()
    history.publish()
    for step in steps:
        if step in ("publish", "base"):
            history.publish(base=step == "base")
        else:
            getattr(history, step)()
    history.publish()


def folder_of(history, number):
    return history.root.local_path(chain.delta_name(number))


@given(st.lists(EACH, max_size=20), st.integers(0, 1000), st.integers(1, 5), st.booleans())
def test_a_reader_has_the_rows_of_the_job(tmp_path_factory, steps, seed, stops, held):
    folder = tmp_path_factory.mktemp("live")
    history = History(folder, seed, dtype="bfloat16" if seed % 2 else "float32")
    play(history, steps)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deltas, "HELD_BYTES", 1 << 20 if held else 0)
        rows, dense, number, checksum = {}, None, 0, ""
        while number < len(history.deltas):
            for found in islice(shoal.deltas.read(folder, number, checksum), stops):
                assert found.number == number + 1 or found.base
                apply(rows, found)
                number, checksum, dense = found.number, found.checksum, found.dense
                assert found.created == 1e9 + number
    assert [rows["a"], rows["b"]] == history.rows
    assert np.array_equal(dense["w"], history.dense)


def test_all_of_a_table_is_there_at_once(tmp_path):
    history = History(tmp_path)
    history.push()
    history.publish()
    (found,) = shoal.deltas.read(str(tmp_path))
    table = found.tables["b"]
    assert table.rows.shape == (10, 3)
    assert dict(zip(table.ids.tolist(), map(bytes, table.rows), strict=True)) == history.rows[1]
    assert (table.name, table.dim, table.removed.tolist()) == ("b", 3, [])


@pytest.mark.parametrize("make", [False, True])
def test_a_folder_that_nothing_was_published_into_is_told(tmp_path, make):
    if make:
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / "file").touch()
    with pytest.raises(shoal.deltas.NoDeltasError, match=r"other: there is no delta here: give"):
        list(shoal.deltas.read(tmp_path / "other"))


def three(tmp_path):
    history = History(tmp_path)
    for _ in range(3):
        history.push()
        history.publish()
    return history


def test_a_delta_that_is_not_kept_is_told(tmp_path):
    history = three(tmp_path)
    history.publish(base=True)
    shutil.rmtree(folder_of(history, 2))
    with pytest.raises(shoal.deltas.NotKeptError, match="delta-000000002 is not kept any more"):
        list(shoal.deltas.read(tmp_path, after=1))
    assert [each.number for each in shoal.deltas.read(tmp_path)] == [4]
    assert [each.number for each in shoal.deltas.read(tmp_path, after=2)] == [3, 4]


def test_a_delta_of_another_chain_is_told(tmp_path):
    history = three(tmp_path)
    history.deltas[1] = history.deltas[1]._replace(checksum="0" * 32)
    history.deltas.pop()
    shutil.rmtree(folder_of(history, 3))
    history.publish()
    reading = shoal.deltas.read(tmp_path)
    assert [next(reading).number, next(reading).number] == [1, 2]
    with pytest.raises(shoal.deltas.ForeignDeltaError, match="delta-000000003 does not follow"):
        next(reading)
    with pytest.raises(shoal.deltas.ForeignDeltaError, match="delta-000000002 does not follow"):
        list(shoal.deltas.read(tmp_path, after=1, checksum="1" * 32))


def test_a_folder_that_was_begun_anew_is_told(tmp_path):
    three(tmp_path)
    with pytest.raises(shoal.deltas.ForeignDeltaError, match=r"delta 7, .* begun anew"):
        list(shoal.deltas.read(tmp_path, after=7))
    with pytest.raises(shoal.deltas.ForeignDeltaError, match=r"delta 3, .* begun anew"):
        list(shoal.deltas.read(tmp_path, after=3, checksum="1" * 32))
    assert list(shoal.deltas.read(tmp_path, after=3)) == []


def damage(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("which", ["server-0001.*", "manifest.json", "missing"])
def test_nothing_of_a_damaged_delta_is_given(tmp_path, which):
    history = three(tmp_path)
    if which == "missing":
        (path,) = folder_of(history, 2).glob("server-0001.*")
        path.unlink()
    else:
        (path,) = folder_of(history, 2).glob(which)
        damage(path)
    reading = shoal.deltas.read(tmp_path)
    assert next(reading).number == 1
    with pytest.raises(shoal.deltas.DamagedDeltaError, match=str(path)):
        next(reading)


def test_damage_after_the_check_is_found_as_well(tmp_path, monkeypatch):
    monkeypatch.setattr(deltas, "HELD_BYTES", 0)
    history = three(tmp_path)
    found = next(shoal.deltas.read(tmp_path))
    for path in folder_of(history, 1).glob("server-*"):
        damage(path)
    with pytest.raises(shoal.deltas.DamagedDeltaError, match="server-000"):
        _ = found.tables["a"].rows, found.tables["b"].rows


def test_a_storage_that_fails_is_not_called_damage(tmp_path, monkeypatch):
    three(tmp_path)

    def fails(self, name):
        raise OSError(5, "Input/output error", self.path(name))

    monkeypatch.setattr(LocalStorage, "read", fails)
    with pytest.raises(StorageError, match="Input/output error"):
        list(shoal.deltas.read(tmp_path, after=1))


@pytest.mark.parametrize("known", ["right", "gone", "late"])
def test_the_hint_says_where_to_begin_and_need_not_be_there(tmp_path, known):
    history = three(tmp_path)
    history.publish(base=True)
    base = {"right": 1, "gone": 77, "late": 4}[known]
    content = {"format": "shoal-live-1", "base": base, "oldest": 1}
    manifests.write(LocalStorage(str(tmp_path)), chain.HINT, content)
    begun = [each.number for each in shoal.deltas.read(tmp_path)]
    assert begun == ([1, 2, 3, 4] if known == "right" else [4])


def test_a_delta_must_fit_its_model(tmp_path):
    history = History(tmp_path, dims=(2, 3))
    history.push()
    history.dims = (3, 2)
    history.rows.reverse()
    history.set.reverse()
    history.publish()
    with pytest.raises(shoal.deltas.DamagedDeltaError, match="rows of 3 float32, of table 'a'"):
        list(shoal.deltas.read(tmp_path))


def test_a_base_has_all_dense_values(tmp_path):
    history = History(tmp_path)
    history.spec.trainable[0].shape[0] = 3
    history.model = write_model(history.root, history.spec)
    history.publish()
    with pytest.raises(shoal.deltas.DamagedDeltaError, match="trainable: not all elements"):
        list(shoal.deltas.read(tmp_path))


def test_a_variable_is_told_only_if_all_of_it_is_there(tmp_path):
    history = three(tmp_path)
    *_, third = shoal.deltas.read(tmp_path)
    assert [*third.dense] == ["w"]
    third.manifest["shares"][1]["file"]["pages"].pop()
    assert third.number == 3
    third.__dict__.pop("dense")
    assert third.dense == {}
    assert history.dense.any()
