"""Damage to a job's files: what is changed, and that it can be undone."""

import random

import pytest

from shoal.tools.chaos.damage import FLIP, REMOVE, damaged, files_of


@pytest.fixture
def folder(tmp_path):
    for name in (
        "journal.sqlite",
        "journal.sqlite-wal",
        "journal.sqlite-shm",
        "journal/0001.segment",
        "log/ps-0000.log",
        "log/empty.log",
        "checkpoints/0001/manifest.json",
        "checkpoints/0001/table.arrow",
        "logs/master.log",
        "job.json",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"" if name == "log/empty.log" else name.encode() * 3)
    return tmp_path


def names(folder, what):
    return [str(path.relative_to(folder)) for path in files_of(folder, what)]


def test_files_are_those_that_hold_something(folder):
    journal = ["journal/0001.segment", "journal.sqlite", "journal.sqlite-wal"]
    assert sorted(names(folder, "journal")) == sorted(journal)
    assert names(folder, "log") == ["log/ps-0000.log"]
    assert len(names(folder, "checkpoint")) == 2


@pytest.mark.parametrize("what", ["journal", "log", "checkpoint"])
@pytest.mark.parametrize("seed", range(5))
def test_one_bit_of_one_file_is_flipped_named_and_put_back(folder, what, seed):
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    damage = damaged(folder, FLIP, what, random.Random(seed))
    changed = [path for path, content in before.items() if path.read_bytes() != content]
    assert changed == [damage.path]
    assert str(damage.path.relative_to(folder)) in damage.what
    pairs = zip(before[damage.path], damage.path.read_bytes(), strict=True)
    assert sum((one ^ other).bit_count() for one, other in pairs) == 1
    damage.undo()
    assert all(path.read_bytes() == content for path, content in before.items())


def test_a_file_is_removed_and_put_back_and_nothing_is_done_without_files(folder):
    damage = damaged(folder, REMOVE, "log", random.Random(1))
    assert not damage.path.exists()
    assert damaged(folder, REMOVE, "log", random.Random(1)) is None
    damage.undo()
    assert damage.path.read_bytes() == b"log/ps-0000.log" * 3
