"""The certificates that the first master of a Job makes, and those that the next one finds.

Over HTTP, from an API server that keeps Secrets; tests/kubernetes has the real one.
"""

import json
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler

import pytest
from kubernetes import client

from shoal.cluster.certificates import secret_keys
from shoal.errors import UserError
from shoal.master.cluster import job_certificates
from shoal.master.cluster.job_certificates import JobCertificates
from shoal.proto.identity import CLIENT, MASTER
from tests.master.api_server import Answers, served
from tests.master.strategies import config

CONFIG = config(image="i", job_name="job", token="t")


class World:
    """Secrets by name, and the pod's folder, which shows the master's own as a kubelet does.

    shown: after how many tries to make it. killed: the Secret that is not made any more.
    """

    def __init__(self, folder):
        self.secrets, self.folder = {}, folder
        self.shown, self.killed, self.refused = 0, "", False

    def create(self, secret):
        name = secret["metadata"]["name"]
        if self.refused or (self.killed and self.killed in name):
            return HTTPStatus.FORBIDDEN
        if name not in self.secrets:
            self.secrets[name] = secret
            return HTTPStatus.CREATED
        self.shown -= 1
        if not self.shown:
            self.show()
        return HTTPStatus.CONFLICT

    def show(self):
        data = self.secrets["job-master-tls-0"]["stringData"]
        for file, key in (secret_keys() | {"job-uid": "job-uid"}).items():
            (self.folder / file).write_text(data[key])

    def of(self, role):
        return [each for name, each in self.secrets.items() if f"-{role}-" in name]


@pytest.fixture
def world(tmp_path, monkeypatch):
    monkeypatch.setattr(job_certificates, "POLL_SECONDS", 0.001)
    made = World(tmp_path)

    class Handler(Answers, BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.answer(made.create(body), {"message": "no", "metadata": {"name": "x"}})

    with served(Handler) as address:
        configuration = client.Configuration()
        configuration.host = address
        made.api = client.ApiClient(configuration)
        yield made


def prepared(world, uid="1", **changes):
    given = config(image="i", job_name="job", token="t", **changes)
    return JobCertificates(world.api, "space", given, uid, world.folder).prepared()


def test_the_first_master_makes_them_and_the_next_one_finds_them(world):
    own = prepared(world)
    assert (own.caller.role, own.caller.job) == (MASTER, CONFIG.job_id)
    ends = {name.rpartition("-tls-")[2] for name in world.secrets}
    assert len(world.secrets) == 4
    assert len(ends) == 2  # the authority's, and the master's, which has none
    for each in world.secrets.values():
        assert each["metadata"]["ownerReferences"][0]["uid"] == "1"
        assert each["stringData"]["ca.crt"].encode() == own.authority
    (of_client,) = world.of(CLIENT)
    assert of_client["immutable"]
    before = set(world.secrets)
    world.show()
    assert prepared(world) == own
    assert set(world.secrets) == before


def test_a_master_that_was_killed_amid_it_is_followed_by_one_with_a_new_authority(world):
    world.killed = "-worker-"
    with pytest.raises(UserError, match="needs the Role shoal"):
        prepared(world)
    assert not world.of(MASTER)
    world.killed = ""
    own = prepared(world)
    assert [each["stringData"]["ca.crt"].encode() for each in world.of("worker")] == [own.authority]


def test_a_master_that_was_killed_right_after_it_waits_for_its_own(world):
    own = prepared(world)
    world.shown = 3
    assert prepared(world) == own  # and not the one that it has made in vain
    assert world.shown == 0


def test_certificates_of_an_earlier_job_of_the_name_are_not_taken(world):
    earlier = prepared(world)
    world.show()
    world.secrets.clear()  # they went with their Job, and are mounted yet
    now = prepared(world, uid="2")
    assert now.authority != earlier.authority
    assert world.of(MASTER)[0]["stringData"]["job-uid"] == "2"


def test_a_secret_that_stays_in_the_way_is_named(world, monkeypatch):
    prepared(world)
    monkeypatch.setattr(job_certificates, "PATIENCE_SECONDS", 0.0)
    with pytest.raises(OSError, match="kubectl delete secret job-master-tls-0 --namespace space"):
        prepared(world, uid="2")


def test_an_insecure_job_has_none(world):
    assert prepared(world, tls="never") is None
    assert not world.secrets
