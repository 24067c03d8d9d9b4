"""The way of a gradient in docs/architecture.md goes through modules and functions that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| (\w+/[\w/.]+) \| `(\w+)` \| ", re.MULTILINE)

# tox tests the wheel, beside which there are no pages.
pytestmark = pytest.mark.skipif(
    not (ROOT / "docs").is_dir(), reason="the docs are not beside the tests"
)


def test_every_stop_is_there():
    page = (ROOT / "docs" / "architecture.md").read_text()
    _, _, section = page.partition("\n## The way of a gradient\n")
    stops = ROW.findall(section.partition("\n## ")[0])
    assert 20 <= len(stops) <= 35
    for module, name in stops:
        text = (ROOT / module).read_text()
        assert re.search(rf"\bdef {name}\(|\b{name}\)?\(", text), f"{module} has no {name}"
        visits = [each for each, _ in stops].count(module)
        assert visits == 1 or module == "worker/training/steps.py", f"back in {module}"
