"""Files that a list or a manifest names."""

from __future__ import annotations

import json

import fsspec
import pytest

from shoal.config.job import _absolute
from shoal.data import open_reader
from shoal.errors import UserError

FLAG = "--training-data"


@pytest.fixture
def folder(tmp_path):
    for name in ("a", "b", "c"):
        (tmp_path / "data").mkdir(exist_ok=True)
        (tmp_path / "data" / f"{name}.csv").write_text(f"x\n{ord(name)}\n")
    return tmp_path


def values(place):
    reader = open_reader(f"@{place}", FLAG)
    return [
        row["x"]
        for source in reader.sources()
        for batch in reader.read(source.name, 0, source.records)
        for row in batch.to_pylist()
    ]


def test_a_list_has_a_name_a_line(folder):
    (folder / "files.txt").write_text(f"# two of three\ndata/c.csv\n\n{folder}/data/a.csv\n")
    assert values(folder / "files.txt") == [97, 99]


@pytest.mark.parametrize(
    "content",
    [
        {"entries": [{"url": "data/b.csv", "mandatory": True}, {"url": "data/a.csv"}]},
        {"files": [{"path": "data/a.csv"}, {"path": "data/b.csv"}]},
        ["data/a.csv", "data/b.csv"],
    ],
)
def test_a_manifest_is_json(folder, content):
    (folder / "manifest").write_text(json.dumps(content))
    assert values(folder / "manifest") == [97, 98]


def test_a_list_behind_a_url_names_urls(folder):
    files = fsspec.filesystem("memory")
    files.pipe("/lists/a.csv", b"x\n1\n")
    files.pipe("/lists/files", b"memory://lists/a.csv\n")
    assert values("memory://lists/files") == [1]
    files.pipe("/lists/files", b"a.csv\n")
    assert values("memory://lists/files") == [1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, r"there is no list .*files$"),
        ("", "names no file"),
        ("data/a.csv\ndata/none.csv", r"line 2: there is no file .*data/none\.csv"),
        ("data/a.csv\ndata/a.csv", "line 2 names data/a.csv again, as line 1 does"),
        ("data/a.csv\nlink/../data/./a.csv", "line 2 names .* again, as line 1 does"),
        ("data/a.csv\nlink/a.csv", "line 2 names link/a.csv again, as line 1 does"),
        ("data/a.csv\ns3://b/c.csv", "line 2: paths and URLs cannot be in one list"),
        ('{"entries": [{"uri": "x"}]}', "entry 1 has no url and no path"),
        ('{"entries": ', "is no JSON"),
    ],
)
def test_what_is_wrong_with_a_list_is_told(folder, text, message):
    (folder / "link").symlink_to("data")
    if text is not None:
        (folder / "files").write_text(text)
    with pytest.raises(UserError, match=f"^--training-data: .*{message}"):
        values(folder / "files")


def test_the_path_of_a_list_is_made_absolute(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert _absolute("@lists/a") == f"@{tmp_path}/lists/a"
    assert _absolute("lists/a") == f"{tmp_path}/lists/a"
