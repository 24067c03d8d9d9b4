"""Docstrings begin with the noun or the verb: the reader looks for what a thing is or does."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MASTER = tuple(
    f"master/{each}"
    for each in ("calls", "cluster", "figures", "job", "journal", "launchers", "work")
)
FOLDERS = ("native", "proto", "ps", *MASTER, "worker", "shoal", "model_zoo", "benchmarks", "deploy")
NEVER = {*("What", "Whether", "How", "Have", "Where", "Those", "As", "Of", "Who", "When", "Why")}

# tox tests the wheel, beside which there is no source.
pytestmark = pytest.mark.skipif(
    not (ROOT / "master").is_dir(), reason="the source is not beside the tests"
)


def beginnings(text):
    """(line, first word) of each docstring of a module."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            words = (ast.get_docstring(node) or "").split()
            if words:
                yield getattr(node, "lineno", 1), words[0].strip(",.:;")


@pytest.mark.parametrize("folder", FOLDERS)
def test_docstrings_begin_with_the_noun_or_the_verb(folder):
    modules = [*(ROOT / folder).rglob("*.py")]
    assert modules
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: begins with {word}"
        for path in modules
        for line, word in beginnings(path.read_text())
        if word in NEVER
    ]
    assert wrong == []


def test_another_beginning_is_found():
    text = '"""What it is."""\ndef f():\n    """Whether."""\ndef g():\n    """A number."""\n'
    assert [word in NEVER for _, word in beginnings(text)] == [True, True, False]
