"""deploy/locks fits pyproject.toml, all packages have hashes, and images install nothing else."""

import itertools
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()

LOCKS = {"server": [], "build": ["--build"]} | {name: [name] for name in ("cpu", "worker", "jax")}
"""The arguments of deploy/dependencies.py, by the file of deploy/locks."""

PINNED = re.compile(r"(?P<pin>[^\s#\\][^\\#]*?) \\\n(?P<hashes>(?:    --hash=\S+(?: \\)?\n)+)")


def asked(*arguments):
    return subprocess.run(
        [sys.executable, DEPLOY / "dependencies.py", *arguments], capture_output=True, text=True
    )


def pins(text):
    """Each (requirement, lines of hashes) of a lock; fails on lines that are of another kind."""
    body = "".join(line for line in text.splitlines(True) if not line.lstrip().startswith("#"))
    found = [(Requirement(m["pin"]), m["hashes"].split("\n")[:-1]) for m in PINNED.finditer(body)]
    assert PINNED.sub("", body) == ""
    return found


def declared(name):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    if name == "build":
        return [Requirement(each) for each in project["build-system"]["requires"]]
    extras = project["project"]["optional-dependencies"]
    wanted = project["project"]["dependencies"] + (extras[name] if name != "server" else [])
    return [Requirement(each) for each in wanted]


def test_there_are_no_other_locks():
    assert {path.stem for path in (DEPLOY / "locks").iterdir()} == set(LOCKS)


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_has_an_allowed_version_of_each_dependency(name):
    locked = {}
    for pin, _ in pins((DEPLOY / "locks" / f"{name}.txt").read_text()):
        locked.setdefault(canonicalize_name(pin.name), []).append(pin)
    for python, machine in itertools.product(("3.11", "3.12", "3.13"), ("x86_64", "aarch64")):
        environment = default_environment() | {
            "python_version": python,
            "python_full_version": f"{python}.0",
            "sys_platform": "linux",
            "platform_machine": machine,
        }
        for wanted in declared(name):
            if wanted.marker and not wanted.marker.evaluate(environment):
                continue
            here = locked.get(canonicalize_name(wanted.name), [])
            fits = [pin for pin in here if not pin.marker or pin.marker.evaluate(environment)]
            assert len(fits) == 1, f"{wanted.name} on Python {python}, {machine}: run make locks"
            (version,) = fits[0].specifier
            assert wanted.specifier.contains(version.version), f"{wanted}: run make locks"


@pytest.mark.parametrize("name", LOCKS)
def test_each_package_has_one_version_and_hashes_and_no_address(name):
    text = (DEPLOY / "locks" / f"{name}.txt").read_text()
    assert "://" not in text
    assert "index" not in text
    locked = pins(text)
    assert locked
    for pin, hashes in locked:
        assert [each.operator for each in pin.specifier] == ["=="], pin
        assert "*" not in str(pin.specifier)
        assert pin.url is None
        for line in hashes:
            assert re.fullmatch(r"    --hash=sha256:[0-9a-f]{64}(?: \\)?", line), line


@pytest.mark.parametrize("name", LOCKS)
def test_pip_is_given_the_lock_and_must_check_it(name):
    done = asked("--locked", "yes", *LOCKS[name])
    assert done.returncode == 0, done.stderr
    first, second, rest = done.stdout.split("\n", 2)
    assert (first, second) == ("--require-hashes", "--only-binary :all:")
    assert rest == (DEPLOY / "locks" / f"{name}.txt").read_text()


def test_extras_without_a_lock_are_refused_unless_the_build_says_so():
    done = asked("--locked", "yes", "cpu", "gcs")
    assert (done.returncode, done.stdout) == (1, "")
    assert "EXTRAS='cpu gcs'; add --build-arg LOCKED=no" in done.stderr
    done = asked("--locked", "no", "cpu", "gcs")
    assert done.returncode == 0
    assert "without hashes" in done.stderr
    assert {"click>=8.1", "keras>=3.5", "gcsfs>=2023.1"} <= set(done.stdout.splitlines())


@pytest.mark.parametrize("locked", ["yes", "no"])
def test_an_unknown_extra_is_named(locked):
    done = asked("--locked", locked, "cpus")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("pyproject.toml has no extra cpus; ")
    assert "cpu, " in done.stderr
    assert "Traceback" not in done.stderr


def test_the_image_installs_what_is_locked_and_nothing_else():
    assert "\nARG LOCKED=yes\n" in DOCKERFILE
    commands = re.sub(r"\\\n\s*", "", DOCKERFILE)
    runs = re.findall(r"^RUN (.*)", commands, re.MULTILINE)
    installs = [run for run in runs if "pip install" in run]
    assert len(installs) == 3
    script = r"python3 \S+/deploy/dependencies\.py --locked \$\{LOCKED\} "
    dependencies, tools, itself = installs
    assert re.match(script + r"\$\{EXTRAS\} > (\S+) .*--requirement \1 ", dependencies)
    assert re.match(script + r"--build > (\S+) .*--requirement \1$", tools)
    assert "--no-deps --no-build-isolation " in itself
    assert itself.endswith(" /tmp/source")
