"""The page of a job on Kubernetes, of which no journal is within reach.

An API server over HTTP says what a test has it say, and a real master's service answers; only the
port-forward between them is not there (tests/cluster/test_portforward.py has it).
"""

import json
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler

import pytest
from kubernetes import client

from shoal.client.ask import asking
from shoal.client.ask.cluster_jobs import ClusterJob
from shoal.cluster.handle import JobHandle
from shoal.cluster.manifests import CONFIG_FILE, METRICS_FILE, RESULT_FILE, labels
from shoal.errors import UserError
from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.channels import serving
from shoal.proto.channels.rpc import Connection
from shoal.proto.errors import WireError
from shoal.proto.protocol import own_protocol
from shoal.tools.dashboard.watch import Watch
from tests.jobs.running import until
from tests.master.api_server import Answers, served

NAME = "clicks"


def pod(role, index=None, phase="Running"):
    name = f"{NAME}-{role}" + ("-x1" if index is None else f"-{index}")
    metadata = {"name": name, "labels": labels(NAME, role), "namespace": "space"}
    metadata["creationTimestamp"] = "2026-01-01T00:00:00Z"
    return {"metadata": metadata, "status": {"phase": phase}}


class World:
    """What the API server says: pods, the Job's condition, and the job's ConfigMap."""

    def __init__(self):
        self.pods = [pod("ps", 0), pod("worker", 1), pod("worker", 0), pod("master")]
        self.condition, self.data = "", {CONFIG_FILE: json.dumps({"tls": "never"})}
        self.there = True

    def answer(self, path):
        if not self.there:
            return 404, {"message": "not found", "code": 404}
        if path.endswith("/log"):
            return 200, f"the log of {path.split('/')[-2]}\n"
        if path.endswith("/pods"):
            return 200, {"metadata": {}, "items": self.pods}
        if "/configmaps/" in path:
            return 200, {"metadata": {"name": NAME}, "data": self.data}
        conditions = [{"type": self.condition, "status": "True"}] if self.condition else []
        return 200, {"metadata": {"name": "job"}, "status": {"conditions": conditions}}


@pytest.fixture
def world():
    made = World()

    class Handler(Answers, BaseHTTPRequestHandler):
        def do_GET(self):
            path = self.path.partition("?")[0]
            if "labelSelector" in self.path and "role" in self.path:
                masters = [each for each in made.pods if "master" in each["metadata"]["name"]]
                self.answer(200, {"metadata": {}, "items": masters})
            else:
                self.answer(*made.answer(path))

    with served(Handler) as made.address:
        yield made


def scaled(request):
    """A master that takes at most eight workers."""
    if request.num_workers > 8:
        raise WireError(pb.BAD_REQUEST, "at most 8")
    if request.num_servers:
        raise WireError(pb.NOT_READY, "the rows move")
    return pb.ScaleJobReply(moves=request.rebalance)


@pytest.fixture
def master():
    """A master's service: its address, the status that it tells, and what stops it."""
    told = pb.JobStatus(
        protocol=own_protocol(),
        state="training",
        seconds=5.0,
        ledger=pb.Ledger(total=100, trained_once=40, pending=60),
        workers=[pb.WorkerView(worker=0, state="alive")],
        servers=[pb.ServerView(server=0, state="alive", told=pb.ServerStatus(pulls=10))],
        diagnosis=pb.Diagnosis(bound_by="servers", evidence="seen", advice="--servers 3"),
    )
    figures = pb.JobMetrics(csv="seconds,state,loss\n1.0,training,0.75\n")
    calls = {
        methods.GET_JOB_STATUS: lambda _: told,
        methods.GET_JOB_METRICS: lambda _: figures,
        methods.SCALE_JOB: scaled,
    }
    server, port = serving.serve(calls, "127.0.0.1:0", threads=2)
    yield f"127.0.0.1:{port}", told, lambda: server.stop(None).wait()
    server.stop(None).wait()


@pytest.fixture
def handle(world, master):
    class Handle(JobHandle):
        @contextmanager
        def master(self, pod, token, identity, deadline, patience=0.0):
            assert pod == f"{NAME}-master-x1"
            connection = Connection(master[0], deadline=deadline, patience=0.0)
            yield connection
            connection.close()

    configuration = client.Configuration()
    configuration.host = world.address
    return Handle(client.ApiClient(configuration), "space", NAME)


def test_a_job_is_watched_by_its_statuses_to_its_end(world, master, handle):
    _, told, stop = master
    with Watch(ClusterJob(handle)) as watch:
        facts = watch.facts()
        assert (facts["job"], facts["state"], facts["ended"]) == (NAME, "training", False)
        assert facts["place"] == "on Kubernetes, in namespace space"
        told.seconds = 15.0
        told.workers[0].deaths = 1
        told.workers[0].state = "dead"
        told.servers[0].told.pulls = 60
        told.servers[0].told.cpu_seconds = 4.0
        watch.look()
        facts = watch.facts()
        assert (facts["bottleneck"], facts["advice"]) == ("seen", "--servers 3")
        (server,) = facts["servers"]
        assert (server["pulls"], server["pushes"], server["cores"]) == (5.0, 0.0, 0.4)
        worker, server = watch.course()["lanes"]
        assert worker["marks"] == [(15.0, "death")]
        assert server["spans"] == [[5.0, 15.0, "alive", 0, 0]]

        stop()  # the master's pod is gone, and the Job goes on: another one is coming
        world.pods = [each for each in world.pods if "master" not in each["metadata"]["name"]]

        def silent():
            watch.look()
            return watch.facts().get("silent")

        until("that the page says so", silent)
        why = f"job {NAME} has no running master; see shoal status {NAME}"
        assert watch.facts()["silent_why"] == why
        assert watch.facts()["state"] == "training"

        world.condition = "Complete"
        result = {"job_name": NAME, "command": "train", "state": "succeeded", "seconds": 20.0}
        world.data[RESULT_FILE] = json.dumps(result)
        watch.look()
        facts = watch.facts()
        assert (facts["state"], facts["ended"], facts["seconds"]) == ("succeeded", True, 20.0)
        assert not facts.get("silent")
        assert [each["state"] for each in facts["workers"]] == ["ended"]


def test_logs_are_those_of_its_pods(handle):
    source = ClusterJob(handle)
    names = [f"{NAME}-{each}" for each in ("master-x1", "worker-0", "worker-1", "ps-0")]
    assert source.logs() == names
    assert source.log(f"{NAME}-worker-1") == [f"the log of {NAME}-worker-1"]
    with pytest.raises(UserError, match=f"job {NAME} has no pod other"):
        source.log("other")


def test_commands_reach_the_master_or_say_why_they_do_not(world, master, handle):
    job = ClusterJob(handle)
    asking.scale(job, 8)
    assert asking.rebalance(job)
    with pytest.raises(UserError, match=r"^--workers: at most 8$"):
        asking.scale(job, 9)
    with pytest.raises(UserError, match=f"^the master of job {NAME} refuses: the rows move$"):
        asking.scale(job, None, 2)
    master[2]()
    with pytest.raises(UserError, match=f"^the master of job {NAME} does not answer: "):
        asking.rebalance(job)
    world.pods = [pod("master", phase="Pending")]
    why = f"^job {NAME} has no running master: its pod is Pending; see shoal status {NAME}$"
    with pytest.raises(UserError, match=why):
        asking.rebalance(job)
    assert not job.ended()
    world.there = False
    assert job.ended() == "deleted"


def test_a_job_that_is_not_there_is_said_before_the_page(world, handle):
    world.there = False
    with pytest.raises(UserError, match=NAME):
        ClusterJob(handle).result()


def test_the_loss_before_the_first_look_comes_from_the_master_and_then_from_the_end(
    world, master, handle
):
    _, told, stop = master
    told.loss, told.has_loss = 0.25, True
    with Watch(ClusterJob(handle)) as watch:
        assert watch.course()["loss"] == [[1.0, 5.0], [0.75, 0.25]]
    stop()
    world.pods, world.condition = [], "Complete"
    world.data[RESULT_FILE] = json.dumps({"job_name": NAME, "command": "train", "state": "failed"})
    world.data[METRICS_FILE] = "seconds,state,loss\n1.0,training,0.75\n9.0,training,0.125\n"
    with Watch(ClusterJob(handle)) as watch:
        assert watch.course()["loss"] == [[1.0, 9.0], [0.75, 0.125]]
