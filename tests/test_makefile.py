"""The Makefile in a fresh clone: what is installed for whom, and that nothing is compiled twice."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

import shoal.native

ROOT = Path(__file__).parents[1]
SOURCES = ("Makefile", "pyproject.toml", "setup.py", "native", "deploy")
COMPILED = "setup.py --quiet build_ext --inplace"
FOR_JOBS, FOR_DEVELOPERS = (
    "dependencies.py cpu |",
    "dependencies.py cpu jax torch torchmetrics dev |",
)


@pytest.fixture
def clone(tmp_path):
    """A folder with what the Makefile reads, and nothing that it makes."""
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("*.so"))
        else:
            shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def would_run(clone, *targets):
    """The commands of `make TARGETS`, without running them."""
    ours = ("MAKE", "MFLAGS", "VENV", "PYTHON")
    done = subprocess.run(
        ["make", "--dry-run", "--no-print-directory", *targets],
        cwd=clone,
        env={name: text for name, text in os.environ.items() if not name.startswith(ours)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def make(clone, *names):
    """As if these targets were made, one after the other."""
    for seconds, name in enumerate(names):
        path = clone / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        later = (clone / "setup.py").stat().st_mtime + 1000 + seconds
        os.utime(path, (later, later))


def test_the_demo_installs_nothing_for_developers_and_compiles_once(clone):
    commands = would_run(clone, "demo")
    assert commands.count(FOR_JOBS) == 1
    assert FOR_DEVELOPERS not in commands
    assert commands.count(COMPILED) == 1


@pytest.mark.parametrize("targets", [["test"], ["test-fast"], ["lint", "test"]])
def test_developers_get_their_tools_too_and_compile_once(clone, targets):
    commands = would_run(clone, *targets)
    assert commands.index(FOR_JOBS) < commands.index(FOR_DEVELOPERS)
    assert commands.count(COMPILED) == 1


def test_pip_compiles_nothing_beside_it(clone):
    for line in would_run(clone, "lint", "test").replace("\\\n", " ").splitlines():
        assert "--editable" not in line or line.startswith("SHOAL_PURE=1 "), line


def test_the_demo_after_the_tests_only_trains_and_the_tests_after_the_demo_compile_nothing(clone):
    demo = (".venv/tools", ".venv/jobs", "build/compiled", "build/movielens/train.parquet")
    make(clone, *demo)
    assert FOR_DEVELOPERS in (commands := would_run(clone, "test"))
    assert FOR_JOBS not in commands
    assert COMPILED not in commands
    make(clone, *demo, ".venv/installed", "build/extensions")
    assert "install" not in would_run(clone, "demo", "test", "lint")
    assert COMPILED not in would_run(clone, "demo", "test", "lint")


def test_what_extensions_share_is_in_one_of_them():
    built = [path for folder in shoal.native.__path__ for path in Path(folder).glob("*.so")]
    holders = [path for path in built if b"View.MemoryView" in path.read_bytes()]
    assert [path.name.partition(".")[0] for path in holders] == ["_cython"]
    assert len(built) > 5
