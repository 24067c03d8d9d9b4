"""`shoal zoo`, up to the call of the tool that builds."""

import os

import pytest
from click.testing import CliRunner

from shoal.cli.main import main


def shoal(*words):
    done = CliRunner().invoke(main, [str(word) for word in words], prog_name="shoal")
    assert "Traceback" not in done.output
    return done


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "models"
    made.mkdir()
    (made / "model.py").write_text("")
    return made


DIGEST = "sha256:" + "5" * 64

BUILDAH = f"""
test "$2" != --digestfile || printf %s {DIGEST} > "$3"
"""
DOCKER = f"""
test "$1" != image || printf 'other/m@sha256:1\\nr:5000/m@{DIGEST}\\n'
"""


@pytest.fixture
def tool(tmp_path, monkeypatch):
    """A buildah and a docker that write down how they are called, and fail where they are to."""
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}/bin")
    for name, answers in (("buildah", BUILDAH), ("docker", DOCKER)):
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        written = f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n{answers}test ! -e {tmp_path}/fail\n'
        path.write_text(written)
        path.chmod(0o755)
    return tmp_path


def test_init_writes_a_dockerfile_once(folder):
    assert shoal("zoo", "init", folder, "--base", "registry/shoal:1").exit_code == 0
    text = (folder / "Dockerfile").read_text()
    assert "FROM registry/shoal:1\n" in text
    assert "/model_zoo/" in text
    done = shoal("zoo", "init", folder, "--base", "registry/shoal:1")
    assert (done.exit_code, "there is a" in done.stderr) == (2, True)


def test_a_folder_without_modules_is_refused(tmp_path):
    done = shoal("zoo", "init", tmp_path, "--base", "b")
    assert (done.exit_code, "has no module" in done.stderr) == (2, True)
    done = shoal("zoo", "init", tmp_path / "none", "--base", "b")
    assert (done.exit_code, "there is no folder" in done.stderr) == (2, True)


def test_build_and_push_drive_the_tool_that_is_there(folder, tool):
    done = shoal("zoo", "build", folder, "--image", "r/m:1", "--tool", "buildah")
    assert (done.exit_code, "there is no" in done.stderr) == (2, True)
    shoal("zoo", "init", folder, "--base", "b")
    assert shoal("zoo", "build", folder, "--image", "r/m:1", "--tool", "buildah").exit_code == 0
    done = shoal("zoo", "push", "--image", "r/m:1", "--tool", "buildah")
    assert (done.exit_code, done.stdout) == (0, f"run jobs with: --image r/m@{DIGEST}\n")
    calls = (tool / "calls").read_text().splitlines()
    assert calls[0] == f"bud --tag r/m:1 --file {folder}/Dockerfile {folder}"
    assert (calls[1].startswith("push --digestfile "), calls[1].endswith(" r/m:1")) == (True, True)
    (tool / "fail").touch()
    done = shoal("zoo", "push", "--image", "r/m:1", "--tool", "buildah")
    assert (done.exit_code, "ended with code 1" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("image", "pinned"),
    [
        ("r:5000/m:1", f"r:5000/m@{DIGEST}"),
        ("r:5000/m", f"r:5000/m@{DIGEST}"),
        ("r:5000/n:1", ""),
    ],
)
def test_docker_is_asked_for_the_digest_of_the_repository_that_was_pushed_to(tool, image, pinned):
    done = shoal("zoo", "push", "--image", image, "--tool", "docker")
    assert done.exit_code == 0
    assert done.stdout == (f"run jobs with: --image {pinned}\n" if pinned else "")
    assert ("does not tell its digest" in done.stderr) == (not pinned)


def test_a_tool_that_is_not_there_is_named(folder, tool):
    shoal("zoo", "init", folder, "--base", "b")
    done = shoal("zoo", "build", folder, "--image", "m", "--tool", "kaniko")
    assert (done.exit_code, "kaniko is not installed" in done.stderr) == (2, True)
