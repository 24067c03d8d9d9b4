"""The pages of a job on the cluster: each process's metrics, and `shoal dashboard`; and top, stacks
and profile, which ask the master of a running job."""

import http.client
import json
import shutil

from prometheus_client.parser import text_string_to_metric_families as parsed

from shoal.cluster.ports import METRICS_PORT
from tests.jobs.conftest import movielens as movielens
from tests.kubernetes.conftest import kubectl
from tests.kubernetes.jobs import Watched, held_job, until
from tests.kubernetes.users import user as user
from tests.tools.dashboard.dashboards import Dashboard

NAME = "shown"
TOKEN = "s3cret"


def answer_of(address, **headers):
    """(status, text) of /metrics at a pod's address, which the node reaches as pods do."""
    connection = http.client.HTTPConnection(address, METRICS_PORT, timeout=60)
    try:
        connection.request("GET", "/metrics", headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def assert_shows_itself(pod):
    """The page of a pod is for readers with the token, and says which process it is of."""
    labels = pod.metadata.labels
    role, index = labels["shoal.dev/role"], labels.get("shoal.dev/index", "0")
    for headers in ({}, {"Authorization": "Bearer another"}):
        status, text = answer_of(pod.status.pod_ip, **headers)
        assert (status, "Secret shoal-metrics" in text) == (401, True), text
    status, text = answer_of(pod.status.pod_ip, Authorization=f"Bearer {TOKEN}")
    assert status == 200, text
    samples = [sample for family in parsed(text) for sample in family.samples]
    (info,) = (each.labels for each in samples if each.name == "shoal_process_info")
    assert (info["role"], info["index"]) == (role, index)
    return {each.name: each.value for each in samples if not each.labels}


def test_a_running_job_shows_its_metrics_and_its_page(user, movielens, namespace):
    shutil.copy(movielens / "validation.parquet", user.path / "train.parquet")
    flags, hold = held_job(user, NAME, workers="1")
    refused = user("train", *flags, "--serve-metrics", "--detach")
    assert (refused.returncode, "has no Secret shoal-metrics" in refused.stderr) == (2, True)
    secret = ("create", "secret", "generic", "shoal-metrics", f"--from-literal=token={TOKEN}")
    kubectl(*secret, namespace=namespace)
    done = user("train", *flags, "--serve-metrics", "--detach")
    assert done.returncode == 0, done.stderr
    job = Watched(NAME, namespace)
    until("a worker trains", lambda: job.training_with(1))

    pods = {pod.metadata.name: pod for pod in job.handle.pods()}
    told = {name: assert_shows_itself(pod) for name, pod in pods.items()}
    assert len(told) == 4
    (master,) = (name for name in told if name.startswith(f"{NAME}-master"))
    assert told[master]["shoal_job_records_done"] > 0
    assert told[f"{NAME}-worker-0"]["shoal_steps_total"] > 0
    for index in (0, 1):
        assert told[f"{NAME}-ps-{index}"]["shoal_pushes_applied_total"] > 0

    where = ("--namespace", namespace)

    def said(*words):
        done = user(*words, *where)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    top = said("top", NAME, "--once")
    assert all(name in top for name in ("ps-0", "ps-1", "worker-0", "pushes/s"))
    stacks = said("stacks", NAME)
    heads = [line.split(":")[0] for line in stacks.splitlines() if line and not line[0].isspace()]
    assert heads == ["master", "ps-0", "ps-1", "worker-0"]
    assert "    > " in stacks  # a line of the user's own module, which stands in its reader
    found = json.loads(said("explain", NAME, "factors", "-5", "--json"))
    assert (found["where"], found["state"]) == (f"job {NAME}, which runs", "nothing")
    assert found["server"] in (0, 1)
    refused = user("profile", NAME, "worker", *where)
    assert refused.returncode == 2
    assert f"kubectl exec {NAME}-worker-0 -- py-spy dump --pid 1" in refused.stderr

    with Dashboard(NAME, user.path, *where, KUBECONFIG=user.kubeconfig) as page:
        page.wait("it trains", "/facts", lambda facts: facts["state"] == "training")
        assert namespace in page.json("/facts")["place"]
        assert sorted(page.json("/logs")["lines"]) == sorted(pods)
        page.wait("a worker's lane", "/course", lambda course: len(course["lanes"]) == 3)
        hold.unlink()
        ended = page.wait("its end", "/facts", lambda facts: facts["ended"])
        assert ended["state"] == "succeeded", ended
    result = json.loads(until("its result", job.handle.result))
    with Dashboard(NAME, user.path, *where, KUBECONFIG=user.kubeconfig) as page:
        later = page.wait("its result", "/facts", lambda facts: facts["ended"])
        assert later["state"] == "succeeded"
        assert later["ledger"]["total"] == result["ledger"]["total"] == 19_633
    assert user("delete", NAME, *where).returncode == 0
