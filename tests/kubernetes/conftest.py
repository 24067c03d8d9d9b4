"""A real cluster for the tests, and a namespace of its own for each module.

They run when SHOAL_KUBERNETES is set and fail if no cluster answers then; .ci/run starts
one. Paths are those of this machine, which is the node.
"""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.kubernetes.image import IMAGE, PACKAGES_MOUNT, packages

ROOT = Path(__file__).parents[2]
SECONDS = 900.0
"""For one command: a machine that does much else is slow."""


def kubectl(*arguments, namespace="", text="", check=True):
    """Run kubectl and return what it prints."""
    command = ["kubectl", *(("--namespace", namespace) if namespace else ()), *arguments]
    done = subprocess.run(
        command, input=text or None, capture_output=True, text=True, timeout=SECONDS
    )
    if check and done.returncode:
        raise AssertionError(f"{command} failed: {done.stderr}")
    return done.stdout if check else done


def pytest_collection_modifyitems(items):
    ours = [item for item in items if item.path.is_relative_to(Path(__file__).parent)]
    for item in ours:
        item.add_marker(pytest.mark.kubernetes)


@pytest.fixture(scope="session", autouse=True)
def kubernetes():
    """SHOAL_KUBERNETES=1 says that KUBECONFIG is a cluster for tests, and has the image.

    Whoever has a cluster of another kind at hand does not want these jobs there.
    """
    if not os.environ.get("SHOAL_KUBERNETES"):
        pytest.skip("needs a cluster for tests, see make test-kubernetes")
    kubectl("get", "--raw", "/readyz")


@pytest.fixture(scope="module")
def namespace():
    """A namespace with the objects of deploy/base, removed at the end."""
    name = f"shoal-{uuid.uuid4().hex[:8]}"
    kubectl("create", "namespace", name)
    kubectl("apply", "-f", str(ROOT / "deploy" / "base" / "rbac.yaml"), namespace=name)
    yield name
    kubectl("delete", "namespace", name, "--wait=false")


@dataclass
class Runs:
    """Runs shoal's commands in a folder, for jobs in a namespace."""

    path: Path
    namespace: str
    kubeconfig: str = ""  # of a user with fewer rights

    def __call__(self, *arguments, seconds=SECONDS):
        """Run one command to its end."""
        return subprocess.run(
            [sys.executable, "-m", "shoal", *arguments],
            cwd=self.path,
            capture_output=True,
            text=True,
            timeout=seconds,
            env=os.environ | ({"KUBECONFIG": self.kubeconfig} if self.kubeconfig else {}),
        )

    def flags(self, name, **changes):
        """Flags of `shoal train` for a job as the tests run it."""
        flags = {
            "image": IMAGE,
            "namespace": self.namespace,
            "job_name": name,
            # Little: jobs of several tests run beside the one that fills the node.
            "master_resources": "cpu=0.01,memory=50Mi",
            "ps_resources": "cpu=0.01,memory=50Mi",
            "worker_resources": "cpu=0.02,memory=200Mi",
            "volume": f"hostPath={self.path},mount=/work;"
            f"hostPath={packages()},mount={PACKAGES_MOUNT},readOnly",
        } | changes
        return [
            word for key, value in flags.items() for word in (f"--{key}".replace("_", "-"), value)
        ]

    def movielens(self, name, **changes):
        """Flags for MovieLens, whose model is in the image."""
        return self.flags(
            name,
            model_zoo="/model_zoo/movielens",
            model_def="deepfm.custom_model",
            training_data="/work/train.parquet",
            **changes,
        )


@pytest.fixture
def shoal(tmp_path_factory, namespace):
    """Run shoal's commands in a folder that the pods mount at /work."""
    # Outside of pytest's own folder, which only its user may enter: pods have another.
    path = tmp_path_factory.mktemp("work")
    for folder in (path, *path.parents):
        if not folder.stat().st_mode & 0o005:
            folder.chmod(folder.stat().st_mode | 0o055)
    path.chmod(0o777)
    return Runs(path, namespace)
