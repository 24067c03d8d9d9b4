"""The page of flags says what JobConfig says.

After a change of a flag, `python tests/docs/test_flags.py` prints the sections anew.
"""

import dataclasses
import inspect
from pathlib import Path

import pytest

import shoal
from shoal.client.by_value import NAMES
from shoal.config.flags import COMMANDS, default_of, flag, kind_of, value_of
from shoal.config.job import JobConfig, fields_of, option_fields
from shoal.config.options import GROUPS
from shoal.config.signatures import NUMBERS

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "flags.md"


def row(field):
    commands = field.metadata["commands"]
    if field.default is dataclasses.MISSING:
        default = "required"
    elif field.default == "" or isinstance(field.default, bool):
        default = ""
    else:
        default = f"`{default_of(field)}`"
    where = "all" if commands == COMMANDS else ", ".join(commands)
    value = "" if isinstance(field.default, bool) else f" {value_of(field)}"
    name = f"{flag(field.name)}{value}".replace("|", "\\|")
    return f"| `{name}` | {default} | {where} | {field.metadata['help']} |"


def section(group):
    """The section of the page for the flags of one subject."""
    return "\n".join(
        [
            f"## {group.title}",
            "",
            group.about,
            "",
            "| flag | default | command | meaning |",
            "| --- | --- | --- | --- |",
            *map(row, group.fields),
        ]
    )


# tox tests the wheel, beside which there is no docs folder.
@pytest.mark.skipif(not PAGE.parent.is_dir(), reason="the docs are not beside the tests")
def test_every_flag_is_in_the_page_as_it_is():
    _, *parts = PAGE.read_text().split("\n## ")
    assert [f"## {part}".strip() for part in parts] == [section(group) for group in GROUPS]


def test_every_flag_is_in_one_group():
    grouped = [field.name for field in option_fields()]
    known = [f.name for f in dataclasses.fields(JobConfig) if f.metadata.get("commands")]
    assert sorted(grouped) == sorted(known)


def test_help_is_in_sentences():
    for field in option_fields():
        text = field.metadata["help"]
        assert text[0].isupper(), field.name
        assert text.endswith("."), field.name
        assert len(text) < 420, f"the help of {flag(field.name)} is long"


OWN = {*NAMES, "display", "validation_split", "verbose", "wait"}
"""Arguments of the Python API that are no flags."""


@pytest.mark.parametrize("command", COMMANDS)
def test_the_python_api_has_every_flag_as_an_argument(command):
    """In shoal/api, written by hand for editors and type checkers."""
    taken = dict(inspect.signature(getattr(shoal, command)).parameters)
    for name in OWN:
        taken.pop(name, None)
    wanted = fields_of(command)
    assert list(taken) == [field.name for field in wanted]
    for field in wanted:
        argument = taken[field.name]
        assert argument.kind is inspect.Parameter.KEYWORD_ONLY
        number = field.name in NUMBERS
        default = "" if field.default is dataclasses.MISSING else field.default
        default = int(default) if number else default
        assert (type(argument.default), argument.default) == (type(default), default), field.name
        value = field.metadata["value"]
        path = value in ("FOLDER", "JOB|FOLDER", "LINK") or field.name.endswith("_dir")
        kind = "AnyPath" if path else kind_of(field).__name__
        kind = "int" if number else kind
        kind = "Data" if field.metadata["value"] == "DATA" else kind
        assert argument.annotation.split(" |")[0] == kind, field.name


def test_a_call_of_train_can_be_checked():
    """By another name: of the same arguments, check looks at those that it has a use for."""
    trains, checks = inspect.signature(shoal.train), inspect.signature(shoal.check)
    assert checks.parameters == trains.parameters
    assert {field.name for field in fields_of("check")} <= checks.parameters.keys()


if __name__ == "__main__":
    print("\n\n".join(section(group) for group in GROUPS))
