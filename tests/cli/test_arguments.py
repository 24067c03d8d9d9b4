"""Each form that the signatures of the Python API promise for an argument is taken, and kept."""

import inspect
import pathlib
import typing
from collections import abc
from types import SimpleNamespace

import pytest

import shoal
import shoal.api
from shoal.api import calls
from shoal.config.flags import COMMANDS
from shoal.config.job import fields_of
from shoal.errors import UserError
from shoal.result import JobResult

RESULT = JobResult("earlier", "train", "succeeded", pathlib.Path("jobs"), output="model")
FORMS = {
    "model_params": ("dim=8,kind='deep'", {"dim": 8, "kind": "deep"}),
    "csv_columns": ("a,b", ["a", "b"]),
    "columns": ("a,b", ["a", "b"]),
    "missing_mask": ("a,b", ("a", "b")),
    "fill_missing": ("a=1,b=x", ["a=1", "b=x"], {"a": 1, "b": "x"}),
    "table": (
        *("u.admit_after=2", ["u.admit_after=2"]),
        *({"u.admit_after": 2}, {"u": {"admit_after": 2}}),
    ),
    "workers": ("2", 2),
    "servers": ("2", 2),
    "row_cache": ("64", 64),
    "volcano": ("2", 2),
    "restore_from": ("model", pathlib.Path("model"), RESULT),
    "continue_from": ("jobs", pathlib.Path("jobs"), RESULT),
}
"""Of arguments that have several forms, beside those of a path: values of each, of one meaning."""

PLAIN = {str: ("text",), int: (7,), float: (900.0, 900), bool: (True,)}
"""Of arguments that have one form: values of one meaning."""


def forms(name, annotation):
    """Values of every type that an annotation names. A new argument may need an entry above."""
    if annotation == calls.AnyPath:
        return "folder", pathlib.Path("folder")
    given = FORMS.get(name) or PLAIN[annotation]
    kinds = typing.get_args(annotation) or (annotation,)
    for kind in (typing.get_origin(kind) or kind for kind in kinds):
        # A text is a sequence as well.
        found = [each for each in given if isinstance(each, str) == (kind is str)]
        assert any(isinstance(each, kind) for each in found), (
            f"give FORMS a value of {name} as {kind}"
        )
    return given


def cases():
    for command in (*COMMANDS, "check"):
        taken = {field.name for field in fields_of(command)}
        for name, each in inspect.signature(getattr(shoal, command)).parameters.items():
            annotation = eval(each.annotation, {**vars(abc), **vars(calls)})
            # Models and data by value have tests of their own.
            if name in taken and annotation is not calls.Data:
                yield pytest.param(command, name, annotation, id=f"{command}-{name}")


@pytest.fixture
def kept(monkeypatch):
    """Calls a function of the API, and returns what the job's configuration has of an argument."""
    seen = []
    # Which values go together is JobConfig's.
    monkeypatch.setattr(calls, "JobConfig", SimpleNamespace)
    monkeypatch.setattr(calls, "_run", lambda given, _: seen.append(given.config))
    monkeypatch.setattr(calls, "checked_report", seen.append)

    def call(command, name, value):
        getattr(shoal, command)(**({"model_def": "model.custom_model"} | {name: value}))
        return getattr(seen.pop(), name)

    return call


@pytest.mark.parametrize(("command", "name", "annotation"), [*cases()])
def test_each_form_of_each_argument_is_taken(kept, command, name, annotation):
    first, *others = forms(name, annotation)
    text = kept(command, name, first)
    assert text == first
    for value in others:
        found = kept(command, name, value)
        assert (type(found), found) == (type(text), text)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("columns", ["a,b"], "^columns: 'a,b' holds a comma, which would make it two"),
        ("columns", b"a", "^columns must be of type str, not b'a'"),
        ("fill_missing", {"a": None}, r"^fill_missing cannot be \{'a': None\}: give a number, a"),
        ("fill_missing", {"a": "b,c=d"}, "^fill_missing cannot be .*without commas"),
        ("fill_missing", {"a=b": 1}, "^fill_missing cannot be .*a column without = in its name"),
        ("epochs", "2", "^epochs must be of type int, not '2'"),
    ],
)
def test_what_would_mean_another_thing_as_text_is_refused(kept, name, value, message):
    with pytest.raises(UserError, match=message):
        kept("train", name, value)
