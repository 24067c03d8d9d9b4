"""Every command of the README and the guide is one that exists, with flags that exist."""

import importlib.util
import re

import click
import pytest
import yaml
from click.testing import CliRunner

from shoal.cli.main import main
from tests.docs.pages import GUIDE, README, ROOT, blocks, commands, with_pages, words

pytestmark = with_pages

NOT_OURS = {"cat", "cp", "curl", "docker", "ls", "export", "gcloud", "kind", "kubectl", "minikube"}
NOT_OURS |= {".", "bentoml", "chmod", "feast", "mkdir", "mv", "pip", "python3", "ssh"}
"""Programs that the pages use and whose flags are not looked at."""

PAGES = [README, "docs/head-to-head.md", *GUIDE]
ON_KUBERNETES = [
    (place, command)
    for page in PAGES
    for place, command in commands(page)
    if re.match(r"shoal train .*--image", command)
]
MADE_BY_PAGES = {name for page in PAGES for name in (block.file for block in blocks(page))}


def parse(command):
    """What click makes of a command of shoal, without running it."""
    context, found = None, main
    while isinstance(found, click.Group):
        context = click.Context(found, parent=context, **found.context_settings)
        name, *command = command
        found = found.commands[name]
    found.make_context(name, command, parent=context)


def check(command):
    """Raises if the program, the file, the module, the target or the flags do not exist."""
    program, *rest = words(command)
    if program == "shoal":
        parse(rest)
    elif program == "make":
        targets = re.findall(r"^([\w/-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert rest[0] in targets
    elif program == "python" and rest[0] == "-m":
        assert importlib.util.find_spec(rest[1])
    elif program == "python":
        assert rest[0] in MADE_BY_PAGES or (ROOT / rest[0]).is_file()
    else:
        assert program in NOT_OURS


@pytest.mark.parametrize("page", PAGES)
def test_every_command_exists_and_has_these_flags(page):
    for place, command in commands(page):
        try:
            check(command)
        except (AssertionError, KeyError, click.ClickException) as error:
            pytest.fail(f"{place}: {command}: {error!r}")


@pytest.mark.parametrize("page", PAGES)
def test_every_command_in_a_sentence_exists(page):
    prose = re.sub(r"^```.*?^```", "", (ROOT / page).read_text(), flags=re.M | re.S)
    for command in re.findall(r"`shoal ([a-z][^`]*)`", " ".join(prose.split())):
        found, *rest = words(command)
        assert found in main.commands, command
        if isinstance(main.commands[found], click.Group):
            assert rest[0] in main.commands[found].commands, command


def test_a_command_that_does_not_exist_is_found():
    check("shoal train --model-def a.b --training-data c --workers 2")
    check("shoal checkpoint show shoal-jobs/clicks user_table --id 7")
    check("make demo")
    for wrong in (
        "shoal trian --model-def a.b",
        "shoal train --model-def a.b --traning-data c",
        "shoal checkpoint lsit shoal-jobs/clicks",
        "make dmeo",
        "python benchmarks/gone.py",
        "python -m shoal.gone",
        "kubectll apply",
    ):
        with pytest.raises((AssertionError, KeyError, click.ClickException)):
            check(wrong)


@pytest.mark.parametrize(("place", "command"), ON_KUBERNETES, ids=lambda text: text[:40])
def test_the_objects_of_a_job_on_a_cluster_can_be_made(place, command, tmp_path, monkeypatch):
    """Without a cluster, its values are checked and its objects written."""
    monkeypatch.chdir(ROOT)  # whose deploy/ has the template of pods
    made = tmp_path / "job.yaml"
    done = CliRunner().invoke(main, [*words(command)[1:], "--yaml", str(made)])
    assert done.exit_code == 0, (place, done.output)
    kinds = {each["kind"] for each in yaml.safe_load_all(made.read_text())}
    assert {"Job", "ConfigMap"} <= kinds


def check_patches(kustomization):
    """What the patches of a page replace is there, in the folder of deploy/ that it names."""
    (folder,) = kustomization["resources"]
    base = ROOT / folder.removeprefix("../")
    names = yaml.safe_load((base / "kustomization.yaml").read_text())["resources"]
    there = {
        each["kind"]: each
        for name in names
        for each in yaml.safe_load_all((base / name).read_text())
    }
    for patch in kustomization["patches"]:
        for change in yaml.safe_load(patch["patch"]):
            at = there[patch["target"]["kind"]]
            assert at["metadata"]["name"] == patch["target"]["name"]
            for part in change["path"].strip("/").split("/"):
                at = at[int(part) if part.isdecimal() else part]
            assert isinstance(at, str), change


@pytest.mark.parametrize("page", PAGES)
def test_templates_of_pods_are_taken(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for block in blocks(page):
        if block.language != "yaml":
            continue
        content = yaml.safe_load(block.text)
        if {"scrape_configs", "online_store"} & content.keys():  # Prometheus's and Feast's own
            continue
        if content.get("kind") == "Kustomization":
            check_patches(content)
            continue
        if "worker" not in content:  # an object for kubectl
            assert {"apiVersion", "kind", "metadata", "spec"} <= content.keys(), block.place
            continue
        (tmp_path / "pods.yaml").write_text(block.text)
        line = "train --image image --model-def a.b --training-data /data --pod-template pods.yaml"
        done = CliRunner().invoke(main, [*line.split(), "--yaml", "job.yaml"])
        assert done.exit_code == 0, (block.place, done.output)
