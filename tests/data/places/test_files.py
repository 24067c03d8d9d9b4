"""From a flag's value to files: every way of naming nothing is a clear error."""

import pytest

from shoal.data import open_reader
from shoal.data.places.files import find_files, format_of
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
        ("notes.md", r"no known ending; shoal reads \.csv, \.tsv, .* --data-format csv$"),
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


def test_files_of_a_format_that_is_said_may_have_any_name(folder):
    (folder / "u.data").write_text("x\n1\n")
    (folder / "sub").mkdir()
    (folder / "sub" / "part-0").write_text("x\n2\n")
    assert names(find_files(str(folder / "u.data"), "--x", "csv")) == ["u.data"]
    # Where endings tell what is of the format, others are something else.
    assert names(find_files(str(folder), "--x", "csv")) == ["a.csv", "b.csv", "c.csv"]
    assert names(find_files(str(folder / "sub"), "--x", "csv")) == ["part-0"]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.tsv", "csv"),
        ("A.CSV.ZST", "csv"),
        ("a.tsv.gz", "csv"),
        ("a.ndjson.zst", "jsonlines"),
        ("a.parquet.gz", None),
        ("a.gz", None),
        ("csv", None),
    ],
)
def test_what_a_name_promises(name, kind):
    assert format_of(name) == kind


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_links_to_folders_are_followed_and_each_folder_is_read_once(tmp_path, scheme):
    (tmp_path / "data" / "day1").mkdir(parents=True)
    (tmp_path / "elsewhere" / "deep").mkdir(parents=True)
    for path in ("data/day1/a.csv", "elsewhere/b.csv", "elsewhere/deep/c.csv"):
        (tmp_path / path).write_text("x\n1\n")
    links = {"day2": "../elsewhere", "latest": "day1", "loop": ".", "_hidden": "../elsewhere"}
    for name, target in links.items():
        (tmp_path / "data" / name).symlink_to(target, target_is_directory=True)
    folder = f"{scheme}{tmp_path}/data"
    found = ["day1/a.csv", "day2/b.csv", "day2/deep/c.csv"]
    reader = open_reader(folder, "--x")
    assert [source.name for source in reader.sources()] == [f"{folder}/{each}" for each in found]
    assert open_reader(f"{folder}/day[23]", "--x").names() == [f"{folder}/{e}" for e in found[1:]]
