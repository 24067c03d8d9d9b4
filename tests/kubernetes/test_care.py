"""A cluster that has no room, that loses the job's objects, and whose node is drained."""

import re
import shutil
import signal

import pytest
from kubernetes import client

from shoal.cluster.api import connect_from_outside
from tests.jobs.conftest import movielens as movielens
from tests.kubernetes.conftest import SECONDS, kubectl
from tests.kubernetes.jobs import Watched, following, held_job, kill, left_of, result_in, until

NAME = "cared-for"
ROOM = "shoal.dev/room"


class Node:
    """The one node, of which a test may want something."""

    def __init__(self):
        self.name = kubectl("get", "nodes", "-o", "jsonpath={.items[0].metadata.name}")

    def give_room(self, places):
        """Have the node offer so many places of a kind that only this test's servers ask for."""
        api, _ = connect_from_outside()
        path = f"/status/capacity/{ROOM.replace('/', '~1')}"
        change = [{"op": "add", "path": path, "value": str(places)}]
        client.CoreV1Api(api).patch_node_status(self.name, change)

    def drain(self, job):
        """As somebody drains it who knows nothing of shoal; but of this job's pods alone."""
        selector = f"--pod-selector=shoal.dev/job={job}"
        kubectl("drain", self.name, "--ignore-daemonsets", selector, f"--timeout={SECONDS:.0f}s")


@pytest.fixture
def node():
    made = Node()
    yield made
    kubectl("uncordon", made.name)
    made.give_room(0)


def budget(namespace):
    path = "jsonpath={.spec.minAvailable}"
    found = kubectl("get", "pdb", NAME, "-o", path, namespace=namespace, check=False)
    return found.stdout


def controllers(namespace):
    """Kinds of the controllers of the servers' and workers' pods, with their uids."""
    path = "jsonpath={range .items[*]}{.metadata.ownerReferences[?(@.controller)].uid} {end}"
    select = f"shoal.dev/job={NAME},shoal.dev/role in (ps,worker)"
    return set(kubectl("get", "pods", "-l", select, "-o", path, namespace=namespace).split())


def test_a_job_waits_for_room_keeps_its_objects_and_is_drained(shoal, movielens, namespace, node):
    shutil.copy(movielens / "validation.parquet", shoal.path / "train.parquet")
    room = f"cpu=0.01,memory=50Mi,{ROOM}=1"
    flags, hold = held_job(
        shoal,
        NAME,
        workers="1",
        epochs="2",
        ps_resources=room,
        checkpoint_steps="4",
        durability="checkpoint",
    )
    job = Watched(NAME, namespace)
    with following(shoal, *flags) as (train, said):
        # 1. There is room for one of two servers; who waits is told, and nobody gives up.
        node.give_room(1)
        until("a server waits", lambda: train.poll() is not None or "Unschedulable" in said())
        assert f"Insufficient {ROOM}" in said()
        node.give_room(2)
        until("it trains", lambda: train.poll() is not None or job.training_with(1))
        assert train.poll() is None, said()

        first = shoal.path / "job/checkpoints/checkpoint-00000001/manifest.json"
        until("a checkpoint", first.exists)

        # 2. Somebody deletes the Service and the ConfigMap; nobody dies of it, and a server that
        #    is started afterwards finds both.
        kubectl("delete", "service,configmap", NAME, namespace=namespace)
        for kind in ("Service", "ConfigMap"):
            until(kind, lambda kind=kind: job.said(f"the job's {kind} was deleted by somebody"))
        uid = "jsonpath={.metadata.uid}"
        now = kubectl("get", "configmap", NAME, "-o", uid, namespace=namespace)
        until("the pods have it as controller", lambda: controllers(namespace) == {now})
        kill("shoal.ps", namespace, 0)
        until("the server is back", lambda: job.said("ps-0 is back"))
        job.goes_on()

        # 3. A server's pod is deleted, and there is no room for another one: its rows move, and the
        #    job trains on without it, until there is room.
        node.give_room(1)
        lost, moves = job.times("acknowledged updates"), job.times("slots have moved")
        kubectl("delete", "pod", f"{NAME}-ps-1", "--wait=false", namespace=namespace)
        until("its rows move", lambda: job.said("ps-1 is told to end; first its rows move"))
        until("its rows are elsewhere", lambda: job.said("slots have moved", moves + 1))
        until("a server waits", lambda: "Pending" in {p.status.phase for p in job.handle.pods()})
        job.goes_on()
        node.give_room(2)
        until("it has its share again", lambda: job.said("slots have moved", moves + 2))
        assert job.times("acknowledged updates") == lost

        # 4. The node is drained as any other is, and comes back.
        until("a budget that lets the node's servers go together", lambda: budget(namespace) == "0")
        lost = job.times("acknowledged updates")
        node.drain(NAME)
        assert job.pods("Running") == 0
        until("a master waits", lambda: "Pending" in {p.status.phase for p in job.handle.pods()})
        kubectl("uncordon", node.name)
        # Each has restored a checkpoint, or has handed its rows over and gets its share again.
        until("the servers are back", lambda: job.servers() == 2)
        job.goes_on()
        assert job.times("acknowledged updates") == lost  # both had handed over
        hold.unlink()
        assert train.wait(SECONDS) == 0, said()
    ledger = result_in(shoal, NAME)["ledger"]
    assert ledger["trained_once"] + ledger["repeated"] == ledger["total"] == 2 * 19_633
    until("nothing is left", lambda: left_of(NAME, namespace) == "")


def test_workers_without_room_are_told_in_one_line(shoal, movielens, namespace, node):
    shutil.copy(movielens / "validation.parquet", shoal.path / "train.parquet")
    flags, _ = held_job(
        shoal,
        "crowd",
        workers="20",
        worker_resources=f"cpu=0.01,memory=100Mi,{ROOM}=1",
    )
    node.give_room(3)
    with following(shoal, *flags) as (train, said):
        until("they are told", lambda: train.poll() is not None or "wait: Unschedulable" in said())
        train.send_signal(signal.SIGINT)
        train.send_signal(signal.SIGINT)
        train.wait(SECONDS)
    told = [line for line in said().splitlines() if "Unschedulable" in line]
    assert len(told) == 1, said()
    # The scheduler may have tried the last worker before it had placed the third one.
    assert re.search(r"\b(1[7-9]|20) workers wait: Unschedulable: ", told[0])
    assert f"Insufficient {ROOM}" in told[0]
    until("nothing is left", lambda: left_of("crowd", namespace) == "")
