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


@pytest.fixture
def tool(tmp_path, monkeypatch):
    """A buildah that writes down how it is called, and fails where it is to."""
    path = tmp_path / "bin" / "buildah"
    path.parent.mkdir()
    path.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\ntest ! -e {tmp_path}/fail\n')
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{path.parent}{os.pathsep}/bin")
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
    assert shoal("zoo", "push", "--image", "r/m:1", "--tool", "buildah").exit_code == 0
    calls = (tool / "calls").read_text().splitlines()
    assert calls == [f"bud --tag r/m:1 --file {folder}/Dockerfile {folder}", "push r/m:1"]
    (tool / "fail").touch()
    done = shoal("zoo", "push", "--image", "r/m:1", "--tool", "buildah")
    assert (done.exit_code, "ended with code 1" in done.stderr) == (2, True)


def test_a_tool_that_is_not_there_is_named(folder, tool):
    shoal("zoo", "init", folder, "--base", "b")
    done = shoal("zoo", "build", folder, "--image", "m", "--tool", "kaniko")
    assert (done.exit_code, "kaniko is not installed" in done.stderr) == (2, True)
