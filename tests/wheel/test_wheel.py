"""The wheel installs where there is no compiler, and trains the README's model there.

`make wheel-check` builds the wheel and names it in SHOAL_WHEEL. The environment into which it is
installed has nothing else on its path, and packages come from where pip takes them.
"""

import os
import re
import shlex
import subprocess
import venv
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

ROOT = Path(__file__).parents[2]
WHEEL = os.environ.get("SHOAL_WHEEL", "")

pytestmark = pytest.mark.skipif(not WHEEL, reason="SHOAL_WHEEL names no wheel: make wheel-check")


class Installed:
    """A fresh environment with the wheel and TensorFlow; the path names its programs alone."""

    def __init__(self, folder):
        venv.create(folder, with_pip=True)
        self.programs = folder / "bin"
        ours = ("PYTHON", "VIRTUAL_ENV", "CC", "SHOAL_")
        self.environment = {
            name: value for name, value in os.environ.items() if not name.startswith(ours)
        } | {"PATH": str(self.programs)}
        self.run("python", "-m", "pip", "install", "--quiet", f"{Path(WHEEL).resolve()}[cpu]")

    def run(self, program, *arguments, folder=None):
        """Run one of its programs; returns what it has printed."""
        line = [str(self.programs / program), *arguments]
        done = subprocess.run(
            line, cwd=folder, env=self.environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    return Installed(tmp_path_factory.mktemp("clean") / "environment")


def test_its_name_promises_linux_distributions_and_not_only_this_machine():
    assert "-manylinux_" in WHEEL


def test_it_holds_what_is_built_and_none_of_its_sources():
    names = zipfile.ZipFile(WHEEL).namelist()
    assert "shoal/native/rowstore.pyi" in names
    endings = (".c", ".cpp", ".h", ".pxd", ".pyx")
    assert [name for name in names if name.endswith(endings)] == []
    stems = {Path(name).name.partition(".")[0] for name in names if name.endswith(".so")}
    sources = ROOT.glob("native/*.pyx")
    assert stems == {source.stem for source in sources} | {"_cython"}


def test_no_compiler_is_found_where_it_is_installed(installed, tmp_path):
    find = "import shutil; print([shutil.which(name) for name in ('gcc', 'cc', 'clang', 'c++')])"
    assert installed.run("python", "-c", find, folder=tmp_path) == "[None, None, None, None]\n"
    where = installed.run("python", "-c", "import shoal; print(shoal.__file__)", folder=tmp_path)
    assert Path(where).is_relative_to(installed.programs.parent)


def test_its_command_tells_the_version_in_its_name(installed, tmp_path):
    version = Path(WHEEL).name.split("-")[1]
    assert installed.run("shoal", "--version", folder=tmp_path) == f"shoal, version {version}\n"


def write_ratings(path, records, seed):
    """Ratings as the README's command expects them: people like films of their own kind."""
    draw = np.random.default_rng(seed)
    user, item = draw.integers(50, size=records), draw.integers(30, size=records)
    label = (user % 2 == item % 2).astype(np.float32)
    pq.write_table(pa.table({"user": user, "item": item, "label": label}), path)


def test_it_trains_the_readmes_model_in_an_empty_folder(installed, tmp_path):
    page = (ROOT / "README.md").read_text()
    model, from_python = re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)
    command = re.search(r"^shoal (train .*?[^\\])$", page, re.M | re.S)[1].replace("\\\n", "")
    (tmp_path / "ratings.py").write_text(model)
    (tmp_path / "ratings").mkdir()
    write_ratings(tmp_path / "ratings" / "train.parquet", 8000, 1)
    write_ratings(tmp_path / "ratings" / "validation.parquet", 1000, 2)
    printed = installed.run("shoal", *shlex.split(command), folder=tmp_path)
    assert re.search(r"^  state +succeeded$", printed, re.M), printed
    assert float(re.search(r"^  auc +(\S+)$", printed, re.M)[1]) > 0.8
    assert (tmp_path / "trained" / "model.keras").exists()
    printed = installed.run("python", "-c", from_python, folder=tmp_path)
    assert printed.splitlines()[-1].startswith("succeeded 0.")
