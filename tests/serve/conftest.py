"""A server in a thread, of what a history publishes."""

import http.client
import json
import threading

import pytest
import uvicorn

from shoal.deltas import walking
from shoal.deltas.following import Follower
from shoal.serve.app import Service, app_of
from tests.serve.models import Predicting


class Client:
    """Asks a server. port: its own."""

    def __init__(self, port):
        self.port = port

    def ask(self, method, path, body=None, **headers):
        """The status and the answer, of JSON if it is that."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        connection.request(method, path, data, {k.replace("_", "-"): v for k, v in headers.items()})
        answer = connection.getresponse()
        found = answer.read()
        connection.close()
        if answer.headers["content-type"] == "application/json":
            found = json.loads(found)
        return answer.status, found

    def get(self, path):
        return self.ask("GET", path)

    def post(self, path, body):
        return self.ask("POST", path, body)


@pytest.fixture
def serving(monkeypatch):
    """Serves a folder; a Client, with its `follower` and `service`."""
    monkeypatch.setattr(walking, "POLL_SECONDS", 0.01)
    ends = []

    def start(url, also=None, max_age=None, plane=0, **options):
        follower = Follower(url, **options)
        service = Service(follower, "clicks", max_age, plane)
        config = uvicorn.Config(
            app_of(service, also), port=0, log_level="warning", lifespan="off", ws="none"
        )
        server = uvicorn.Server(config)
        sock = config.bind_socket()
        sock.listen()
        thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]})
        thread.start()
        ends.append((server, thread, follower, sock))
        client = Client(sock.getsockname()[1])
        client.follower, client.service = follower, service
        return client

    yield start
    for server, thread, follower, sock in ends:
        server.should_exit = True
        thread.join()
        follower.close()
        sock.close()


@pytest.fixture
def history(tmp_path):
    made = Predicting(tmp_path / "live")
    made.push()
    made.publish()
    return made
