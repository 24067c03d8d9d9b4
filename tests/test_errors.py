"""All of shoal's exceptions have one base."""

import ast
import builtins
import sys
from pathlib import Path

import pytest

import shoal
from shoal.errors import Error

FOLDERS = [Path(shoal.__file__).parent] + [
    Path(__import__(f"shoal.{name}", fromlist=["_"]).__file__).parent
    for name in ("master", "native", "proto", "ps", "worker")
]

PYTHONS = {
    name
    for name, value in vars(builtins).items()
    if isinstance(value, type) and issubclass(value, BaseException)
}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_an_exception_of_ours_derives_from_the_base(folder):
    """From one of ours, therefore: Python's own may only be a base beside it."""
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and node.name != "Error":
                bases = {ast.unparse(base) for base in node.bases}
                assert not bases & PYTHONS or bases - PYTHONS, f"{path}: {node.name}({bases})"


def test_what_users_catch_is_in_the_public_face():
    for name in ("UserError", "StorageError", "UserCodeError", "JobFailedError"):
        assert issubclass(getattr(shoal, name), shoal.Error)
    assert shoal.Error is Error


def test_a_notebook_shows_the_cell_and_the_message_alone(capsys, monkeypatch, tmp_path):
    ipython = pytest.importorskip("IPython.core.interactiveshell")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # the shell sets its own
    shell = ipython.InteractiveShell.instance(colors="nocolor")
    try:
        shell.run_cell("def begin():\n    shoal.train(epoch=2)\nimport shoal\nbegin()")
    finally:
        ipython.InteractiveShell.clear_instance()
    shown = capsys.readouterr().out
    assert "UserError: shoal.train has no argument epoch (did you mean epochs?)" in shown
    assert "begin()" in shown
    assert "----> 2     shoal.train(epoch=2)" in shown
    assert "signatures.py" not in shown
