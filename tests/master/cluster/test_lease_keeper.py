"""The Lease's keeper over HTTP, from a server that does what a real one cannot be had to do.

tests/kubernetes has the real one.
"""

import json
import subprocess
import sys
import threading
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from kubernetes import client

from shoal.cluster.manifests import owner
from shoal.errors import EXIT_JOB_FAILED, UserError
from shoal.master.cluster import job_lease, lease_keeper
from shoal.master.cluster.job_lease import Seen
from shoal.master.cluster.lease_keeper import LeaseApi, LeaseKeeper, is_free
from tests.master.api_server import POLL, Answers

SECONDS = 60


class Server(ThreadingHTTPServer):
    """One Lease, whose versions are compared. forbidden: verbs that are answered with 403."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.lock, self.changed = threading.Lock(), threading.Condition()
        self.lease, self.version = None, 0
        self.forbidden, self.answers = set(), threading.Event()
        self.answers.set()

    def handle_error(self, *_):
        pass  # a client that has gone

    def put(self, lease):
        with self.changed:
            self.version += 1
            self.lease = lease
            if lease is not None:
                lease["metadata"]["resourceVersion"] = str(self.version)
            self.changed.notify_all()

    def until(self, condition):
        with self.changed:
            assert self.changed.wait_for(lambda: condition(self.lease), SECONDS)


class Handler(Answers, BaseHTTPRequestHandler):
    def handle_verb(self, verb):
        server = self.server
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or "{}")
        server.answers.wait(SECONDS)
        if verb in server.forbidden:
            return self.answer(403, {"message": f"cannot {verb} leases"})
        with server.lock:
            there = server.lease
            if verb != "create" and there is None:
                return self.answer(404, {"message": "not found"})
            if verb == "create" and there is not None:
                return self.answer(409, {"message": "exists"})
            if verb == "update":
                known = body["metadata"]["resourceVersion"]
                if known != there["metadata"]["resourceVersion"]:
                    return self.answer(409, {"message": "changed"})
            if verb != "get":
                server.put(body)
            return self.answer(200, server.lease)

    def do_GET(self):
        self.handle_verb("get")

    def do_POST(self):
        self.handle_verb("create")

    def do_PUT(self):
        self.handle_verb("update")


@pytest.fixture
def server():
    with Server() as made:
        threading.Thread(target=made.serve_forever, args=(POLL,), daemon=True).start()
        yield made
        made.answers.set()
        made.shutdown()


@pytest.fixture
def quick(monkeypatch):
    """Seconds of a Lease that end sooner."""
    for name, seconds in (("DURATION", 3), ("MARGIN", 1.0), ("RENEW", 0.2), ("POLL", 0.05)):
        monkeypatch.setattr(job_lease, f"{name}_SECONDS", seconds)
    monkeypatch.setattr(lease_keeper, "DURATION_SECONDS", job_lease.DURATION_SECONDS)


def api(server, who):
    configuration = client.Configuration()
    configuration.host = f"http://127.0.0.1:{server.server_address[1]}"
    configuration.retries = False
    return LeaseApi(client.ApiClient(configuration), "space", "job", who, owner("job", "uid-1"))


class Kept:
    """A keeper of the Lease, and whether it has lost it."""

    def __init__(self, server, who):
        self.why, self.lost = "", threading.Event()
        self.keeper = LeaseKeeper(api(server, who), who, lost=self._lose)

    def _lose(self, why):
        self.why = why
        self.lost.set()

    def __enter__(self):
        self.held = ExitStack()
        self.held.enter_context(self.keeper.held())
        return self

    def __exit__(self, *_):
        self.held.close()


def test_a_lease_is_created_renewed_and_given_back(server, quick):
    with Kept(server, "one") as one:
        first = server.lease
        assert first["spec"]["holderIdentity"] == "one"
        assert first["metadata"]["ownerReferences"] == owner("job", "uid-1")
        server.until(lambda lease: lease["spec"]["renewTime"] > first["spec"]["renewTime"])
        assert server.lease["spec"]["acquireTime"] == first["spec"]["acquireTime"]
    assert server.lease["spec"]["holderIdentity"] == ""
    assert server.lease["metadata"]["ownerReferences"] == owner("job", "uid-1")
    assert not one.lost.is_set()
    with Kept(server, "two"):
        assert server.lease["spec"]["holderIdentity"] == "two"
        assert server.lease["spec"]["leaseTransitions"] == 1


def test_another_waits_until_it_is_given_back(server, quick):
    begun, ended = threading.Event(), threading.Event()

    def wait():
        with Kept(server, "two"):
            begun.set()
            ended.wait(SECONDS)

    thread = threading.Thread(target=wait)
    with Kept(server, "one") as one:
        thread.start()
        for _ in range(3):
            renewed = server.version
            server.until(lambda _, renewed=renewed: server.version > renewed)
        assert not begun.is_set()
        assert not is_free(api(server, "").read)
    assert begun.wait(SECONDS)
    assert server.lease["spec"]["holderIdentity"] == "two"
    assert not one.lost.is_set()
    ended.set()
    thread.join()
    assert is_free(api(server, "").read)


@pytest.mark.slow
def test_one_that_is_not_renewed_is_taken(server, quick):
    api(server, "dead").write(None)
    with Kept(server, "two"):
        assert server.lease["spec"]["holderIdentity"] == "two"


@pytest.mark.slow
def test_a_master_that_cannot_renew_ends_itself_while_its_request_hangs(server, quick):
    with Kept(server, "one") as one:
        server.answers.clear()
        assert one.lost.wait(SECONDS)
        server.answers.set()
    assert "renewed in time" in one.why


def test_a_master_whose_lease_was_deleted_ends_itself(server, quick):
    with Kept(server, "one") as one:
        # Until it is seen: a renewal under way may write it once more.
        while not one.lost.wait(0.1):
            with server.lock:
                server.put(None)
    assert "deleted" in one.why


@pytest.mark.parametrize(("verb", "there"), [("get", False), ("create", False), ("update", True)])
def test_a_missing_right_is_named(server, verb, there):
    if there:
        one = api(server, "one")
        one.write(one.write(None), holder="")
    server.forbidden.add(verb)
    with pytest.raises(UserError, match=f"may not {verb} leases .*the Role shoal of deploy/base"):
        Kept(server, "two").__enter__()


def test_a_lease_without_holder_or_duration_is_free(server):
    server.put({"metadata": {"name": "job"}, "spec": {}})
    assert api(server, "one").read() == Seen("1", "")


def test_a_master_that_lost_its_lease_says_so_where_kubernetes_keeps_it(tmp_path):
    """Otherwise the last lines of its log are told, which have nothing to do with that."""
    code = (
        "import sys; from pathlib import Path; from shoal.master.cluster import lease_keeper; "
        "lease_keeper.TERMINATION_LOG = Path(sys.argv[1]); "
        "lease_keeper.end_process('no answer for 25 s')"
    )
    said = tmp_path / "termination-log"
    done = subprocess.run([sys.executable, "-c", code, str(said)], check=False)
    assert done.returncode == EXIT_JOB_FAILED
    assert said.read_text() == "this master ends, as it has lost its Lease: no answer for 25 s"
