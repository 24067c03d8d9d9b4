"""What cannot run is said before or at submission, with the flag and what to do."""

import json
import re

import pytest
from kubernetes import config

from tests.docs.roles import granted
from tests.kubernetes.conftest import kubectl
from tests.kubernetes.jobs import left_of, until
from tests.kubernetes.users import config_of

# As `kubectl auth can-i --list` says it; of groups, those that a job has to do with.
ROW = r"([a-z/]+)(?:\.(?:coordination\.k8s\.io|batch|policy))? .*\[([a-z ]+)\]$"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"namespace": "nowhere"}, "--namespace: there is no namespace nowhere"),
        ({"priority": "worker=gold"}, "no PriorityClass with name gold was found"),
        ({"ps_resources": "cpu=0.01:0.001"}, "must be less than or equal to cpu limit"),
        ({"image": "local/none:1"}, "--image: the cluster has no image local/none:1"),
        ({"service_account": "nobody"}, "--service-account:"),
    ],
)
def test_a_job_that_cannot_run_is_explained_and_leaves_nothing(shoal, namespace, changes, message):
    done = shoal("train", *shoal.movielens("wrong", **changes))
    assert (done.returncode, "Traceback" in done.stderr) == (2, False), done.stderr
    assert message in done.stderr
    assert left_of("wrong", namespace) == ""


def test_a_quota_that_leaves_no_room_is_named(shoal, namespace):
    kubectl("create", "quota", "none", "--hard=count/jobs.batch=0", namespace=namespace)
    try:
        done = shoal("train", *shoal.movielens("wrong"), "--detach")
    finally:
        kubectl("delete", "quota", "none", namespace=namespace)
    assert (done.returncode, "--namespace: the quota of" in done.stderr) == (2, True), done.stderr


def test_a_job_that_is_not_there_is_not_found(shoal, namespace):
    for command in ("status", "logs", "stop", "delete"):
        done = shoal(command, "nothing", "--namespace", namespace)
        assert (done.returncode, "there is no job nothing" in done.stderr) == (2, True), done.stderr


def test_the_masters_account_can_do_what_the_role_says_and_no_more(namespace):
    who = f"--as=system:serviceaccount:{namespace}:shoal"
    listed = kubectl("auth", "can-i", "--list", who, namespace=namespace)
    rules = (re.match(ROW, line.rstrip()) for line in listed.splitlines())
    found = [(rule[1], verb) for rule in rules if rule for verb in rule[2].split()]
    assert sorted(found) == granted("shoal")
    allowed, answers = set(granted("shoal")), answers_to(who.removeprefix("--as="), namespace)
    # Of what is granted, one that changes nothing: the questions are asked as they should be.
    assert answers["pods", "list"] == OK
    refused = {right: status for right, status in answers.items() if right not in allowed}
    assert {("secrets", "get"), ("pods/exec", "create"), ("roles", "create")} <= refused.keys()
    assert set(refused.values()) == {FORBIDDEN}, refused


GROUPS = (
    *("api/v1", "apis/apps/v1", "apis/batch/v1", "apis/coordination.k8s.io/v1"),
    *("apis/rbac.authorization.k8s.io/v1", "apis/networking.k8s.io/v1", "apis/policy/v1beta1"),
)
METHODS = {
    "get": "GET",
    "list": "GET",
    "watch": "GET",
    "create": "POST",
    "update": "PUT",
    "patch": "PATCH",
    "delete": "DELETE",
    "deletecollection": "DELETE",
}
ON_ALL = ("list", "watch", "create", "deletecollection")
OK, FORBIDDEN = 200, 403


def answers_to(user, namespace):
    """The statuses of the API server's answers to every call there is, by resource and verb.

    All but those that would change something, of what `user` may.
    """
    api = config.new_client_from_config()
    harmless = {right for right in granted("shoal") if right[1] in ("get", "list")}
    found = {}

    def call(method, path, **header):
        # By its pool of connections: how it is called itself differs between versions.
        sends = {"body": "{}"} if method in ("POST", "PUT", "PATCH") else {}
        url = f"{api.configuration.host}/{path}"
        return api.rest_client.pool_manager.request(method, url, headers=header, **sends)

    for group in GROUPS:
        resources = json.loads(call("GET", group).data)["resources"]
        for each in filter(lambda resource: resource["namespaced"], resources):
            resource, _, part = each["name"].partition("/")
            for verb in each["verbs"]:
                right = each["name"], verb
                if right in granted("shoal") and right not in harmless:
                    continue
                named = part or verb not in ON_ALL
                path = f"{group}/namespaces/{namespace}/{resource}"
                path += ("/any" if named else "") + (f"/{part}" if part else "")
                path += "?watch=1" if verb == "watch" else ""
                found[right] = call(METHODS[verb], path, **{"Impersonate-User": user}).status
    return found


def test_a_user_with_the_role_can_run_jobs_and_another_is_told(shoal, namespace, monkeypatch):
    path = shoal.path / "ann.json"
    path.write_text(json.dumps(config_of("ann", namespace)))
    monkeypatch.setenv("KUBECONFIG", str(path))
    flags = shoal.movielens("hers", master_resources="cpu=1000")
    done = shoal("train", *flags, "--detach")
    assert (done.returncode, "Ask for the Role shoal-user" in done.stderr) == (2, True), done.stderr
    monkeypatch.undo()
    account = f"--serviceaccount={namespace}:ann"
    kubectl("create", "rolebinding", "ann", "--role=shoal-user", account, namespace=namespace)
    monkeypatch.setenv("KUBECONFIG", str(path))
    # Its master finds no room, which is all that this test needs.
    done = shoal("train", *flags, "--detach")
    assert done.returncode == 0, done.stderr
    assert "waiting" in shoal("jobs", "--namespace", namespace).stdout
    until(
        "the reason is told",
        lambda: "Insufficient cpu" in shoal("status", "hers", "--namespace", namespace).stdout,
    )
    taken = shoal("train", *flags, "--detach")
    assert (taken.returncode, "--job-name: there is a job hers" in taken.stderr) == (2, True)
    assert shoal("delete", "hers", "--namespace", namespace).returncode == 0
    monkeypatch.undo()
    assert left_of("hers", namespace) == ""
