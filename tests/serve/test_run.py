"""`shoal serve` as a real process: its flags, TLS, and its end."""

import datetime as dt
import http.client
import importlib
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from shoal.errors import UserError
from shoal.serve.data_plane import Lookups
from shoal.serve.run import Options, run
from tests.deltas.history import History

pytestmark = pytest.mark.slow


@pytest.fixture
def url(tmp_path):
    history = History(tmp_path / "live")
    history.push()
    history.publish()
    return history.root.location


@pytest.fixture
def serve():
    """Start `shoal serve`; the process, the port and what it has printed."""
    started = []

    def start(*arguments, **environment):
        command = [sys.executable, "-m", "shoal", "serve", *arguments]
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | environment,
        )
        started.append(process)
        line = process.stdout.readline()
        assert line.startswith("serving "), line + process.stdout.read()
        return process, int(re.search(r":(\d+)/v1/models/", line)[1])

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def refused(*arguments):
    done = subprocess.run(
        [sys.executable, "-m", "shoal", "serve", *arguments], capture_output=True, text=True
    )
    assert done.returncode == 2, done.stdout + done.stderr
    return done.stderr


def ready(connection):
    """Ask until the first delta is there."""
    while True:
        connection.request("GET", "/readyz")
        answer = connection.getresponse()
        answer.read()
        if answer.status == 200:
            return


def test_it_serves_until_it_is_told_to_end(serve, url):
    process, port = serve(url, "--listen", "127.0.0.1:0", "--name", "clicks", "--rows", "0")
    assert process.stdout.readline().startswith("rows at 127.0.0.1:")
    connection = http.client.HTTPConnection("127.0.0.1", port)
    ready(connection)
    connection.request("POST", "/v1/tables/a:lookup", json.dumps({"ids": [1]}))
    found = json.loads(connection.getresponse().read())["rows"]
    lookups = Lookups(f"http://127.0.0.1:{port}")
    assert lookups.lookup("a", [1]).tolist() == found
    lookups.close()
    connection.close()
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    assert process.stdout.read() == ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--listen", "0.0.0.0:0"], "0.0.0.0 is reached from other machines: give --tls-cert"),
        (["--listen", "8501"], "--listen: 8501 is not HOST:PORT"),
        (["--listen", "::1"], "is not HOST:PORT"),
        (["--tls-cert", "c"], "--tls-cert and --tls-key: give both"),
        (["--tls-ca", "c"], "--tls-ca says who may call over TLS"),
        (["--tls-cert", "c", "--tls-key", "k"], "--tls-cert: c, k cannot be used"),
        (["--tls-cert", "c", "--tls-key", "k", "--insecure"], "--insecure cannot be combined"),
        (
            ["--tls-cert", "c", "--tls-key", "k", "--listen", "0.0.0.0:0", "--rows", "0"],
            "--rows: its port has no TLS",
        ),
        (["--tables", "a,,b"], "--tables: 'a,,b' is not a list"),
        (["--max-age", "0"], "--max-age"),
        (["--grpc", "65536"], "--grpc"),
    ],
)
def test_wrong_flags_are_told(url, arguments, words):
    assert words in refused(url, "--listen", "127.0.0.1:0", *arguments)


def test_another_folder_is_told(tmp_path):
    (tmp_path / "notes.txt").touch()
    told = refused(str(tmp_path), "--listen", "127.0.0.1:0")
    assert "nothing here was published by a job" in told


def made(tmp_path, name, issuer=None):
    """A certificate of 127.0.0.1 and its key in files, signed by `issuer`, else by itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    signer, by = (key, subject) if issuer is None else issuer[:2]
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(by)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.BasicConstraints(issuer is None, None), True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), False)
        .sign(signer, hashes.SHA256())
    )
    files = tmp_path / f"{name}.crt", tmp_path / f"{name}.key"
    files[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    form = serialization.PrivateFormat.PKCS8
    plain = serialization.NoEncryption()
    files[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, form, plain))
    return key, subject, *map(str, files)


def test_tls_says_who_serves_and_who_may_ask(serve, url, tmp_path):
    authority = made(tmp_path, "authority")
    server, caller = (made(tmp_path, name, authority) for name in ("server", "caller"))
    tls = ["--tls-cert", server[2], "--tls-key", server[3], "--tls-ca", authority[2]]
    _, port = serve(url, "--listen", "0.0.0.0:0", *tls)
    context = ssl.create_default_context(cafile=authority[2])
    stranger = http.client.HTTPSConnection("localhost", port, context=context)
    with pytest.raises((ssl.SSLError, OSError, http.client.HTTPException)):
        ready(stranger)
    stranger.close()
    context.load_cert_chain(*caller[2:])
    connection = http.client.HTTPSConnection("localhost", port, context=context)
    ready(connection)
    connection.close()


def test_grpc_has_the_tls_of_rest(serve, url, tmp_path):
    names = "tensorflow_serving.apis.{}".format
    model_service = pytest.importorskip(names("model_service_pb2_grpc"))
    request = importlib.import_module(names("get_model_status_pb2")).GetModelStatusRequest()
    request.model_spec.name = "model"
    authority = made(tmp_path, "authority")
    server, caller = (made(tmp_path, name, authority) for name in ("server", "caller"))
    tls = ["--tls-cert", server[2], "--tls-key", server[3], "--tls-ca", authority[2]]
    process, _ = serve(url, "--listen", "0.0.0.0:0", "--grpc", "0", *tls)
    port = re.fullmatch(r"gRPC at 0.0.0.0:(\d+)\n", process.stdout.readline())[1]
    roots, certificate, key = (Path(each).read_bytes() for each in (authority[2], *caller[2:]))

    def ask(*own):
        credentials = grpc.ssl_channel_credentials(roots, *own)
        with grpc.secure_channel(f"localhost:{port}", credentials) as channel:
            return model_service.ModelServiceStub(channel).GetModelStatus(request, timeout=60)

    with pytest.raises(grpc.RpcError, match="UNAVAILABLE"):
        ask()
    assert len(ask(key, certificate).model_version_status) == 1
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0


def test_a_port_of_grpc_that_is_taken_is_told(url):
    pytest.importorskip("tensorflow_serving")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        options = Options("127.0.0.1:0", "model", None, port, None, None, (), "", "", "", False)
        with pytest.raises(UserError, match=f"--grpc: 127.0.0.1:{port} cannot be used"):
            run(url, options, {})


def test_what_grpc_needs_is_told(url, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_serving", None)
    options = Options("127.0.0.1:0", "model", None, 0, None, None, (), "", "", "", False)
    with pytest.raises(UserError, match="pip install --no-deps tensorflow-serving-api"):
        run(url, options, {})


def test_it_may_be_insecure_if_it_is_told_so(serve, url):
    process, port = serve(url, "--listen", "0.0.0.0:0", "--insecure")
    assert process.stdout.readline().startswith("--insecure: whoever reaches this address")
    connection = http.client.HTTPConnection("127.0.0.1", port)
    ready(connection)
    connection.close()


def test_it_listens_where_vertex_says(serve, url):
    told = {"AIP_HTTP_PORT": "0", "AIP_HEALTH_ROUTE": "/well", "AIP_PREDICT_ROUTE": "/ask"}
    process, port = serve(url, "--insecure", **told)
    assert process.stdout.readline().startswith("--insecure")
    connection = http.client.HTTPConnection("127.0.0.1", port)
    ready(connection)
    connection.request("GET", "/well")
    assert connection.getresponse().read() == b"ok\n"
    connection.request("POST", "/ask", json.dumps({"instances": [1]}))
    answer = connection.getresponse()
    assert "this model cannot predict here" in json.loads(answer.read())["error"]
    connection.close()
