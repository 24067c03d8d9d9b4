"""The manifests of deploy/ for a namespace of one's own, made as the guide says."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.docs.roles import ROOT

PAGE = ROOT / "docs" / "guide" / "kubernetes-rights.md"
OF_THE_CLUSTER = {"Namespace", "PriorityClass"}

pytestmark = pytest.mark.skipif(
    shutil.which("kubectl") is None or not PAGE.is_file(), reason="needs kubectl and the docs"
)


def objects(folder):
    done = subprocess.run(
        ["kubectl", "kustomize", str(folder)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def test_the_overlay_of_the_guide_has_all_of_a_namespace(tmp_path):
    shutil.copytree(ROOT / "deploy", tmp_path / "deploy")
    (block,) = re.findall(r"```sh\n(mkdir ads\n.*?)```", PAGE.read_text(), re.DOTALL)
    commands, _, last = block.rstrip().rpartition("\n")
    assert last == "kubectl apply -k ads"
    subprocess.run(["sh", "-ec", commands], cwd=tmp_path, check=True)
    made = objects(tmp_path / "ads")
    (namespace,) = [each for each in made if each["kind"] == "Namespace"]
    assert namespace["metadata"]["name"] == "ads"
    for each in made:
        if each["kind"] not in OF_THE_CLUSTER:
            assert each["metadata"]["namespace"] == "ads", each["kind"]
    (binding,) = [each for each in made if each["kind"] == "RoleBinding"]
    assert [each["namespace"] for each in binding["subjects"]] == ["ads"]


@pytest.mark.parametrize("name", ["local", "gke"])
def test_the_overlays_that_come_with_shoal_are_for_the_namespace_shoal(name):
    made = objects(Path(ROOT, "deploy", "overlays", name))
    found = {each["metadata"].get("namespace") for each in made}
    assert found == {"shoal", None}
    assert all(
        (each["kind"] in OF_THE_CLUSTER | {"PersistentVolume"})
        == ("namespace" not in each["metadata"])
        for each in made
    )
