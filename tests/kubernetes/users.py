"""Users of the cluster who may not do everything."""

from __future__ import annotations

import base64
import json
import time

import pytest

from tests.kubernetes.conftest import kubectl


def config_of(account, namespace):
    """A kubeconfig for a new service account, which has no rights."""
    kubectl("create", "serviceaccount", account, namespace=namespace)
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "kubernetes.io/service-account-token",
        "metadata": {
            "name": f"{account}-token",
            "annotations": {"kubernetes.io/service-account.name": account},
        },
    }
    kubectl("apply", "-f", "-", namespace=namespace, text=json.dumps(secret))
    path = "jsonpath={.data.token}"
    give_up = time.monotonic() + 60
    while not (
        token := kubectl("get", "secret", f"{account}-token", "-o", path, namespace=namespace)
    ):
        assert time.monotonic() < give_up
        time.sleep(0.1)
    given = json.loads(kubectl("config", "view", "--raw", "-o", "json"))
    given["users"][0]["user"] = {"token": base64.b64decode(token).decode()}
    return given


@pytest.fixture
def user(shoal, namespace):
    """Ann runs the commands, who may do what the Role shoal-user says."""
    path = shoal.path / "ann.json"
    path.write_text(json.dumps(config_of("ann", namespace)))
    account = f"--serviceaccount={namespace}:ann"
    kubectl("create", "rolebinding", "ann", "--role=shoal-user", account, namespace=namespace)
    who = ("get", "secrets", "--kubeconfig", str(path))
    assert "forbidden" in kubectl(*who, namespace=namespace, check=False).stderr
    shoal.kubeconfig = str(path)
    return shoal
