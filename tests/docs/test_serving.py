"""The guide's two towers are trained, predicted and searched as the guide has it."""

import random
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "models.md"

pytestmark = pytest.mark.job


def test_two_towers_are_served_with_an_index(tmp_path):
    section = GUIDE.read_text().partition("### Serving two towers")[2].partition("\n## ")[0]
    module, find = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    (tmp_path / "towers.py").write_text(module)
    # A user views the items of its own kind, of which there are four.
    draw = random.Random(4)
    rows = [(user, 4 * draw.randrange(10) + user % 4) for user in range(40) for _ in range(40)]
    draw.shuffle(rows)
    lines = [f"{user},{item}" for user, item in rows]
    (tmp_path / "views.csv").write_text("\n".join(["user,item", *lines, ""]))
    text = section.replace("\\\n", " ")
    train, predict = re.findall(r"^    shoal (.*)$", text, re.MULTILINE)
    for command in (f"{train} --num-epochs 20 --minibatch-size 64", predict):
        line = [sys.executable, "-m", "shoal", *shlex.split(command)]
        done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    # Without shoal, and what it found is of the user's kind.
    find = find.replace(
        "print(best(7))", "print(*best(7))\nimport sys\nassert 'shoal' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", find], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = [int(item) for item in done.stdout.split()]
    assert len(found) == 10
    assert {item % 4 for item in found} == {3}
