"""The launcher of pods, where a real API server cannot be had to do what is needed.

Over HTTP, from a server that has no pod and no past; tests/kubernetes has the real one.
"""

import json
import queue
import threading
import urllib.parse
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler

import pytest
from kubernetes import client

from shoal.cluster.manifests import INCARNATION_LABEL, INDEX_LABEL, ROLE_LABEL
from shoal.master.job.members.launcher import Exited, Started
from shoal.master.launchers import pod_launcher
from shoal.master.launchers.pod_launcher import LAST_LINES, PodLauncher
from shoal.master.launchers.pod_view import PodView
from shoal.master.work.ids import ServerId, Start, WorkerId
from tests.master.api_server import Answers, served

STATUS = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Expired"}
STATUS |= {"code": HTTPStatus.GONE, "message": "too old resource version: 7 (9)"}


@pytest.fixture(params=["answer", "event", "empty event", "empty pod", "no event"])
def forgetful(request):
    """An API server by its address, and a queue of what it was asked for.

    It has forgotten all that a watch could go on from, and says so in one of two ways; or
    its watch has an event that says nothing, as of a proxy that cuts answers.
    """
    events = {
        "event": {"type": "ERROR", "object": STATUS},
        "empty event": {},
        "empty pod": {"type": "MODIFIED", "object": {}},
        "no event": [],
    }
    asked = queue.SimpleQueue()

    class Handler(Answers, BaseHTTPRequestHandler):
        def do_GET(self):
            watched = "watch=true" in self.path
            asked.put("watch" if watched else "list")
            refused = watched and request.param == "answer"
            if watched:
                content = STATUS if refused else events[request.param]
            else:
                content = {"kind": "PodList", "metadata": {"resourceVersion": "7"}, "items": []}
            self.answer(HTTPStatus.GONE if refused else 200, content)

    with served(Handler) as address:
        yield address, asked


@pytest.fixture
def launcher(forgetful):
    """A launcher, and a queue of what it tells."""
    configuration = client.Configuration()
    configuration.host, _ = forgetful
    events = queue.SimpleQueue()
    made = PodLauncher(events.put, client.ApiClient(configuration), "space", "job", lambda *_: {})
    yield made, events
    made.close()


def test_after_a_watch_that_cannot_go_on_all_pods_are_listed(forgetful, launcher):
    (_, asked), (launcher, events) = forgetful, launcher
    adopted = Start(WorkerId(0), 0)
    while asked.get(timeout=60) != "watch":
        pass
    assert asked.get(timeout=60) == "list"
    launcher.adopt(adopted)  # whose pod is not there
    assert isinstance(exited := events.get(timeout=60), Exited)
    assert (exited.start, exited.counted) == (adopted, False)


class Cluster:
    """An API server that keeps one pod, as a real one does. fails: so many deletions."""

    def __init__(self):
        self.pod, self.fails, self.made = None, 0, 0
        self.done = queue.SimpleQueue()
        self.log = ""

    def create(self, manifest):
        self.made += 1
        manifest["metadata"] |= {"uid": f"uid-{self.made}", "resourceVersion": str(self.made)}
        self.pod = manifest
        return HTTPStatus.CREATED, manifest

    def delete(self, options):
        if self.fails:
            self.fails -= 1
            return HTTPStatus.INTERNAL_SERVER_ERROR, {"kind": "Status", "message": "away"}
        uid = (options.get("preconditions") or {}).get("uid")
        if self.pod is None:
            return HTTPStatus.NOT_FOUND, {"kind": "Status", "message": "not found"}
        if uid != self.pod["metadata"]["uid"]:
            return HTTPStatus.CONFLICT, {"kind": "Status", "message": "the UID in the precondition"}
        self.pod = None
        return HTTPStatus.OK, {"kind": "Status"}


@pytest.fixture
def cluster():
    """A cluster, and the client of its API."""
    world, over = Cluster(), threading.Event()

    class Handler(Answers, BaseHTTPRequestHandler):
        def content(self):
            return json.loads(self.rfile.read(int(self.headers["Content-Length"] or 0)) or b"{}")

        def do_GET(self):
            if "watch=true" in self.path:
                world.done.put("watched")
                over.wait()  # nothing is told
                self.answer(200, "")
            elif "/log?" in self.path:
                (limit,) = urllib.parse.parse_qs(self.path).get("limitBytes", [None])
                self.answer(200, world.log if limit is None else world.log[: int(limit)])
            else:
                listed = {"kind": "PodList", "metadata": {"resourceVersion": "7"}, "items": []}
                self.answer(200, listed)

        def do_POST(self):
            self.answer(*world.create(self.content()))
            world.done.put("created")

        def do_DELETE(self):
            code, content = world.delete(self.content())
            self.answer(code, content)
            world.done.put(int(code))

    with served(Handler) as address:
        configuration = client.Configuration()
        configuration.host = address
        yield world, client.ApiClient(configuration)
        over.set()


def manifest_of(start, _growth):
    labels = {ROLE_LABEL: start.process.role, INDEX_LABEL: str(start.process.index)}
    labels[INCARNATION_LABEL] = str(start.incarnation)
    return {"metadata": {"name": f"job-{start.process}", "labels": labels}}


def created(launcher, world, start):
    """Start a process; its pod is there, and the launcher knows it."""
    launcher.start(start)
    assert world.done.get(timeout=60) == "created"
    with launcher._changed:
        assert launcher._changed.wait_for(lambda: not launcher._pods.wanted(start), 60)


def test_a_deletion_is_of_one_pod_and_not_of_its_successor(cluster, monkeypatch):
    """Also one that is tried again when the successor has the name."""
    world, api = cluster
    again = queue.SimpleQueue()
    monkeypatch.setattr(PodLauncher, "_again", lambda self, action, *_: again.put(action))
    events = queue.SimpleQueue()
    launcher = PodLauncher(events.put, api, "space", "job", manifest_of)
    try:
        first, second = Start(ServerId(0), 0), Start(ServerId(0), 1)
        assert world.done.get(timeout=60) == "watched"
        created(launcher, world, first)
        world.fails = 1
        launcher.kill(first)
        assert world.done.get(timeout=60) == HTTPStatus.INTERNAL_SERVER_ERROR
        late = again.get(timeout=60)
        world.pod = None  # the cluster has taken it away
        launcher._seen("DELETED", PodView(first, "Failed"))
        created(launcher, world, second)
        launcher._actions.put((late, 1))
        launcher.kill(second)  # done after the late one
        assert world.done.get(timeout=60) == HTTPStatus.OK
        assert (world.pod, world.made) == (None, 2)
        # What a master does not know of is told by the API.
        world.create(manifest_of(Start(ServerId(0), 2), 0))
        launcher._know(Start(ServerId(0), 2), "uid-of-another")
        launcher._delete(Start(ServerId(0), 2), True)
        assert world.done.get(timeout=60) == HTTPStatus.CONFLICT
        assert world.pod is not None
    finally:
        launcher.close()


def test_the_logs_of_pods_that_end_are_kept_and_no_other_ones(cluster, monkeypatch):
    world, api = cluster
    kept = queue.SimpleQueue()
    events = queue.SimpleQueue()
    keep = lambda start, text: kept.put((start, text))  # noqa: E731
    launcher = PodLauncher(events.put, api, "space", "job", manifest_of, keep=keep)
    try:
        first, second = Start(WorkerId(0), 0), Start(WorkerId(0), 1)
        assert world.done.get(timeout=60) == "watched"
        created(launcher, world, first)
        launcher._seen("MODIFIED", PodView(first, "Running"))
        world.log = "it is told to end\n"
        launcher._seen("MODIFIED", PodView(first, "Running", deleting=True))
        assert kept.get(timeout=60) == (first, world.log)
        world.log = "line\n" * 60 + "a traceback\n"
        launcher._seen("MODIFIED", PodView(first, "Failed", code=1))
        assert kept.get(timeout=60) == (first, world.log)
        assert isinstance(events.get(timeout=60), Started)
        last = events.get(timeout=60).last_lines.splitlines()
        assert (len(last), last[-1]) == (LAST_LINES, "a traceback")
        launcher._seen("DELETED", PodView(first, "Failed"))
        # A log may have any bytes, and any length: its end is told all the same.
        third = Start(WorkerId(1), 0)
        created(launcher, world, third)
        monkeypatch.setattr(pod_launcher, "KEPT_BYTES", 100)
        world.log = "\udcff" * 200 + "\nthe end\n"
        launcher._seen("MODIFIED", PodView(third, "Failed", code=1))
        told = events.get(timeout=60).last_lines
        assert told.splitlines()[-1] == "the end"
        assert kept.get(timeout=60)[1].rstrip().endswith(told.splitlines()[-2] + "\nthe end")
        monkeypatch.undo()
        launcher._seen("DELETED", PodView(third, "Failed"))
        # What a kubelet says of a container that it has removed is no log.
        fourth = Start(WorkerId(1), 1)
        created(launcher, world, fourth)
        world.log = "unable to retrieve container logs for containerd://3fb08"
        launcher._seen("MODIFIED", PodView(fourth, "Failed", code=1))
        assert "cannot be read: 404 unable to retrieve" in events.get(timeout=60).last_lines
        world.log = "all is done\n"
        # The pod that has the name now is another start's.
        created(launcher, world, second)
        launcher._logs.put((first, None))
        launcher._seen("MODIFIED", PodView(second, "Succeeded", code=0))
        assert kept.get(timeout=60) == (second, world.log)
    finally:
        launcher.close()
