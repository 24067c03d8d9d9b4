"""What a master asks of the API server at the end of a job that failed; over HTTP.

tests/kubernetes has a real one, and what it makes of this.
"""

import datetime
import json
import subprocess
import sys
from http.server import BaseHTTPRequestHandler

import pytest

from shoal.cluster.manifests import AUTHORITY_ANNOTATION, MASTER_RESTARTS, STATE_LABEL
from tests.master.api_server import Answers, served

pytestmark = pytest.mark.slow

ENDS = """
import sys
from kubernetes import client
from shoal.master.cluster import job_end
job_end.TOLD_SECONDS = 0.01
configuration = client.Configuration()
configuration.host = sys.argv[1]
job = job_end.MastersJob(client.ApiClient(configuration), "space", "job", "pod")
if sys.argv[2] == "begins":
    job_end.allow_restarts(job, int(sys.argv[3]), "beef")
else:
    job_end.end(job, int(sys.argv[2]))
"""


class Cluster:
    """restarts: of the master's container. refuses: whether the Job may not be changed."""

    def __init__(self):
        self.restarts, self.refuses = 0, False
        self.began = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
        self.patched, self.metadata = [], {}


@pytest.fixture
def cluster():
    made = Cluster()

    class Handler(Answers, BaseHTTPRequestHandler):
        def do_GET(self):
            status = {"name": "master", "restartCount": made.restarts, "ready": True}
            status |= {"image": "i", "imageID": "i"}
            pod = {"metadata": {"name": "pod"}, "status": {"containerStatuses": [status]}}
            self.answer(200, {"metadata": {}, "items": [pod]})

        def do_PATCH(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            made.patched.append((self.path.rpartition("/")[2], body.get("spec")))
            made.metadata = body.get("metadata", made.metadata)
            if made.refuses:
                self.answer(403, {"message": "you may not"})
            else:
                began = {"startTime": made.began.isoformat()}
                self.answer(200, {"metadata": {"name": "x"}, "status": began})

    with served(Handler) as made.address:
        yield made


def end(cluster, code):
    return subprocess.run([sys.executable, "-c", ENDS, cluster.address, str(code)]).returncode


def begins(cluster, deadline):
    arguments = [cluster.address, "begins", str(deadline)]
    return subprocess.run([sys.executable, "-c", ENDS, *arguments]).returncode


def test_kubernetes_ends_no_master_that_has_not_had_its_time(cluster):
    waited = datetime.timedelta(hours=1)
    cluster.began = datetime.datetime.now(datetime.UTC) - waited  # for room, an image
    assert begins(cluster, 600) == 0
    (_, restarts), (name, limit) = cluster.patched
    assert (name, set(restarts), set(limit)) == (
        "job-master",
        {"backoffLimit", "activeDeadlineSeconds"},
        {"activeDeadlineSeconds"},
    )
    # At the deadline the master still has time to end the job in order.
    assert limit["activeDeadlineSeconds"] >= waited.total_seconds() + 600 + 60


def test_a_job_without_a_deadline_has_no_limit_of_kubernetes(cluster):
    assert begins(cluster, 0) == 0
    # One of its start is taken away.
    [(_, spec)] = cluster.patched
    assert spec["activeDeadlineSeconds"] is None
    # As the file of the job has it: who applies that again changes nothing.
    assert spec["backoffLimit"] == MASTER_RESTARTS
    assert cluster.metadata == {
        "annotations": {AUTHORITY_ANNOTATION: "beef"},
        "labels": {STATE_LABEL: "starting"},
    }


def test_a_job_that_failed_ends_its_job_and_its_pod(cluster):
    assert end(cluster, 2) == 2
    # The Job first: without another try to come, the pod's end is the Job's.
    assert cluster.patched == [
        ("job-master", {"backoffLimit": 0}),
        ("pod", {"activeDeadlineSeconds": 1}),
    ]


def test_a_pod_that_was_restarted_is_not_removed_with_its_log(cluster):
    cluster.restarts = 1
    assert end(cluster, 1) == 1
    (_, nothing), (job, deadline), pod = cluster.patched
    # With a limit of restarts that is reached, Kubernetes would remove the pod that runs.
    assert (nothing, job, set(deadline)) == (None, "job-master", {"activeDeadlineSeconds"})
    assert deadline["activeDeadlineSeconds"] > 0
    assert pod == ("pod", {"activeDeadlineSeconds": 1})


def test_success_and_a_job_that_may_not_be_changed_end_with_0(cluster):
    assert end(cluster, 0) == 0
    assert cluster.patched == []
    # Another code would have the kubelet begin the job again.
    cluster.refuses = True
    assert end(cluster, 1) == 0
