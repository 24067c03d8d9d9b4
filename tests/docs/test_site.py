"""Every page of docs/ has a place in the site, and every place has a page."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
MEASURED = sorted((DOCS / "benchmarks").glob("*.json"))

# tox tests the wheel, beside which there are no pages.
pytestmark = pytest.mark.skipif(not DOCS.is_dir(), reason="the docs are not beside the tests")


def test_every_page_is_in_the_navigation_once():
    navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    listed = re.findall(r"(\S+\.md)$", navigation, re.MULTILINE)
    assert sorted(listed) == sorted(str(page.relative_to(DOCS)) for page in DOCS.glob("**/*.md"))


def test_no_page_links_to_a_file_outside_of_docs():
    outside = []
    for page in DOCS.glob("**/*.md"):
        for link in re.findall(r"\]\(([^()\s:#]+)", page.read_text()):
            target = (page.parent / link).resolve()
            if not target.is_relative_to(DOCS):
                outside.append(f"{page.relative_to(DOCS)}: {link}")
    assert outside == []


def figures(value):
    """All numbers within a value of a JSON file."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [number for each in value for number in figures(each)]
    return [value] if isinstance(value, int | float) else []


@pytest.mark.parametrize("measured", MEASURED, ids=lambda path: path.stem)
def test_the_plots_show_figures_that_stand_in_a_table(measured):
    pages = [DOCS / "benchmarks.md", *DOCS.glob("notes/*.md")]
    cells = re.findall(r"(?<=\| )[\d,.]+", "\n".join(page.read_text() for page in pages))
    standing = {float(cell.replace(",", "")) for cell in cells if cell.strip(",.")}
    data = json.loads(measured.read_text())
    assert data["command"] in (DOCS / "benchmarks.md").read_text()
    shown = figures({key: value for key, value in data.items() if key != "ids"})
    assert shown
    assert [number for number in shown if number not in standing] == []
    assert measured.with_suffix(".svg").exists()
