"""Variables in URLs: filled in where the URL is opened, and in no name, error or log line."""

import sqlite3

import fsspec
import pytest
from sqlalchemy.engine import make_url

from shoal import errors
from shoal.config.job import JobConfig
from shoal.config.url_variables import check_variables, fill
from shoal.data import open_reader
from shoal.data.custom import open_custom_reader
from shoal.errors import Error, UserError, without_secrets
from shoal.files.storage import open_storage

FLAG = "--training-data"
PASSWORD = "hunter2/@:?#%&word"


@pytest.fixture(autouse=True)
def hidden(monkeypatch):
    """Values that are hidden in a test are not in the next one."""
    monkeypatch.setattr(errors, "_hidden", {})
    monkeypatch.setattr(errors, "_hidden_pattern", None)
    monkeypatch.setenv("WORD", PASSWORD)


def test_values_reach_a_database_as_they_are(monkeypatch):
    monkeypatch.setenv("HOST", "db.example")
    monkeypatch.setenv("WHO", "me@home")
    url = "postgresql://${WHO}:${WORD}@${HOST}:5432/shop?options=${WORD}"
    made = make_url(fill(url, quoted=True).url)
    assert (made.username, made.password, made.host, made.port) == (
        *("me@home", PASSWORD),
        *("db.example", 5432),
    )
    assert (made.database, made.query["options"]) == ("shop", PASSWORD)
    # Whoever opens files takes no quotes out.
    assert fill("ftp://me:${WORD}@host/a").url == f"ftp://me:{PASSWORD}@host/a"
    assert fill("/data/${WORD}/a.csv").url == "/data/${WORD}/a.csv"


def test_a_line_break_at_the_end_of_a_secret_is_left_out(monkeypatch):
    monkeypatch.setenv("WORD", "hunter2\n")
    assert fill("ftp://me:${WORD}@host/a").url == "ftp://me:hunter2@host/a"


@pytest.mark.parametrize("value", [None, ""])
def test_a_variable_that_is_not_set_is_named_with_its_flag(value, monkeypatch):
    monkeypatch.delenv("WORD")
    if value is not None:
        monkeypatch.setenv("WORD", value)
    said = r"^--checkpoint-dir: s3://\$\{WORD\}/a: the environment variable WORD is not set; "
    config = JobConfig(model_def="a.b", training_data="t.csv", checkpoint_dir="s3://${WORD}/a")
    with pytest.raises(UserError, match=said + ".*--env-from-secret"):
        check_variables(config)
    with pytest.raises(UserError, match="WORD is not set"):
        open_storage("memory://${WORD}/a")
    for url in ("memory://${WORD}/a.csv", "sqlite:///${WORD}#clicks"):
        with pytest.raises(UserError, match=f"^{FLAG}: .*WORD is not set"):
            open_reader(url, FLAG)


def test_what_was_filled_in_is_in_no_text_of_this_process(monkeypatch):
    monkeypatch.setenv("PIN", "42x")
    fill("ftp://me:${WORD}@host/a?pin=${PIN}")
    quoted = "hunter2%2F%40%3A%3F%23%25%26word"
    for text in (f"login as me with {PASSWORD} failed", f"GET /a?w={quoted}", "pin=42x"):
        shown = without_secrets(text)
        assert "***" in shown
        assert not any(value in shown for value in (PASSWORD, quoted, "42x"))
        assert str(UserError(text)) == str(Error(text)) == shown
    # Days and years are everywhere, and no secrets.
    for name, value in (("DAY", "1"), ("MONTH", "12"), ("YEAR", "2026"), ("REGION", "eu")):
        monkeypatch.setenv(name, value)
        fill(f"s3://bucket/${{{name}}}/a.csv")
    assert without_secrets("loss 0.1 of 12 in 2026, eu") == "loss 0.1 of 12 in 2026, eu"
    # A short value may be part of any word.
    assert without_secrets("142x 42xy") == "142x 42xy"


class Login(fsspec.AbstractFileSystem):
    """A service whose library names the password in its errors."""

    protocol = "login"
    cachable = False

    @staticmethod
    def _get_kwargs_from_urls(path):
        return {"given": path}

    def __init__(self, given="", **options):
        super().__init__(**options)
        self.given = given

    def isfile(self, path, **_):
        raise RuntimeError(f"530 Login incorrect: {self.given}")

    makedirs = ls = isfile


def test_an_error_of_a_library_is_told_without_the_value(monkeypatch):
    fsspec.register_implementation("login", Login, clobber=True)
    with pytest.raises(UserError, match=r"\$\{WORD\}.*Login incorrect") as raised:
        open_reader("login://me:${WORD}@host/a.csv", FLAG)
    assert PASSWORD not in str(raised.value)
    with pytest.raises(OSError, match="Login incorrect") as failed:
        open_storage("login://me:${WORD}@host/a").make()
    assert PASSWORD in str(failed.value.__cause__)
    assert PASSWORD not in without_secrets(str(failed.value))


def test_names_of_files_and_tables_have_the_variable_in_every_process(tmp_path, monkeypatch):
    memory = fsspec.filesystem("memory")
    memory.pipe("/hunter2/a.csv", b"x\n1\n")
    monkeypatch.setenv("WORD", "hunter2")
    try:
        first = open_reader("memory://${WORD}/*.csv", FLAG)
        assert [each.name for each in first.sources()] == ["memory:///${WORD}/a.csv"]
        # A process that hides other values names the files as all do.
        errors.hide(["memory", "a.csv", "WORD"])
        again = open_reader("memory://${WORD}/*.csv", FLAG)
        assert again.sources() == first.sources()
        (batch,) = again.read("memory:///${WORD}/a.csv", 0, 1)
        assert batch.to_pylist() == [{"x": 1}]
    finally:
        memory.rm("/hunter2", recursive=True)
    with sqlite3.connect(tmp_path / "hunter2.db") as connection:
        connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY)")
        connection.execute("INSERT INTO t VALUES (1)")
    connection.close()
    reader = open_reader(f"sqlite:///{tmp_path}/${{WORD}}.db#t", FLAG)
    assert [each.name for each in reader.sources()] == [f"sqlite:///{tmp_path}/${{WORD}}.db#t"]


class Named:
    def __init__(self, pattern):
        self.pattern = pattern

    def sources(self):
        return [(self.pattern, 1)]

    def read(self, source, start, end):
        return iter(())


def test_a_users_reader_gets_the_value_and_must_not_name_it():
    reader = open_custom_reader(Named, "ftp://me:${WORD}@host/a", FLAG)
    with pytest.raises(UserError, match="holds a credential") as raised:
        reader.sources()
    assert "hunter2" not in str(raised.value)
