"""A job whose metrics nobody could read is refused before anything of it is created."""

import base64
from http.server import BaseHTTPRequestHandler

import pytest
from kubernetes import client

from shoal.cluster.lifetime import JobLifetime
from shoal.config.job import JobConfig
from shoal.errors import UserError
from tests.master.api_server import Answers, served

VERSION = (
    *("major", "minor", "gitVersion", "gitCommit", "gitTreeState"),
    *("buildDate", "goVersion", "compiler", "platform"),
)
"""Fields of what an API server says of its version."""

SECRET = "/api/v1/namespaces/space/secrets/shoal-metrics"


@pytest.fixture
def check():
    """Have a cluster judge a job; the Secret `shoal-metrics` has this data; a status: none."""

    def judge(found):
        asked = []

        class Api(Answers, BaseHTTPRequestHandler):
            def do_GET(self):
                asked.append(self.path)
                if self.path == "/version/":
                    self.answer(200, dict.fromkeys(VERSION, "") | {"major": "1", "minor": "30"})
                elif self.path == SECRET and isinstance(found, dict):
                    self.answer(200, {"kind": "Secret", "data": found})
                else:
                    code = found if self.path == SECRET else 404
                    self.answer(code, {"kind": "Status", "message": "no", "code": code})

            def do_POST(self):
                asked.append(self.path)
                self.rfile.read(int(self.headers["Content-Length"]))
                self.answer(201, {"metadata": {"name": "made"}})

        given = {
            "model_def": "deepfm.custom_model",
            "training_data": "/data/train.csv",
            "job_name": "job",
            "image": "shoal:1",
            "serve_metrics": True,
        }
        with served(Api) as address:
            configuration = client.Configuration(host=address)
            handle = JobLifetime(client.ApiClient(configuration), "space", "job")
            handle.check(JobConfig(**given).resolved(), {})
        return asked

    return judge


def test_a_token_is_there(check):
    asked = check({"token": base64.b64encode(b"s3cret").decode()})
    assert any("dryRun=All" in path for path in asked)


def test_who_may_not_read_secrets_leaves_that_to_the_pods(check):
    assert any("dryRun=All" in path for path in check(403))


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (404, "namespace space has no Secret shoal-metrics"),
        ({"password": "eA=="}, "the Secret shoal-metrics of namespace space has no token"),
        ({"token": ""}, "the Secret shoal-metrics of namespace space has no token"),
    ],
)
def test_without_a_token_the_job_is_refused(check, found, why):
    with pytest.raises(UserError) as caught:
        check(found)
    message = str(caught.value)
    assert message.startswith(f"--serve-metrics: {why}")
    assert "kubectl create secret generic shoal-metrics --namespace space" in message
