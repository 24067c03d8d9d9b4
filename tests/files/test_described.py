"""What is kept of sources: used while the files are the same, and lost without harm."""

from __future__ import annotations

import pytest

from shoal.files.described import MOST_FILES, DescribedSources
from shoal.files.storage import open_storage
from shoal.proto import shoal_pb2 as pb


def source(name, size=100, stamp="10-1"):
    index = f"index of {name} ".encode() * size
    return pb.Source(name=name, records=7, units=[7, 1], stamp=stamp, index=index)


def of(*sources, kind="training"):
    return [(kind, each) for each in sources]


@pytest.fixture(params=["path", "memory", "file"])
def place(request, tmp_path):
    if request.param == "path":
        return str(tmp_path / "index")
    return f"{request.param}://{tmp_path}/index"


def kept(place):
    return DescribedSources(open_storage(str(place)))


def test_what_was_told_is_given_by_the_next_process_too(place):
    first = kept(place)
    assert first.get("training", "a") is None
    first.put(of(source("a"), source("b")))
    kept(place).put(of(source("a", size=0), kind="validation"))
    first.put(of(source("c", stamp="")))
    for each in (kept(place), kept(place)):
        assert each.get("training", "b") == source("b")
        assert each.get("validation", "a").index == b""
        assert each.get("validation", "b") is None
        assert each.stamps("training") == {"a": "10-1", "b": "10-1", "c": ""}
    assert first.get("training", "b") == source("b")
    assert first.get("training", "c") == source("c", stamp="")


def test_a_source_that_has_changed_or_has_no_stamp_is_not_known(place):
    kept(place).put(of(source("a"), source("b", stamp="")))
    assert kept(place).get("training", "a", "10-1") == source("a")
    assert kept(place).get("training", "a", "11-1") is None
    assert kept(place).get("training", "b", "") is None


def test_what_was_told_last_counts(tmp_path):
    index = kept(tmp_path)
    index.put(of(source("a", size=1)))
    index.put(of(source("a", size=2)))
    for each in (index, kept(tmp_path)):
        assert each.get("training", "a") == source("a", size=2)


def test_a_report_without_sources_leaves_no_file(tmp_path):
    assert kept(tmp_path).put([])
    assert not list(tmp_path.iterdir())


def test_many_files_are_made_one_with_what_is_newest(place):
    folder = kept(place)
    assert not folder.stamps("csv")
    for number in range(MOST_FILES + 1):
        kept(place).put(of(source(f"s{number}"), source("a", size=number), kind="csv"))
    folder.tidy()
    for each in (folder, kept(place)):
        assert len(each._files()) == 1
        assert each.get("csv", "a") == source("a", size=MOST_FILES)
        assert all(each.get("csv", f"s{number}") for number in range(MOST_FILES + 1))
    folder.tidy()
    assert len(folder._files()) == 1


@pytest.mark.parametrize("damaged", [0, 5, 20, -1])
def test_damage_and_what_is_removed_cost_what_was_known(tmp_path, damaged):
    kept(tmp_path).put(of(source("a")))
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    content = bytearray(whole)
    content[damaged] ^= 1
    (tmp_path / "README").write_text("mine")
    for each in (content, whole[:10], whole[: len(whole) // 2]):
        path.write_bytes(each)
        assert kept(tmp_path).get("training", "a") is None
    path.write_bytes(whole)
    known = kept(tmp_path)
    assert known.stamps("training")
    path.unlink()
    assert known.get("training", "a") is None
    known.put(of(source("a")))
    assert kept(tmp_path).get("training", "a") == source("a")


def test_a_folder_that_cannot_be_written_costs_what_was_told_and_nothing_else(tmp_path):
    (tmp_path / "index").write_text("no folder")
    index = kept(tmp_path / "index")
    assert not index.put(of(source("a")))
    index.tidy()
    assert index.get("training", "a") is None
