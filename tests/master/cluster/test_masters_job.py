"""The Job of a master: how often it is started, what it shows, and what it means to be suspended.

Over HTTP, from an API server that keeps the Job; tests/kubernetes has the real one.
"""

import datetime
import json
from http.server import BaseHTTPRequestHandler
from types import SimpleNamespace

import pytest
from kubernetes import client

from shoal.cluster.manifests import LEFT_LABEL, RECORDS_LABEL, STARTS_ANNOTATION, STATE_LABEL
from shoal.errors import UserError
from shoal.master.cluster.job_labels import labels_of, labels_of_end
from shoal.master.cluster.masters_job import MastersJob
from shoal.master.cluster.told_to_end import suspend
from shoal.master.cluster_start import end_pods
from shoal.master.work.phases import Phase
from tests.master.api_server import Answers, served

NOON = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)
LAST = {"terminated": {"exitCode": 1, "reason": "Error", "message": "no journal"}}


class World:
    """The Job, the pods, and what was asked."""

    def __init__(self):
        self.labels, self.annotations, self.suspended = {}, {}, False
        self.patches, self.deleted = 0, []

    def patch(self, change):
        self.patches += 1
        metadata = change.get("metadata", {})
        for kept, given in ((self.labels, "labels"), (self.annotations, "annotations")):
            kept |= metadata.get(given, {})
            for name in [name for name, value in kept.items() if value is None]:
                del kept[name]
        metadata = {"name": "job-master", "labels": self.labels, "annotations": self.annotations}
        return {"metadata": metadata, "spec": {"template": {}, "suspend": self.suspended}}


@pytest.fixture
def world():
    made = World()

    class Handler(Answers, BaseHTTPRequestHandler):
        def do_GET(self):
            container = {"name": "master", "restartCount": 2, "ready": True, "lastState": LAST}
            container |= {"image": "i", "imageID": "i"}
            status = {"containerStatuses": [container]}
            pods = [{"metadata": {"name": name}, "status": status} for name in ("ps-0", "worker-0")]
            self.answer(200, {"metadata": {}, "items": pods})

        def do_PATCH(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self.answer(200, made.patch(json.loads(body)))

        def do_DELETE(self):
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
            made.deleted.append((self.path.rpartition("/")[2], body))
            self.answer(200, {"metadata": {"name": "x"}})

    with served(Handler) as address:
        configuration = client.Configuration()
        configuration.host = address
        made.api = client.ApiClient(configuration)
        made.job = MastersJob(made.api, "space", "job", "pod")
        yield made


def started(world, times, seconds):
    """So many starts, with so many seconds between them."""
    for number in range(times):
        world.job.started(NOON + datetime.timedelta(seconds=number * seconds))


def test_a_master_that_has_begun_is_started_often_but_not_at_once(world):
    world.labels[STATE_LABEL] = "training"
    started(world, 60, 600)  # ten hours, with a kill every ten minutes
    with pytest.raises(UserError, match="was started 21 times within 2 h") as error:
        started(world, 60, 300)
    assert "could never begin" not in str(error.value)


def test_a_master_that_never_began_is_not_started_for_hours(world):
    started(world, 3, 30)
    with pytest.raises(UserError, match="never begin; the last one ended with exit code 1: no jou"):
        world.job.started(NOON + datetime.timedelta(seconds=90))


def test_what_somebody_has_written_into_the_annotation_is_left_out(world):
    world.annotations[STARTS_ANNOTATION] = "noon 2026-01-01T11:59:00 2026-01-01T11:00:00+00:00 99"
    started(world, 1, 0)
    kept = ["2026-01-01T11:00:00+00:00", "2026-01-01T12:00:00+00:00"]
    assert world.annotations[STARTS_ANNOTATION].split() == kept


def job(phase=Phase.TRAINING, records=(250, 1000), rate=5.0):
    throughput = SimpleNamespace(per_second=rate)
    return SimpleNamespace(
        phases=SimpleNamespace(phase=phase),
        work=SimpleNamespace(records=records),
        record=SimpleNamespace(throughput=throughput),
    )


def test_the_job_shows_how_it_goes_and_how_it_has_ended(world):
    for _ in range(2):
        world.job.show(labels_of(job(), 0.0))
    assert world.labels == {
        STATE_LABEL: "training",
        RECORDS_LABEL: "250-of-1000",
        LEFT_LABEL: "2min",
    }
    assert world.patches == 1  # what has not changed is not said again
    world.job.show(labels_of(job(Phase.STARTING, (0, 0), 0.0), 0.0))
    assert world.labels == {STATE_LABEL: "starting"}
    result = {"state": "degraded", "records": 990, "ledger": {"total": 1000}}
    world.job.show(labels_of_end(result))
    assert world.labels == {STATE_LABEL: "degraded", RECORDS_LABEL: "990-of-1000"}


@pytest.mark.parametrize("phase", Phase)
def test_every_state_is_a_value_of_a_label(phase):
    shown = labels_of(job(phase), 0.0)[STATE_LABEL]
    assert shown.strip("-").replace("-", "").isalpha()
    assert shown == shown.strip("-")


def test_the_processes_of_a_suspended_job_end_with_their_grace(world):
    def end():
        end_pods(client.CoreV1Api(world.api), "space", "job")

    suspend(world.job, end)
    assert not world.deleted  # only the pod of the master is told to end
    world.suspended = True
    suspend(world.job, end)
    assert world.deleted == [("ps-0", {}), ("worker-0", {})]
    assert world.labels == {STATE_LABEL: "suspended"}
