"""Following a job in a cluster: when its objects are removed, and when they are left alone.

Over HTTP, from an API server that says what a test has it say; tests/kubernetes has the real one.
"""

import contextlib
import copy
import json
from http.server import BaseHTTPRequestHandler

import pytest
from kubernetes import client

from shoal.base.disk.job_folder import JobFolder
from shoal.client.ask.cluster_jobs import _without_result
from shoal.client.cluster_listing import pod_lines, pods_table, state_of
from shoal.client.run.remote import follow_job
from shoal.client.show.display import Display
from shoal.cluster.explain import UnreachableError
from shoal.cluster.handle import JobHandle
from shoal.cluster.manifests import (
    AUTHORITY_ANNOTATION,
    DEADLINE_GRACE_SECONDS,
    MASTER_RESTARTS,
    START_RESTARTS,
    STATE_LABEL,
    labels,
)
from shoal.config.job import JobConfig
from shoal.errors import UserError
from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import PeerUnavailableError
from shoal.result import JobFailedError
from tests.master.api_server import Answers, served

NAME = "job"
CREATED = "2026-01-01T00:00:00Z"


def pod(phase, number=0, ended=None, **state):
    """A pod of the master, whose container is in this state. ended: how it did before."""
    metadata = {"name": f"job-master-{number}", "labels": labels(NAME, "master")}
    metadata |= {"creationTimestamp": CREATED, "namespace": "space"}
    status = {"name": "master", "restartCount": 1 if ended else 0, "state": state, "ready": False}
    status |= {"image": "i", "imageID": "i"}
    status |= {"lastState": {"terminated": ended}} if ended else {}
    spec = {"containers": [], "terminationGracePeriodSeconds": 30}
    status = {"phase": phase, "containerStatuses": [status]}
    return {"metadata": metadata, "spec": spec, "status": status}


def waiting(reason, message="because"):
    return {"waiting": {"reason": reason, "message": message}}


class World:
    """What the API server says of the job. `pods`: at each look at them, the last for ever.

    None: there is no pod. When all were shown, the Job has this condition.
    """

    def __init__(self):
        self.pods, self.condition, self.logs = [], "Complete", "its log"
        self.shown = 0
        self.asked, self.events, self.jobs = [], [], []
        self.deleted = False
        self.away = self.forbidden = ""  # what it cannot be asked, and what it refuses
        self.suspended, self.annotations = False, {}

    def see_pods(self):
        self.shown += 1
        shown = self.pods[min(self.shown, len(self.pods)) - 1]
        return [shown] if shown else []

    def job(self):
        over = self.shown >= len(self.pods)
        conditions = [{"type": self.condition, "status": "True"}] if over else []
        metadata = {"name": "job-master", "uid": "1", "creationTimestamp": CREATED}
        metadata["annotations"] = self.annotations
        spec = {"template": {}, "suspend": self.suspended}
        return {"metadata": metadata, "spec": spec, "status": {"conditions": conditions}}

    def answer(self, method, path):
        self.asked.append((method, path))
        if method == "DELETE":
            self.deleted = True
            return {}
        if path.rstrip("/").endswith("/version"):
            others = "gitVersion gitCommit gitTreeState buildDate goVersion compiler platform"
            return dict.fromkeys(others.split(), "x") | {"major": "1", "minor": "20"}
        if path.endswith("/log"):
            return self.logs
        listed = [] if self.deleted else self.see_pods() if path.endswith("/pods") else []
        if method == "GET" and path.endswith(("/pods", "/jobs", "/configmaps", "/services")):
            return {"metadata": {"resourceVersion": "1"}, "items": listed}
        if path.endswith("/events"):
            about = {"metadata": {"name": "event"}, "involvedObject": {}}
            return {"metadata": {}, "items": [about | each for each in self.events]}
        if "/configmaps" in path and method == "GET":
            return {"metadata": {"name": NAME}, "data": {}}
        return self.job()

    def removed(self):
        return any(m == "DELETE" and p.endswith("/jobs/job-master") for m, p in self.asked)


class Told(Display):
    """Keeps what is told."""

    def __init__(self):
        super().__init__()
        self.events = []

    def event(self, text):
        self.events.append(text)

    def draw(self, status):
        pass


@pytest.fixture
def world():
    made = World()

    class Handler(Answers, BaseHTTPRequestHandler):
        def do_GET(self):
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if self.command == "POST" and self.path.partition("?")[0].endswith("/jobs"):
                made.jobs.append(json.loads(body))
            if made.away and made.away in self.path:
                self.close_connection = True  # without an answer
                return
            path = self.path.partition("?")[0]
            refused = made.forbidden and path.endswith(made.forbidden)
            self.answer(403 if refused else 200, made.answer(self.command, path))

        def do_POST(self):
            self.do_GET()

        def do_PATCH(self):
            self.do_GET()

        def do_DELETE(self):
            self.do_GET()

    with served(Handler) as made.address:
        yield made


@pytest.fixture
def follow(world, tmp_path, monkeypatch):
    """Follows the job in the folder; no master ever answers."""
    monkeypatch.setattr("shoal.client.remote_following.CALL_SECONDS", 0.2)
    configuration = client.Configuration()
    configuration.host = world.address
    folder = JobFolder(tmp_path / "job")
    folder.logs.mkdir(parents=True)
    given = {"model_def": "m.f", "training_data": "/t.csv", "job_name": NAME, "image": "i"}
    display = Told()

    def run(**changes):
        follow_job(handle(), configured(**changes), {}, folder, display)

    def configured(**changes):
        return JobConfig(**given | changes).resolved()

    def handle():
        return JobHandle(client.ApiClient(configuration), "space", NAME)

    run.config, run.handle = configured, handle
    run.display, run.folder = display, folder
    return run


RUNS = pod("Running", running={"startedAt": CREATED})
GONE = pod("Running", 0)


def test_who_may_not_read_the_certificate_for_commands_is_told_so(world, follow):
    """But not that there is none before the master has begun."""
    world.pods, world.forbidden = (
        [RUNS, RUNS, pod("Succeeded", 1)],
        "/secrets/job-client-tls-beef-0",
    )
    with pytest.raises(JobFailedError):
        follow()
    assert not [text for text in follow.display.events if "certificate" in text]
    world.annotations[AUTHORITY_ANNOTATION], world.shown, world.deleted = "beef", 0, False
    with pytest.raises(JobFailedError):
        follow()
    assert [text for text in follow.display.events if "Ask for the Role shoal-user" in text]


def started(world):
    """Whether the Job had been created without a pod, and was given one."""
    return any(m == "PATCH" and path.endswith("/jobs/job-master") for m, path in world.asked)


def test_a_job_in_a_queue_of_kueue_is_created_as_it_is_to_run(world, follow):
    world.pods = [None, pod("Succeeded")]
    with pytest.raises(JobFailedError, match="without a result"):
        follow(kueue_queue="ads")
    assert not started(world)
    assert [text for text in follow.display.events if "in the queue ads" in text]


def test_a_suspended_job_is_told_and_goes_on_when_it_is_resumed(world, follow):
    world.pods, world.suspended = [RUNS, None, pod("Succeeded", 1)], True
    with pytest.raises(JobFailedError, match="without a result"):
        follow()
    patch = 'kubectl patch job job-master --namespace space -p \'{"spec": {"suspend": false}}\''
    assert [text for text in follow.display.events if patch in text]
    assert world.shown >= len(world.pods)
    job, pods = follow.handle().job(), []
    job.status.conditions = []
    assert state_of(job, pods) == "suspended"


def test_the_client_makes_no_secret_and_warns_of_a_job_without(world, follow):
    world.pods = [pod("Succeeded")]
    with pytest.raises(JobFailedError):
        follow(tls="never")
    assert not any("/secrets" in path for _, path in world.asked)
    assert started(world)
    assert any("warning: --tls=never" in text for text in follow.display.events)


def test_a_later_pod_that_cannot_start_does_not_end_the_job(world, follow):
    stuck = pod("Pending", 1, **waiting("ErrImagePull"))
    never = pod("Pending", 1, **waiting("ErrImageNeverPull"))
    world.pods = [RUNS, GONE, stuck, never, stuck, pod("Pending", 1), pod("Succeeded", 1)]
    with pytest.raises(JobFailedError, match="without a result"):  # but with an end of its own
        follow(start_timeout=0.001)
    assert any("the cluster has no image i" in text for text in follow.display.events)
    # Removed after it had ended, and not before.
    assert world.shown >= len(world.pods)
    assert world.removed()


def test_a_pod_that_its_node_gave_up_is_followed_by_another(world, follow):
    evicted = pod("Failed", 0)
    evicted["status"] |= {"reason": "Evicted", "message": "low on\nmemory"}
    world.pods = [RUNS, GONE, evicted, evicted, pod("Pending", 1), pod("Succeeded", 1)]
    with pytest.raises(JobFailedError, match="without a result"):
        follow()
    assert any("ended with Evicted: low on memory" in text for text in follow.display.events)
    assert world.shown >= len(world.pods)


def test_a_first_pod_that_cannot_start_ends_the_job_after_a_while(world, follow):
    world.pods = [pod("Pending", **waiting("ImagePullBackOff"))] * 1000
    with pytest.raises(UserError, match="--image: the cluster has no image i"):
        follow(start_timeout=0.5)
    assert 1 < world.shown < 1000
    assert world.removed()


def test_a_master_that_crashes_is_told_with_its_last_words(world, follow):
    ended = {"exitCode": 2, "message": "Error: it may not get leases\n"}
    looping = pod("Running", 0, ended, **waiting("CrashLoopBackOff"))
    world.pods, world.condition = [pod("Pending"), looping, looping, None], "Failed"
    with pytest.raises(JobFailedError, match="it may not get leases"):
        follow()
    assert (
        "the master ended with exit code 2: Error: it may not get leases (restart 1)"
        in follow.display.events
    )


@pytest.mark.parametrize(
    ("ended", "told"),
    [
        (
            {"exitCode": 137, "reason": "OOMKilled", "message": "10:00 INFO a line of its log\n"},
            "exit code 137, as it ran out of memory (OOMKilled): give it more by "
            "--master-resources",
        ),
        ({"exitCode": 137, "reason": "Error", "message": "10:00 INFO a line\n"}, "exit code 137"),
        ({"exitCode": 137, "reason": "Evicted"}, "exit code 137 (Evicted)"),
        (
            {"exitCode": 1, "reason": "Error", "message": "this master ends, as it has lost"},
            "exit code 1: this master ends, as it has lost",
        ),
        ({"exitCode": 1, "reason": "Error", "message": "Error: no\n"}, "exit code 1: Error: no"),
    ],
)
def test_the_end_of_a_master_is_told_by_its_reason(world, follow, ended, told):
    looping = pod("Running", 0, ended, **waiting("CrashLoopBackOff"))
    world.pods, world.condition = [pod("Pending"), looping, looping, None], "Failed"
    with pytest.raises(JobFailedError) as error:
        follow()
    assert f"the master ended with {told} (restart 1)" in follow.display.events
    assert (
        str(error.value) == f"the job's master ended without a result: the master ended with {told}"
    )


def test_the_log_of_a_master_is_told_only_if_nothing_else_is_known(world, follow):
    world.pods = [pod("Succeeded")]
    with pytest.raises(JobFailedError, match="without a result: the end of its log:\nits log"):
        follow()


class Master:
    """A master that starts, is silent between two answers, and again after them."""

    def __init__(self):
        self.answers = iter([False, True, False, False, True])

    def call(self, method, *_, **__):
        if method is methods.GET_JOB_METRICS or not next(self.answers, False):
            raise PeerUnavailableError("master", "GetJobStatus", "no answer")
        return pb.JobStatus()


def test_a_master_that_is_not_heard_is_told_with_what_its_node_lacks(world, follow, monkeypatch):
    monkeypatch.setattr("shoal.client.remote_following.SILENT_SECONDS", 0.0)
    master = contextlib.nullcontext(Master())
    monkeypatch.setattr(JobHandle, "master", lambda *_: master)
    monkeypatch.setattr(JobHandle, "identity", lambda *_: None)
    away = copy.deepcopy(RUNS)
    away["spec"]["nodeName"] = "vm"
    away["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
    world.events = [{"reason": "NodeNotReady", "message": "Node is not ready"}]
    world.pods = [away] * 12 + [pod("Succeeded")]
    with pytest.raises(JobFailedError):
        follow()
    silence = "the master has not answered for 0 s; its pod is on node vm: Node is not ready. "
    told = [text for text in follow.display.events if "answer" in text]
    assert [text.startswith(silence) for text in told] == [True, False, True]
    assert told[1] == "the master answers again"


def test_a_master_without_a_place_ends_the_job_after_start_timeout(world, follow):
    volume = 'persistentvolumeclaim "nope" not found'
    no_place = {"type": "PodScheduled", "status": "False", "message": volume}
    unplaced = pod("Pending")
    unplaced["status"] |= {"conditions": [no_place], "containerStatuses": []}
    world.pods = [unplaced] * 1000
    with pytest.raises(UserError, match=f"--start-timeout: after 0.5 s, no node takes.*{volume}"):
        follow(start_timeout=0.5)
    assert f"no node takes the master's pod yet: {volume}" in follow.display.events
    assert 1 < world.shown < 1000
    assert world.removed()


def test_a_secret_that_is_not_there_is_told_and_ends_the_job_after_start_timeout(world, follow):
    """The container says nothing but that it is being created: its events name the Secret."""
    secret = 'MountVolume.SetUp failed for volume "certificates" : secret "job-master" not found'
    world.events = [
        {"reason": "FailedMount", "message": secret, "lastTimestamp": CREATED},
        {"reason": "FailedScheduling", "message": "no room", "lastTimestamp": CREATED},
    ]
    world.pods = [pod("Pending", **waiting("ContainerCreating", ""))] * 1000
    with pytest.raises(UserError, match=r"--start-timeout: after 0.5 s, .*secret"):
        follow(start_timeout=0.5)
    assert f"the master's pod cannot start yet: {secret}" in follow.display.events
    world.deleted = False
    table = pods_table(pod_lines(follow.handle().pods(), follow.handle().warnings))
    assert secret in next(iter(table.columns[-1].cells))


def test_kubernetes_holds_the_start_timeout_of_a_job_that_nobody_follows(world, follow):
    world.pods = [pod("Pending")]
    follow.handle().create(follow.config(start_timeout=60.0), {}, followed=False)
    follow.handle().create(follow.config(start_timeout=60.0), {})
    limits = [made["spec"].get("activeDeadlineSeconds") for made in world.jobs]
    assert limits == [60 + DEADLINE_GRACE_SECONDS, None]


def failed(reason, limit, labels):
    condition = client.V1JobCondition(type="Failed", status="True", reason=reason, message="m")
    return client.V1Job(
        metadata=client.V1ObjectMeta(labels=labels),
        spec=client.V1JobSpec(template=client.V1PodTemplateSpec(), backoff_limit=limit),
        status=client.V1JobStatus(conditions=[condition]),
    )


def test_a_failed_job_without_a_result_is_explained_by_how_far_its_master_came():
    never = _without_result(failed("BackoffLimitExceeded", START_RESTARTS, {}))
    assert "never begun: its service account may lack the Role" in never
    begun = {STATE_LABEL: "training"}
    changed = _without_result(failed("BackoffLimitExceeded", 2, begun))
    assert "somebody has set it to 2" in changed
    assert "shoal train --resume" in changed
    assert "Role" not in changed
    late = _without_result(failed("DeadlineExceeded", MASTER_RESTARTS, begun))
    assert "--start-timeout" not in late
    assert "--start-timeout" in _without_result(failed("DeadlineExceeded", START_RESTARTS, {}))


def test_a_disk_that_takes_no_logs_leaves_nothing_in_the_cluster(world, follow):
    follow.folder.logs.rmdir()
    follow.folder.logs.touch()  # no folder: every write below it fails
    world.pods = [pod("Succeeded")]
    with pytest.raises(JobFailedError):
        follow()
    assert any("logs cannot be kept" in text for text in follow.display.events)
    assert world.removed()


def test_a_command_that_fails_itself_leaves_a_running_job_alone(world, follow, monkeypatch):
    def fail(*_):
        raise ValueError("a bug of ours")

    monkeypatch.setattr(follow.display, "started", fail)
    world.pods = [RUNS] * 1000
    with pytest.raises(ValueError, match="a bug of ours"):
        follow()
    assert not world.removed()
    assert any("left in the cluster" in text for text in follow.display.events)


def test_a_result_that_nobody_can_ask_for_is_left_in_the_cluster(world, follow, monkeypatch):
    monkeypatch.setattr("shoal.client.run.remote.PATIENCE_SECONDS", 0.2)
    monkeypatch.setattr("shoal.client.run.remote.AGAIN_SECONDS", 0.01)
    world.pods, world.away = [pod("Succeeded")], "/configmaps/"
    with pytest.raises(UnreachableError, match="shoal status job --namespace space") as caught:
        follow()
    assert "how is not known" in str(caught.value)
    assert not world.removed()
    assert any("left in the cluster" in text for text in follow.display.events)
