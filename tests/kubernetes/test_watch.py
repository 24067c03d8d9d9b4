"""The launcher of pods on a real API server that it cannot always reach."""

import queue
from http import HTTPStatus

import pytest
from kubernetes.client.exceptions import ApiException

from shoal.cluster import manifests
from shoal.master.job.members.launcher import Exited, Started, Waiting
from shoal.master.launchers.pod_launcher import PodLauncher
from shoal.master.work.ids import Start, WorkerId
from tests.kubernetes.conftest import SECONDS, kubectl
from tests.kubernetes.image import IMAGE
from tests.kubernetes.proxy import Proxy

JOB = "watched"


def pod(start, growth):
    role, index = start.process.role, start.process.index
    labels = manifests.labels(JOB, role)
    labels |= {
        manifests.INDEX_LABEL: str(index),
        manifests.INCARNATION_LABEL: str(start.incarnation),
    }
    container = {
        "name": role,
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "command": ["sleep", "3600"],
        "resources": {"requests": {"cpu": "0.01"}},
    }
    spec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [container]}
    metadata = {"name": manifests.pod_name(JOB, role, index), "labels": labels}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


class Launcher(PodLauncher):
    """Counts how often all pods were listed, and how often a watch was refused as too old."""

    def __init__(self, api, namespace):
        self.events, self.lists, self.refused = queue.SimpleQueue(), 0, 0
        super().__init__(self.events.put, api, namespace, JOB, pod)

    def _list(self):
        self.lists += 1
        return super()._list()

    def _watch_on(self):
        try:
            super()._watch_on()
        except ApiException as error:
            self.refused += error.status == HTTPStatus.GONE
            raise

    def go_back_to(self, version):
        """Have the next watch begin at this version."""
        self._version = version

    def next(self, kind):
        """The next event of a kind; others are passed over."""
        while not isinstance(event := self.events.get(timeout=SECONDS), kind):
            pass
        return event


@pytest.fixture
def proxy():
    with Proxy() as made:
        yield made


@pytest.fixture
def launcher(proxy, namespace):
    made = Launcher(proxy.api(), namespace)
    yield made
    proxy.mend()
    made.end(made.running(), 0.0)
    made.close()


def remove(index, namespace):
    """Delete a pod as somebody else; returns when it is gone."""
    name = manifests.pod_name(JOB, "worker", index)
    kubectl("delete", "pod", name, "--force", "--grace-period=0", namespace=namespace)


def test_the_launcher_rides_out_what_the_api_server_does(proxy, launcher, namespace):
    first, second, third = (Start(WorkerId(index), 0) for index in range(3))
    launcher.start(first)
    launcher.start(second)
    assert {launcher.next(Started).start for _ in range(2)} == {first, second}

    # A watch that breaks goes on where it broke off: nothing is missed, nothing listed again.
    proxy.cut()
    remove(0, namespace)
    proxy.mend()
    gone = launcher.next(Exited)
    assert (gone.start, gone.counted) == (first, False)
    assert launcher.lists == 1

    # While nothing can be reached, what is wished for waits; then it is done.
    proxy.cut()
    launcher.start(third)
    assert launcher.next(Waiting).start == third
    proxy.mend()
    assert launcher.next(Started).start == third

    # What happened since a version that the server does not have any more (410 Gone) is
    # found out by listing all pods. One that was started a moment ago has them all still;
    # tests/master/launchers/test_pod_launcher.py has one that never does.
    proxy.cut()
    remove(1, namespace)
    launcher.go_back_to("1")
    proxy.mend()
    gone = launcher.next(Exited)
    assert (gone.start, gone.counted) == (second, False)
    assert launcher.lists == 1 + launcher.refused
    assert launcher.running() == {third}
