"""A master that is told to end leaves the job; that of a suspended Job has all processes end first.

A process of its own that gets SIGTERM, with an API server over HTTP.
"""

import signal
import subprocess
import sys
from http.server import BaseHTTPRequestHandler

import pytest

from tests.master.api_server import Answers, served

pytestmark = pytest.mark.slow

WAITS = """
import os, sys, time
from functools import partial
from types import SimpleNamespace
from kubernetes import client
from shoal.master.cluster import told_to_end
from shoal.master.cluster.masters_job import MastersJob
from shoal.master.cluster_start import end_pods

told_to_end.LINGER_SECONDS = told_to_end.POLL_SECONDS = 0.001
told_to_end.leave = lambda name: (print("left", name, flush=True), os._exit(0))
configuration = client.Configuration()
configuration.host = sys.argv[1]
api = client.ApiClient(configuration)
drains = [True, True, False]
told_to_end.leave_when_told_to_end(
    SimpleNamespace(apply=lambda _: drains.pop(0) and not print("drains", flush=True)),
    SimpleNamespace(tell_no_more=lambda: print("tells no more", flush=True)),
    "job",
    MastersJob(api, "space", "job", "pod"),
    partial(end_pods, client.CoreV1Api(api), "space", "job"),
    lingers=sys.argv[2] == "lingers",
)
print("waits", flush=True)
while True:
    time.sleep(1)
"""


@pytest.mark.parametrize("suspended", [True, False])
@pytest.mark.parametrize("lingers", ["lingers", "leaves"])
def test_sigterm(suspended, lingers):
    deleted = []

    class Handler(Answers, BaseHTTPRequestHandler):
        def do_GET(self):
            self.answer(200, {"metadata": {}, "items": [{"metadata": {"name": "job-ps-0"}}]})

        def do_PATCH(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            spec = {"template": {}, "suspend": suspended}
            self.answer(200, {"metadata": {"name": "x"}, "spec": spec})

        def do_DELETE(self):
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            deleted.append(self.path.rpartition("/")[2])
            self.answer(200, {"metadata": {"name": "x"}})

    with served(Handler) as address:
        command = [sys.executable, "-c", WAITS, address, lingers]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as master:
            assert master.stdout.readline() == "waits\n"
            master.send_signal(signal.SIGTERM)
            said = master.stdout.read().splitlines()
    waits = ["drains", "drains"] if lingers == "lingers" else []
    assert said == ["tells no more", *waits, "left job"]
    assert deleted == (["job-ps-0"] if suspended else [])
