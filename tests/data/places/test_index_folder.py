"""What jobs leave for the jobs to come: used while the files are the same, lost without harm."""

from __future__ import annotations

import pytest

from shoal.data.places.index_folder import MOST_FILES, IndexFolder
from shoal.data.places.index_store import Known
from shoal.data.reader import Source
from shoal.errors import UserError

FLAG = "--index-dir"


def known(name, stamp="10-1", records=7, index=b"where"):
    return Known(Source(name, records, ((records, 1),)), stamp, index)


@pytest.fixture(params=["path", "memory", "file"])
def place(request, tmp_path):
    if request.param == "path":
        return str(tmp_path / "index")
    return f"{request.param}://{tmp_path}/index"


def test_the_next_job_knows_what_is_the_same(place):
    IndexFolder(place, FLAG).add("csv", [known("a"), known("b", records=9)])
    IndexFolder(place, FLAG).add("csv", [known("c")])
    folder = IndexFolder(place, FLAG)
    assert folder.get("csv", "b", "10-1") == known("b", records=9)
    assert folder.get("csv", "c", "10-1") == known("c")
    assert folder.has("csv", "a", "10-1")
    assert not folder.has("csv", "a", "11-1")  # it has changed
    assert not folder.has("csv", "d", "10-1")
    assert folder.get("parquet", "a", "10-1") is None


def test_what_has_no_stamp_is_not_kept(place):
    IndexFolder(place, FLAG).add("csv", [known("a", stamp="")])
    assert not IndexFolder(place, FLAG).has("csv", "a", "")


def test_many_files_are_made_one_with_what_is_newest(place):
    for number in range(MOST_FILES + 1):
        IndexFolder(place, FLAG).add("csv", [known(f"s{number}"), known("a", records=number + 1)])
    folder = IndexFolder(place, FLAG)
    folder.tidy()
    assert len(folder._files()) == 1
    assert all(folder.has("csv", f"s{number}", "10-1") for number in range(MOST_FILES + 1))
    folder.tidy()
    assert len(folder._files()) == 1


def test_damage_and_what_is_removed_cost_what_was_known(tmp_path):
    IndexFolder(str(tmp_path), FLAG).add("csv", [known("a")])
    (path,) = tmp_path.iterdir()
    folder = IndexFolder(str(tmp_path), FLAG)
    assert folder.has("csv", "a", "10-1")
    content = path.read_bytes()
    path.unlink()
    assert folder.get("csv", "a", "10-1") is None
    path.write_bytes(content[: len(content) // 2])
    (tmp_path / "notes.described.arrow").write_text("mine")
    (tmp_path / "README").write_text("mine")
    again = IndexFolder(str(tmp_path), FLAG)
    assert not again.has("csv", "a", "10-1")
    again.add("csv", [known("a")])
    assert IndexFolder(str(tmp_path), FLAG).has("csv", "a", "10-1")


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path):
    (tmp_path / "index").write_text("a file")
    folder = IndexFolder(str(tmp_path / "index"), FLAG)
    folder.add("csv", [known("a")])
    folder.tidy()
    assert not folder.has("csv", "a", "10-1")


def test_an_unknown_filesystem_is_told():
    with pytest.raises(UserError, match="--index-dir: nosuch://x: "):
        IndexFolder("nosuch://x", FLAG)
