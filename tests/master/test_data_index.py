"""What is kept of sources beside the journal: whole or not at all, also for the next master."""

from __future__ import annotations

import os

import pytest

from shoal.master.data_index import DataIndex
from shoal.proto import shoal_pb2 as pb


def described(*names, kind="training", size=100):
    data = pb.DataDescription()
    for name in names:
        index = f"index of {name} ".encode() * size
        getattr(data, kind).add(name=name, records=7, units=[7, 1], stamp=f"of {name}", index=index)
    return data


def test_what_was_told_is_given_by_the_next_master_too(tmp_path):
    folder = tmp_path / "index"
    index = DataIndex(folder)
    assert index.get("training", "a") is None
    index.put("0.0-1", described("a", "b"))
    index.put("1.0-2", described("a", kind="validation", size=0))
    for each in (index, DataIndex(folder)):
        source = each.get("training", "b")
        assert source == described("b").training[0]
        assert each.get("validation", "a").index == b""
        assert each.get("validation", "b") is None


def test_what_was_told_last_counts(tmp_path):
    index = DataIndex(tmp_path)
    index.put("0.0-1", described("a", size=1))
    index.put("0.0-9", described("a", size=2))
    os.utime(tmp_path / "0.0-1.described", ns=(1, 1))
    for each in (index, DataIndex(tmp_path)):
        assert each.get("training", "a") == described("a", size=2).training[0]


def test_a_report_without_sources_leaves_no_file(tmp_path):
    DataIndex(tmp_path).put("0.0-1", pb.DataDescription())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("place", [0, 5, 20, -1])
def test_damage_is_noticed_and_nothing_is_known_then(tmp_path, place):
    DataIndex(tmp_path).put("0.0-1", described("a"))
    (path,) = tmp_path.iterdir()
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    assert DataIndex(tmp_path).get("training", "a") is None
    path.write_bytes(content[:10])
    assert DataIndex(tmp_path).get("training", "a") is None


def test_a_folder_that_cannot_be_written_costs_what_was_told_and_nothing_else(tmp_path):
    (tmp_path / "index").write_text("no folder")
    index = DataIndex(tmp_path / "index")
    index.put("0.0-1", described("a"))
    assert index.get("training", "a") is None
