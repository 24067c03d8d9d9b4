"""A TrainJob's status is told to a server such as Kubeflow Trainer's: TLS, token and schema."""

import datetime as dt
import http.server
import ipaddress
import json
import queue
import ssl
import threading

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from shoal.master.figures.kubeflow import (
    AUTHORITY,
    TOKEN,
    URL,
    StatusServer,
    TrainJobReports,
    progress,
)
from shoal.master.job.events import JobStopped
from shoal.master.job.job import Job
from shoal.master.shared_job import SharedJob
from shoal.master.work.outcomes import DataDescribed, Done, MetricsComputed, StatesComputed
from shoal.master.work.units import Source
from shoal.proto import shoal_pb2 as pb
from tests.master.api_server import POLL
from tests.master.strategies import config, finish_next, register, w

PATIENCE = 60.0
PATH = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/ads/trainjobs/clicks/status"
DATA = DataDescribed(training=(Source("t", 40),), validation=(Source("v", 10),))


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """(certificate, key): files of an authority that vouches for itself, at 127.0.0.1."""
    folder = tmp_path_factory.mktemp("tls")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "kubeflow-trainer")])
    now = dt.datetime.now(dt.UTC)
    here = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    public = key.public_key()
    identifier = x509.SubjectKeyIdentifier.from_public_key(public)
    usage = dict.fromkeys(
        [
            *("content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
            *("crl_sign", "encipher_only", "decipher_only"),
        ],
        False,
    )
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(public)
        .serial_number(1)
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(
            x509.KeyUsage(digital_signature=True, key_cert_sign=True, **usage), critical=True
        )
        .add_extension(identifier, critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier),
            critical=False,
        )
        .add_extension(here, critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    paths = folder / "ca.crt", folder / "tls.key"
    paths[0].write_bytes(made.public_bytes(pem))
    form = serialization.PrivateFormat.PKCS8
    paths[1].write_bytes(key.private_bytes(pem, form, serialization.NoEncryption()))
    return paths


@pytest.fixture
def trainer(certificate, tmp_path, monkeypatch):
    """The server: `got` has (path, token, body); `codes` the answers to be given, then 200."""
    monkeypatch.setattr(TrainJobReports, "SECONDS", 0.01)
    got, codes = queue.Queue(), []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            code = codes.pop(0) if codes else 200
            got.put((self.path, self.headers["Authorization"], json.loads(body)))
            self.send_response(code)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_):
            pass

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    (tmp_path / "token").write_text("first\n")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(POLL,), daemon=True)
        thread.start()
        server.got, server.codes, server.token = got, codes, tmp_path / "token"
        server.environment = {
            URL: f"https://127.0.0.1:{server.server_address[1]}{PATH}",
            AUTHORITY: str(certificate[0]),
            TOKEN: str(server.token),
        }
        yield server
        server.shutdown()
        thread.join()


def begun(**changes):
    job = SharedJob(Job(config(validation_data="v", **changes)))

    def begin(job, now):
        register(job, DATA)
        job.record.started = now or 1.0

    return job, begin


def metrics(status):
    return {each["name"]: each["value"] for each in status["metrics"]}


def reports(trainer):
    """The reports, as they come."""
    while True:
        yield trainer.got.get(timeout=PATIENCE)


def test_a_job_is_reported_while_it_runs_and_at_its_end(trainer):
    job, begin = begun()
    with TrainJobReports(job, StatusServer.of(trainer.environment)) as made:
        job.apply(begin)
        path, token, body = next(reports(trainer))
        assert (path, token) == (PATH, "Bearer first")
        status = body["trainerStatus"]
        assert status["progressPercentage"] == 0
        assert metrics(status)["totalEpochs"] == "1"
        # As Kubernetes reads times.
        assert dt.datetime.strptime(status["lastUpdatedTime"], "%Y-%m-%dT%H:%M:%SZ")
        trainer.token.write_text("second\n")  # as the kubelet does
        job.apply(lambda job, _: finish_next(job, w(0), Done(), version=2))
        for _, token, body in reports(trainer):
            if token == "Bearer second" and body["trainerStatus"]["progressPercentage"]:
                break
        assert body["trainerStatus"]["progressPercentage"] == 25

        def rest(job, _):
            while job.phases.phase.state == "training":
                finish_next(job, w(0), Done(), version=2)
            finish_next(job, w(0), StatesComputed(pb.MetricStates()))
            finish_next(job, w(0), MetricsComputed({"auc": 0.75, "odd": float("nan")}))

        job.apply(rest)
    made.wait()
    assert job.look(lambda job, _: job.phases.phase.state) == "succeeded"
    while not trainer.got.empty():
        _, _, body = trainer.got.get()
    status = body["trainerStatus"]
    assert (status["progressPercentage"], status["estimatedRemainingSeconds"]) == (100, 0)
    assert metrics(status)["eval_auc"] == "0.75"
    assert "eval_odd" not in metrics(status)


def test_a_server_that_hangs_is_waited_for_apart_and_for_a_limited_time(monkeypatch):
    monkeypatch.setattr(TrainJobReports, "END_SECONDS", 0.1)
    asked, going_on, answered = threading.Event(), threading.Event(), threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            asked.set()
            going_on.wait()
            answered.set()

    job, begin = begun()
    job.apply(begin)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_address[1]}"
        with TrainJobReports(job, StatusServer(address)) as made:
            pass
        assert asked.wait(PATIENCE)
        made.wait()
        assert not answered.is_set()
        going_on.set()
        made._thread.join()
        server.shutdown()


def test_a_job_that_fails_is_never_complete():
    job, begin = begun()
    assert job.look(progress) is None
    job.apply(begin)
    job.apply(lambda job, _: finish_next(job, w(0), Done(), version=2))
    job.apply(lambda job, now: job.on(JobStopped("enough"), now))
    status = job.look(progress)
    assert status["progressPercentage"] == 25
    assert "estimatedRemainingSeconds" not in status


def test_a_server_that_refuses_is_one_warning_and_is_asked_again(trainer):
    trainer.codes += [503] * 3
    job, begin = begun()

    def warnings():
        return job.look(lambda job, _: [each for each in job.record.messages if "warning" in each])

    with TrainJobReports(job, StatusServer.of(trainer.environment)) as made:
        job.apply(begin)
        for _ in range(5):
            next(reports(trainer))
    made.wait()
    (warning,) = warnings()
    assert "warning: the TrainJob's status cannot be reported to https://127.0.0.1" in warning
    assert "503" in warning
    assert "first" not in warning


def test_a_server_of_another_authority_gets_no_token(trainer):
    environment = {key: value for key, value in trainer.environment.items() if key != AUTHORITY}
    with pytest.raises(OSError, match="certificate"):
        StatusServer.of(environment).post({})
    assert trainer.got.empty()


def test_without_the_variables_nothing_is_reported():
    job, begin = begun()
    job.apply(begin)
    assert StatusServer.of({TOKEN: "t", AUTHORITY: "a"}) is None
    with TrainJobReports(job, None) as made:
        pass
    made.wait()
    assert made._thread.ident is None
