"""From a flag's value to files: every way of naming nothing is a clear error."""

import pytest

from shoal.data import open_reader
from shoal.data.files import find_files
from shoal.errors import UserError


@pytest.fixture
def folder(tmp_path):
    for name in (
        "b.csv",
        "a.csv",
        "_SUCCESS",
        ".hidden.csv",
        "notes.txt",
        "notes.md",
        "deep/c.csv",
    ):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("x\n1\n")
    return tmp_path


def names(paths):
    return [path.rsplit("/", 1)[1] for path in paths]


def test_a_folder_stands_for_its_files_sorted_without_marks(folder):
    assert names(find_files(str(folder), "--x")) == ["a.csv", "b.csv", "c.csv"]


def test_a_glob_and_a_file_stand_for_what_they_name(folder):
    assert names(find_files(str(folder / "[ab].csv"), "--x")) == ["a.csv", "b.csv"]
    assert names(find_files(str(folder / "de*"), "--x")) == ["c.csv"]
    assert names(find_files(str(folder / "b.csv"), "--x")) == ["b.csv"]


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("c.csv", r"there is no file or folder .*c\.csv \(did you mean .*\.csv\?\)"),
        ("none/at/all", "there is no file or folder"),
        ("*.parquet", "no file matches"),
        ("empty", "holds no file ending in .csv"),
        ("notes.md", r"no known ending; shoal reads \.csv, \.csv\.gz, \.parquet, \.pq"),
    ],
)
def test_naming_nothing_is_an_error_with_the_flag(folder, pattern, message):
    (folder / "empty").mkdir()
    with pytest.raises(UserError, match=f"^--training-data: .*{message}"):
        open_reader(str(folder / pattern), "--training-data")


def test_mixed_formats_are_refused(folder):
    (folder / "d.parquet").touch()
    with pytest.raises(UserError, match=r"different formats.*a\.csv and .*d\.parquet"):
        open_reader(str(folder), "--x")
