"""The servers' disruption budget follows the servers of now, and is made again.

Over HTTP, from an API server that keeps the budget; tests/kubernetes has the real one.
"""

import json
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from types import SimpleNamespace

import numpy as np
import pytest
from kubernetes import client

from shoal.master.cluster import job_objects
from shoal.master.cluster.job_objects import JobObjects, look_after
from shoal.master.in_cluster import _wanted, left_running
from shoal.master.job.job import Job
from shoal.proto.values.routing import Routing
from tests.master.api_server import Answers, served
from tests.master.strategies import config

VERSION = (1, 30)


class World:
    """What the API server has: the budget, and the answer to each call, None for its own."""

    def __init__(self):
        self.budget, self.refusal = None, None

    @property
    def available(self):
        return self.budget["spec"]["minAvailable"]


@pytest.fixture
def objects():
    """Those of a job that began with 3 servers, and the world."""
    world = World()

    class Handler(Answers, BaseHTTPRequestHandler):
        def keep(self, code):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if "poddisruptionbudgets" not in self.path:
                self.answer(200, {"metadata": {"name": "test", "uid": "1"}, "items": []})
            elif world.refusal:
                self.answer(world.refusal, {"kind": "Status", "message": "no"})
            else:
                world.budget = body
                self.answer(code, body)

        def do_PATCH(self):
            if "poddisruptionbudgets" in self.path and world.budget is None and not world.refusal:
                self.rfile.read(int(self.headers["Content-Length"]))
                self.answer(HTTPStatus.NOT_FOUND, {"kind": "Status"})
            else:
                self.keep(HTTPStatus.OK)

        def do_POST(self):
            self.keep(HTTPStatus.CREATED)

        def do_GET(self):
            self.answer(200, {"metadata": {}, "items": []})

    with served(Handler) as address:
        configuration = client.Configuration()
        configuration.host = address
        api = client.ApiClient(configuration)
        yield JobObjects(api, "space", config(servers="3"), {}, "uid"), world


def test_the_budget_follows_the_servers_of_now(objects):
    objects, world = objects
    for available in (2, 0, 3):
        assert not objects.budget(available, VERSION)
        assert world.available == available


def test_a_budget_that_somebody_deleted_is_made_again(objects, monkeypatch):
    objects, world = objects
    world.refusal = HTTPStatus.INTERNAL_SERVER_ERROR
    with pytest.raises(client.ApiException):
        objects.budget(2, VERSION)
    world.refusal = None
    assert not objects.budget(2, VERSION)  # the first one
    world.budget = None
    monkeypatch.setattr(job_objects, "LOOK_SECONDS", 0.0)
    told, ended = [], threading.Event()

    def tell(text):
        told.append(text)
        ended.set()

    shown = []
    look_after(objects, lambda: 1, VERSION, tell, lambda: shown.append(1), ended)
    assert shown  # by the same look
    assert told == ["the job's PodDisruptionBudget was deleted by somebody, and is made again"]
    assert world.available == 1


def test_a_job_that_may_have_no_budget_does_without(objects):
    objects, world = objects
    world.refusal = HTTPStatus.FORBIDDEN
    assert not objects.budget(2, VERSION)
    world.refusal = None
    assert not objects.budget(2, VERSION)
    assert world.budget is None


def test_new_pods_are_made_for_the_workers_of_now():
    """A half of the workers has a high priority, of those that are wanted when the pod is made."""
    job = Job(config(workers="2"))
    assert _wanted(job, 0.0)[0] == 2
    job.scale(6, 0.0)
    assert _wanted(job, 0.0) == (6, 1)


def test_all_servers_are_left_running_but_those_of_one_node():
    def left(nodes, servers, absent=()):
        owners = np.zeros(1 << 14, np.uint16)
        routing = Routing(7, servers, owners, servers, absent)
        return left_running(SimpleNamespace(moves=SimpleNamespace(routing=routing)), nodes)

    assert left({}, 3) == 2
    assert left({0: "a", 1: "b", 2: "c"}, 3) == 2
    assert left({0: "a", 1: "a", 2: "b"}, 3) == 1
    assert left({0: "a", 1: "a", 2: "a"}, 3) == 0
    # One that has given its rows to others is not missed, nor counted on the node that it was on.
    assert left({0: "a", 1: "a", 2: "b"}, 3, (0,)) == 1
    # Nor one that is to come, or was given back, while its pod is there.
    assert left({0: "a", 1: "b", 2: "c"}, 2) == 1
    assert left({0: "a"}, 1) == 0
