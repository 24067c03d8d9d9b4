"""Jobs of one namespace and of all, for people and for programs, as an API server shows them."""

import json
import urllib.parse
from http.server import BaseHTTPRequestHandler

import pytest
from click.testing import CliRunner

from shoal.cli.main import main
from shoal.cluster.manifests import labels
from tests.master.api_server import Answers, served

CREATED = "2026-01-01T00:00:00Z"
ENDED = {"job_name": "old", "command": "train", "state": "succeeded", "ledger": {"total": 7}}


def named(namespace, job, role, number=0):
    name = f"{job}-{role}-{number}"
    own = {"name": name, "namespace": namespace, "labels": labels(job, role)}
    return own | {"creationTimestamp": CREATED, "uid": "1"}


def pod(namespace, job, role, phase="Running", number=0):
    spec = {"containers": [], "nodeName": "vm"}
    return {
        "metadata": named(namespace, job, role, number),
        "spec": spec,
        "status": {"phase": phase},
    }


WORLD = {
    "jobs": [
        {"metadata": named(*each, "master"), "spec": {"template": {}}, "status": {}}
        for each in (("ads", "ctr"), ("shop", "ctr"), ("shop", "old"), ("shop", "waits"))
    ],
    "pods": [
        pod("ads", "ctr", "master"),
        *(pod("ads", "ctr", "worker", number=number) for number in range(3)),
        pod("shop", "ctr", "master"),
        pod("shop", "ctr", "ps"),
        pod("shop", "waits", "master", "Pending"),
    ],
    "configmaps": [
        {"metadata": named("shop", "old", "config"), "data": {"result.json": json.dumps(ENDED)}}
    ],
}  # fmt: skip


@pytest.fixture
def shoal(tmp_path, monkeypatch):
    """Run a command with a cluster of these objects; returns what it prints."""
    monkeypatch.chdir(tmp_path)

    class Handler(Answers, BaseHTTPRequestHandler):
        def do_GET(self):
            path, _, query = self.path.partition("?")
            words = path.strip("/").split("/")
            namespace = words[words.index("namespaces") + 1] if "namespaces" in words else ""
            if not namespace and may_see_all is False:
                self.answer(403, {"message": "jobs.batch is forbidden"})
                return
            kind = next(word for word in words if word in WORLD)
            (selector,) = urllib.parse.parse_qs(query).get("labelSelector", [""])
            wanted = dict(pair.split("=") for pair in selector.split(",") if pair)
            metadata = [each["metadata"] for each in WORLD[kind]]
            found = [
                each
                for each, own in zip(WORLD[kind], metadata, strict=True)
                if namespace in ("", own["namespace"]) and wanted.items() <= own["labels"].items()
            ]
            name = words[-1]
            if name in WORLD:
                self.answer(200, {"metadata": {}, "items": found})
                return
            one = [e for e in found if e["metadata"]["labels"]["shoal.dev/job"] in name]
            empty = {"metadata": {"name": name}, "data": {}}
            self.answer(200, one[0] if one else empty)

    may_see_all = True
    with served(Handler) as address:
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "c",
            "clusters": [{"name": "k", "cluster": {"server": address}}],
            "users": [{"name": "u", "user": {}}],
            "contexts": [
                {"name": "c", "context": {"cluster": "k", "user": "u", "namespace": "ads"}}
            ],
        }
        (tmp_path / "config.json").write_text(json.dumps(config))
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config.json"))
        # What the library has read when it was imported.
        path = "kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION"
        monkeypatch.setattr(path, str(tmp_path / "config.json"))

        def run(*words, code=0, all_namespaces=True):
            nonlocal may_see_all
            may_see_all = all_namespaces
            done = CliRunner().invoke(main, words, prog_name="shoal")
            assert done.exit_code == code, done.output
            return done.output

        yield run


def test_jobs_are_listed_of_one_namespace_and_of_all(shoal):
    def listed(*words):
        lines = json.loads(shoal("jobs", "--json", *words))
        return {
            (e["namespace"], e["name"]): (e["state"], e["workers"], e["servers"]) for e in lines
        }

    assert listed() == {("ads", "ctr"): ("running", 3, 0)}
    everywhere = listed("-A")
    assert everywhere == {
        ("ads", "ctr"): ("running", 3, 0),
        ("shop", "ctr"): ("running", 0, 1),
        ("shop", "old"): ("succeeded", 0, 0),
        ("shop", "waits"): ("waiting", 0, 0),
    }
    assert "namespace" not in shoal("jobs").splitlines()[2]
    table = shoal("jobs", "--all-namespaces")
    assert "jobs in all namespaces" in table
    assert all(f" {namespace} " in table for namespace in ("ads", "shop"))
    told = shoal("jobs", "-A", code=2, all_namespaces=False)
    assert "--all-namespaces: you may not list jobs in the whole cluster" in told
    assert "not both" in shoal("jobs", "-A", "--namespace", "ads", code=2)


def test_the_status_of_a_job_for_programs(shoal):
    found = json.loads(shoal("status", "old", "--namespace", "shop", "--json"))
    assert (found["name"], found["namespace"], found["state"]) == ("old", "shop", "succeeded")
    assert (found["ended"], found["ledger"]["total"]) == (True, 7)
    found = json.loads(shoal("status", "waits", "-A", "--json"))
    assert (found["namespace"], found["state"], found["ended"]) == ("shop", "waiting", False)
    assert "its pod is Pending" in found["trouble"]
    assert [(each["pod"], each["phase"]) for each in found["pods"]] == [
        ("waits-master-0", "Pending")
    ]
    told = shoal("status", "ctr", "-A", code=2)
    assert "several namespaces have a job ctr, choose one with --namespace: ads, shop" in told
