"""No class has more than a reader can hold at once, but those that are named with a reason."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("native", "proto", "ps", "master", "worker", "shoal")
PUBLIC = 25
ATTRIBUTES = 15

LARGE = {
    "a record: a field for each fact, and no part that could stand alone": (
        *("WorkerMember", "ServerMember", "Task", "Shard", "JobResult", "DeltaManifest"),
        *("KubernetesOptions", "Progress", "Heartbeat"),
    ),
    "one state that changes as a whole: its parts would share all attributes": (
        *("Checkpoints", "Moves", "PhaseMachine", "TaskBoard", "Registration", "Circuit"),
        *("Watch", "Watcher", "Following", "Journal", "FileSink", "CompiledSteps", "Publishing"),
    ),
    "holds the parts of a process, and passes calls on to them": (
        *("Job", "ParameterServer", "Worker", "ServedModel", "InputPipeline", "ServerCalls"),
        *("Connection", "ArrayServer"),
    ),
    "questions of one line about who is there": ("Membership",),
}
"""Reason -> classes."""

# tox tests the wheel, beside which the folders have other places.
pytestmark = pytest.mark.skipif(
    not (ROOT / "worker").is_dir(), reason="the sources are not beside the tests"
)


def attributes(made):
    """The fields that a class declares, and all that its methods assign to self."""
    found = {each.target.id for each in made.body if isinstance(each, ast.AnnAssign)}
    for each in ast.walk(made):
        stored = isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store)
        if stored and isinstance(each.value, ast.Name) and each.value.id == "self":
            found.add(each.attr)
    return found


def public(made):
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {each.name for each in made.body if isinstance(each, kinds) and each.name[0] != "_"}


def test_no_class_is_large_but_those_with_a_reason():
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    classes = [
        each
        for path in files
        for each in ast.walk(ast.parse(path.read_text()))
        if isinstance(each, ast.ClassDef)
    ]
    large = {
        each.name
        for each in classes
        if len(public(each)) > PUBLIC or len(attributes(each)) > ATTRIBUTES
    }
    assert large == {name for names in LARGE.values() for name in names}


def test_no_room_has_more_files_than_a_reader_can_hold_at_once():
    rooms = {path.parent for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")}
    assert [room for room in rooms if len(list(room.glob("*.py"))) > 16] == []
