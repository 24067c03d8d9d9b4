"""The magics of a notebook, in a shell of IPython."""

import sys

import pandas as pd
import pytest

from shoal.errors import UserError
from shoal.sql import load_ipython_extension


@pytest.fixture
def shell(tmp_path, monkeypatch):
    ipython = pytest.importorskip("IPython.core.interactiveshell")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # the shell sets its own
    config = pytest.importorskip("traitlets.config").Config()
    config.HistoryManager.enabled = False  # its file would be gone when Python ends
    made = ipython.InteractiveShell.instance(colors="nocolor", config=config)
    load_ipython_extension(made)
    yield made
    ipython.InteractiveShell.clear_instance()


def test_frames_are_tables_and_answers_are_frames(shell, capsys):
    shell.user_ns["people"] = pd.DataFrame({"age": [1, 2, 3]})
    answer = shell.run_line_magic("shoal", "SELECT sum(age)::INT AS ages FROM people")
    assert answer["ages"].tolist() == [6]
    # A frame of an answer, and of this moment.
    shell.run_cell_magic("shoal", "--into old", "SELECT age FROM people WHERE age > 1;")
    shell.user_ns["people"] = pd.DataFrame({"age": [10]})
    cell = "CREATE TABLE kept AS SELECT 5 AS age;\nSELECT age FROM kept UNION ALL FROM people"
    assert sorted(shell.run_cell_magic("shoal", "", cell)["age"]) == [5, 10]
    assert shell.user_ns["old"]["age"].tolist() == [2, 3]
    assert shell.run_cell_magic("shoal", "", "SHOW MODELS") is None
    assert "there is no model" in capsys.readouterr().out


def test_a_database_stays_until_another_is_named(shell):
    shell.run_line_magic("shoal", "--database a.duckdb")
    shell.run_line_magic("shoal", "CREATE TABLE t AS SELECT 1 AS one")
    assert shell.run_cell_magic("shoal", "", "FROM t")["one"].tolist() == [1]
    shell.run_line_magic("shoal", "--database b.duckdb --models there")
    with pytest.raises(UserError, match="Table with name t does not exist"):
        shell.run_line_magic("shoal", "FROM t")
    for line in ("--datbase a", "--into", "a b"):
        with pytest.raises(UserError, match="the line of %%shoal is"):
            shell.run_cell_magic("shoal", line, "SELECT 1")


def test_a_mistake_is_shown_with_its_caret(shell):
    with pytest.raises(UserError) as raised:
        shell.run_cell_magic("shoal", "", "SELECT 1;\nSELECT 1 TO TRAIN m")
    assert str(raised.value) == (
        "line 2: INTO and a name for the model are expected here\n"
        "  SELECT 1 TO TRAIN m\n                     ^"
    )
