"""Files that come after a reader was opened, and those that go."""

from __future__ import annotations

import fsspec
import pytest

from shoal.data.opening import open_reader
from shoal.errors import UserError


def put(root, name, records):
    """A CSV file at a path or URL, in place at once."""
    with fsspec.open(f"{root}/{name}", "w") as file:
        file.write("id,x\n" + "".join(f"{i},1\n" for i in range(records)))


@pytest.fixture(params=["path", "URL"])
def root(request, tmp_path):
    yield str(tmp_path) if request.param == "path" else "memory://arrivals"
    if request.param == "URL":
        fsspec.filesystem("memory").rm("memory://arrivals", recursive=True)


def names_of(found):
    return [name.rpartition("/")[2] for name in found[0]]


def test_new_files_are_found_read_and_have_stamps(root):
    put(root, "b.csv", 3)
    reader = open_reader(root, "--training-data")
    reader.grows()
    put(root, "a.csv", 4)
    found = reader.arrivals("")
    assert names_of(found) == ["a.csv", "b.csv"]
    assert reader.names() == [found[0][1]]  # the columns stay those of the first
    new = found[0][0]
    assert reader.describe(new).records == 4
    assert sum(batch.num_rows for batch in reader.read(new, 0, 4)) == 4
    before = reader.stamp(new)
    put(root, "a.csv", 5)
    reader.arrivals("")
    assert reader.stamp(new) != before != ""


def test_a_worker_that_has_not_listed_describes_what_another_found(root):
    put(root, "a.csv", 3)
    lister, other = (open_reader(root, "--training-data") for _ in range(2))
    put(root, "b.csv", 5)
    new = lister.arrivals("")[0][1]
    assert other.describe(new).records == 5
    assert other.stamp(new) == lister.stamp(new)


def test_a_folder_may_be_empty_for_a_while(root):
    put(root, "a.csv", 3)
    reader = open_reader(root, "--training-data")
    files, path = fsspec.url_to_fs(f"{root}/a.csv")
    files.rm(path)
    assert reader.arrivals("") == ([], "")
    put(root, "b.csv", 3)
    assert names_of(reader.arrivals("")) == ["b.csv"]


def test_a_list_of_files_is_read_again(tmp_path):
    for name in "abc":
        put(tmp_path, f"{name}.csv", 2)
    listed = tmp_path / "files.txt"
    listed.write_text("a.csv\n")
    reader = open_reader(f"@{listed}", "--training-data")
    listed.write_text("a.csv\nc.csv\n")
    assert names_of(reader.arrivals("")) == ["a.csv", "c.csv"]


def test_folders_of_partitions_that_come_give_their_values_or_are_refused(tmp_path):
    for name in ("day=1", "day=2", "day=x", "other"):
        (tmp_path / name).mkdir()
    put(tmp_path, "day=1/a.csv", 2)
    reader = open_reader(str(tmp_path), "--training-data")
    for name in ("day=2/b.csv", "day=x/c.csv", "other/d.csv"):
        put(tmp_path, name, 2)
    _, two, wrong, other = reader.arrivals("")[0]
    (batch,) = reader.read(two, 0, 2)
    assert batch["day"].to_pylist() == [2, 2]
    with pytest.raises(UserError, match=r"day=x/c\.csv: column day .* is an integer"):
        list(reader.read(wrong, 0, 2))
    with pytest.raises(UserError, match=r"other/d\.csv: no folder of it gives column day"):
        list(reader.read(other, 0, 2))
