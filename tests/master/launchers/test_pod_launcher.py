"""The launcher of pods, where a real API server cannot be had to do what is needed.

Over HTTP, from a server that has no pod and no past; tests/kubernetes has the real one.
"""

import queue
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler

import pytest
from kubernetes import client

from shoal.master.job.launcher import Exited
from shoal.master.launchers.pod_launcher import PodLauncher
from shoal.master.work.ids import Start, WorkerId
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
