"""The Deployment and Service of deploy/serving: ready with the first values, serving the next."""

import json
import os

import numpy as np
import pytest

from tests.kubernetes.conftest import ROOT, kubectl
from tests.kubernetes.image import IMAGE, PACKAGES_MOUNT, packages
from tests.serve.models import Predicting
from tests.waiting import until

COLUMNS = {"user": [1, 2, 999], "tags": [[3, 4], [], [5]], "word": ["x", "y", "z"]}


def overlay(folder, live):
    """Write a kustomization by which pods of this cluster have the image and the folder."""
    container = "/spec/template/spec/containers/0"
    patch = [
        {"op": "add", "path": f"{container}/imagePullPolicy", "value": "Never"},
        {"op": "replace", "path": f"{container}/env/1/value", "value": "clicks"},
        {
            "op": "add",
            "path": f"{container}/env/-",
            "value": {"name": "PYTHONPATH", "value": PACKAGES_MOUNT},
        },
        {
            "op": "replace",
            "path": f"{container}/resources",
            "value": {"requests": {"cpu": "20m", "memory": "200Mi"}},
        },
        {
            "op": "add",
            "path": f"{container}/volumeMounts/-",
            "value": {"name": "packages", "mountPath": PACKAGES_MOUNT, "readOnly": True},
        },
        {
            "op": "replace",
            "path": "/spec/template/spec/volumes/0",
            "value": {"name": "shoal", "hostPath": {"path": str(live.parent)}},
        },
        {
            "op": "add",
            "path": "/spec/template/spec/volumes/-",
            "value": {"name": "packages", "hostPath": {"path": str(packages())}},
        },
    ]
    name, _, tag = IMAGE.rpartition(":")
    made = {
        "resources": [os.path.relpath(ROOT / "deploy" / "serving", folder)],
        "images": [{"name": "shoal", "newName": name, "newTag": tag}],
        "patches": [
            {"target": {"kind": "Deployment", "name": "shoal-serve"}, "patch": json.dumps(patch)}
        ],
    }
    (folder / "kustomization.yaml").write_text(json.dumps(made))


@pytest.fixture
def live(shoal, namespace, tmp_path):
    """The folder that the Deployment of a namespace serves, which is empty."""
    folder = shoal.path / "live"
    overlay(tmp_path, folder)
    kubectl("apply", "-k", str(tmp_path), namespace=namespace)
    yield folder
    kubectl("delete", "-k", str(tmp_path), namespace=namespace)


def pods(namespace):
    found = json.loads(kubectl("get", "pods", "-o", "json", namespace=namespace))["items"]
    return [each["metadata"]["name"] for each in found if each["status"]["phase"] == "Running"]


def test_replicas_are_ready_with_the_first_values_and_serve_the_next(live, namespace):
    where = f"/api/v1/namespaces/{namespace}"

    def probes():
        """The pods of which a probe was answered that they are not ready."""
        events = json.loads(kubectl("get", "events", "-o", "json", namespace=namespace))["items"]
        told = [each for each in events if "statuscode: 503" in each["message"]]
        return {each["involvedObject"]["name"] for each in told}

    until("both pods", lambda: len(pods(namespace)) == 2)
    until("probes of both", lambda: probes() == set(pods(namespace)))
    ready = "jsonpath={.status.readyReplicas}"
    assert kubectl("get", "deployment", "shoal-serve", "-o", ready, namespace=namespace) == ""

    history = Predicting(live)
    for each in (live, *live.rglob("*")):
        each.chmod(0o755)
    history.push()
    history.publish()
    kubectl("rollout", "status", "deployment/shoal-serve", "--timeout=300s", namespace=namespace)
    for _ in range(2):
        number = str(len(history.deltas))
        for pod in pods(namespace):
            path = f"{where}/pods/{pod}:8501/proxy/v1/models/clicks"
            until(
                f"delta {number}",
                lambda path=path, number=number: (
                    json.loads(kubectl("get", "--raw", path))["model_version_status"][0]["version"]
                    == number
                ),
            )
        asked = json.dumps({"inputs": COLUMNS})
        path = f"{where}/services/shoal-serve:http/proxy/v1/models/clicks:predict"
        answer = json.loads(kubectl("create", "--raw", path, "-f", "-", text=asked))
        both = zip(COLUMNS["user"], COLUMNS["tags"], strict=True)
        wanted = [history.score(*each) for each in both]
        np.testing.assert_allclose(answer["outputs"]["score"], wanted, rtol=1e-5, atol=1e-6)
        history.push(30)
        history.publish()
