"""The page of data names the types that tests/typed_data.py has, and no others."""

import re
from pathlib import Path

import pytest

from tests.typed_data import ROWS

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "data.md"


# tox tests the wheel, beside which there is no docs folder.
@pytest.mark.skipif(not PAGE.is_file(), reason="the docs are not beside the tests")
def test_each_row_of_the_page_has_its_columns_in_the_tests():
    _, _, section = PAGE.read_text().partition("## Which types does `feed` get?")
    heading, _, *rows = re.findall(r"^\| (.+?) \|", section.partition("\n## ")[0], re.MULTILINE)
    assert (heading, rows) == ("in the file", [*ROWS])
