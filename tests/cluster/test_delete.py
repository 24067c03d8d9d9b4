"""A job is deleted when nothing of it is left; its pods have the time that they were given."""

from http.server import BaseHTTPRequestHandler
from types import SimpleNamespace
from urllib.parse import unquote

import pytest
from kubernetes import client

from shoal.cluster import lifetime
from shoal.errors import UserError
from tests.master.api_server import Answers, served

POD = {
    "metadata": {"name": "job-ps-0", "deletionTimestamp": "2026-01-01T00:00:00Z"},
    "spec": {"terminationGracePeriodSeconds": 120, "containers": []},
    "status": {"phase": "Running"},
}


@pytest.fixture
def deleted(monkeypatch):
    """Delete the job `job`, whose server's pod is there for so many seconds, which pass at once."""

    def delete(pod_seconds):
        now = [1000.0]
        end = now[0] + pod_seconds

        def sleep(seconds):
            now[0] += seconds

        clock = SimpleNamespace(monotonic=lambda: now[0], sleep=sleep)
        monkeypatch.setattr(lifetime, "time", clock)
        monkeypatch.setattr(lifetime, "POLL_SECONDS", 5.0)
        asked = []

        class Api(Answers, BaseHTTPRequestHandler):
            def do_GET(self):
                assert "labelSelector=shoal.dev/job=job" in unquote(self.path)
                there = "/pods?" in self.path and now[0] < end
                self.answer(200, {"items": [POD] if there else []})

            def do_DELETE(self):
                asked.append(self.path)
                self.answer(200, {"kind": "Status", "status": "Success"})

        with served(Api) as address:
            configuration = client.Configuration(host=address)
            lifetime.JobLifetime(client.ApiClient(configuration), "space", "job").delete()
        return asked, now[0] - 1000.0

    return delete


def test_a_server_has_its_time_to_hand_over(deleted):
    (asked,), seconds = deleted(150.0)
    assert asked.startswith("/apis/batch/v1/namespaces/space/jobs/job-master?")
    assert 150 <= seconds <= 155


def test_a_pod_that_stays_is_named(deleted):
    with pytest.raises(UserError, match=r"after 180 s there is still job-ps-0$"):
        deleted(10_000.0)
