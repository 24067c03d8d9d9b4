"""Fragments of the changelog have names that towncrier takes, and workflows run what there is."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))

# tox tests the wheel, beside which there are no workflows.
pytestmark = pytest.mark.skipif(not WORKFLOWS, reason="the workflows are not beside the tests")


def test_each_fragment_has_a_name_that_the_changelog_takes():
    """Towncrier leaves others out of it, and says nothing."""
    towncrier = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["towncrier"]
    right = rf"(\d+|\+[\w-]+)\.({'|'.join(towncrier['fragment'])})\.md|README\.md"
    names = [path.name for path in (ROOT / towncrier["directory"]).iterdir()]
    assert [name for name in names if not re.fullmatch(right, name)] == []


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_each_target_of_a_workflow_is_in_the_makefile(workflow):
    jobs = yaml.safe_load(workflow.read_text())["jobs"].values()
    lines = "\n".join(step.get("run", "") for job in jobs for step in job["steps"])
    for targets in re.findall(r"\bmake ((?:[a-z-]+ ?)+)", lines):
        done = subprocess.run(
            ["make", "--dry-run", *targets.split()], cwd=ROOT, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr


def test_wheels_are_built_and_checked_for_the_pythons_that_are_promised():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    promised = re.findall(r"Python :: (3\.\d+)", "\n".join(project["project"]["classifiers"]))
    built = project["tool"]["cibuildwheel"]["build"]
    assert built == f"cp31[{''.join(python[-1] for python in promised)}]-manylinux_*"
    checks = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())["jobs"]["check"]
    assert checks["strategy"]["matrix"]["python"] == promised
