"""Links between the pages of the documentation lead to files and headings that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
LINK = re.compile(r"\]\(([^()\s]+)\)")


def prose(page):
    """A page without its code, in which brackets and parentheses are no links."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"^ {4}.*$", "", text, flags=re.MULTILINE)


def anchors(page):
    """The names that GitHub gives to a page's headings."""
    found = []
    for heading in re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE):
        words = re.sub(r"[^\w\- ]", "", heading.lower())
        found.append(words.replace(" ", "-"))
    return found


def broken(page):
    """The links of a page that lead nowhere."""
    for link in LINK.findall(re.sub(r"`[^`\n]*`", "", prose(page))):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            yield link


# tox tests the wheel, beside which there are no pages.
@pytest.mark.skipif(not (ROOT / "docs").is_dir(), reason="the docs are not beside the tests")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page):
    assert list(broken(page)) == []


def test_a_link_to_nowhere_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "# One two\n[a](#one-two) [b](#three) [c](page.md#one-two) [d](gone.md)\n"
        "[e](https://example.com) `x[0](1)`\n"
    )
    assert list(broken(page)) == ["#three", "gone.md"]
