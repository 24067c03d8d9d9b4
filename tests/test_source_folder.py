"""In a clone's folder that is not built, the package says that it is not whole."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import shoal
from shoal.client.run.checks import check_folder
from shoal.errors import UserError


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """A working directory with the folder shoal/ of a clone, and nothing that is built."""
    (tmp_path / "shoal").mkdir()
    (tmp_path / "shoal" / "__init__.py").write_text(Path(shoal.__file__).read_text())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_importing_it_says_where_to_work(clone):
    # -S: without the packages that are installed here, shoal among them.
    line = [sys.executable, "-S", "-m", "shoal.model_zoo.movielens.prepare", "ratings"]
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "work in a folder outside of the clone" in done.stderr


def test_a_job_is_refused_before_its_processes_would_not_find_the_package(clone):
    with pytest.raises(UserError, match=r"has a folder shoal/.*work in another folder"):
        check_folder()


def test_elsewhere_nothing_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    check_folder()
    monkeypatch.chdir(Path(shoal.__file__).parents[1])
    check_folder()
