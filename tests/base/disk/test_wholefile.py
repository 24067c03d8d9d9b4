"""Files that are there whole or not at all."""

import json
import os
from pathlib import Path

import pytest

from shoal.base.disk import wholefile


def test_a_file_is_replaced_when_the_block_has_ended(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    with wholefile.replacing(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["a.txt"]


def write_and_fail(path: Path) -> None:
    with wholefile.replacing(path) as temporary:
        temporary.write_text("half")
        (path.parent / "missing").read_text()


def test_a_block_that_raises_leaves_what_was(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")
    with pytest.raises(ValueError, match="JSON"):
        wholefile.write_json(path, float("nan"))
    with pytest.raises(FileNotFoundError, match="missing"):
        write_and_fail(path)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.json"]


def test_infinities_are_written_where_allowed(tmp_path: Path) -> None:
    wholefile.write_json(tmp_path / "a", float("inf"), allow_nan=True)
    assert json.loads((tmp_path / "a").read_text()) == float("inf")


def test_what_a_killed_process_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    kept = tmp_path / ".hidden"
    kept.write_text("")
    with wholefile.replacing(tmp_path / "a") as temporary:
        (tmp_path / temporary.name.replace(str(os.getpid()), "7")).write_text("half")
        temporary.write_text("whole")
    wholefile.remove_partial(tmp_path)
    assert sorted(os.listdir(tmp_path)) == [".hidden", "a"]
