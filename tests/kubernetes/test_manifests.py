"""Every manifest of deploy/, and of a job, is one that an API server takes."""

import pytest

from tests.kubernetes.conftest import ROOT, kubectl


@pytest.fixture(scope="module")
def shoal_namespace():
    """The overlays' namespace, which has to be there for what is in it to be judged."""
    kubectl("create", "namespace", "shoal")
    yield
    kubectl("delete", "namespace", "shoal", "--wait=false")


@pytest.mark.parametrize("overlay", ["gke", "local"])
def test_the_overlays_are_valid(overlay, shoal_namespace):
    made = kubectl("kustomize", str(ROOT / "deploy" / "overlays" / overlay))
    kinds = {line.split()[1] for line in made.splitlines() if line.startswith("kind:")}
    assert kinds >= {"Namespace", "Role", "RoleBinding", "NetworkPolicy", "PriorityClass"}
    done = kubectl("apply", "--dry-run=server", "-f", "-", text=made)
    assert len(done.splitlines()) == f"\n{made}".count("\nkind:")


def test_the_objects_of_a_server_of_predictions_are_valid(namespace):
    made = kubectl("kustomize", str(ROOT / "deploy" / "serving"))
    kinds = [line.split()[1] for line in made.splitlines() if line.startswith("kind:")]
    assert sorted(kinds) == ["Deployment", "Service"]
    done = kubectl("apply", "--dry-run=server", "-f", "-", text=made, namespace=namespace)
    assert len(done.splitlines()) == 2


def test_the_objects_of_a_job_are_valid(shoal, namespace):
    path = shoal.path / "job.yaml"
    template = str(ROOT / "deploy" / "overlays" / "gke" / "pods.yaml")
    flags = shoal.movielens("yaml", pod_template=template)
    assert shoal("train", *flags, "--yaml", str(path)).returncode == 0
    done = kubectl("apply", "--dry-run=server", "-f", str(path))
    assert len(done.splitlines()) == 3
    # Before a job is created its pods are judged too, by this very template.
    refused = shoal("train", *flags, "--ps-resources", "cpu=0.01:0.001")
    assert (refused.returncode, "must be less than or equal" in refused.stderr) == (2, True)
