"""The page of flags says what JobConfig says.

After a change of a flag, `python tests/docs/test_flags.py` prints the rows anew.
"""

import dataclasses
from pathlib import Path

import pytest

from shoal.config.flags import COMMANDS, flag
from shoal.config.job import option_fields

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "flags.md"


def rows():
    """A row of the table for each field that has a flag."""
    for field in option_fields():
        commands = field.metadata["commands"]
        if field.default is dataclasses.MISSING:
            default = "required"
        elif field.default == "" or isinstance(field.default, bool):
            default = ""
        else:
            default = f"`{field.default}`"
        where = "all" if commands == COMMANDS else ", ".join(commands)
        yield f"| `{flag(field.name)}` | {default} | {where} | {field.metadata['help']} |"


# tox tests the wheel, beside which there is no docs folder.
@pytest.mark.skipif(not PAGE.parent.is_dir(), reason="the docs are not beside the tests")
def test_every_flag_is_in_the_page_as_it_is():
    table = [line for line in PAGE.read_text().splitlines() if line.startswith("| `--")]
    assert table == list(rows())


if __name__ == "__main__":
    print("\n".join(rows()))
