"""The page /metrics over real HTTP: who gets it, who is sent away."""

import contextlib
import http.client
import socket
import threading
import time

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.parser import text_string_to_metric_families as parsed

from shoal.metrics import page as pages
from shoal.metrics.page import READERS, MetricsPage
from tests.waiting import until

PATIENCE = 60.0


class Answer:
    """A collector; `held` while it is set holds its readers up."""

    def __init__(self):
        self.going_on = threading.Event()
        self.going_on.set()
        self.reading = threading.Semaphore(0)
        self.text = "Of all questions."

    def collect(self):
        self.reading.release()
        self.going_on.wait()
        yield GaugeMetricFamily("shoal_answer", self.text, 42)


@pytest.fixture
def answer():
    return Answer()


@pytest.fixture
def page(answer):
    """Serve the collector's page; closed after the test."""
    pages = []

    def serve(**how):
        registry = CollectorRegistry(auto_describe=False)
        registry.register(answer)
        pages.append(MetricsPage(registry, **how))
        return pages[-1]

    yield serve
    answer.going_on.set()
    for each in pages:
        each.close()


def ask(page, path="/metrics", **headers):
    connection = http.client.HTTPConnection(page.address)
    try:
        connection.request("GET", path, headers=headers)
        reply = connection.getresponse()
        return reply.status, reply.read().decode()
    finally:
        connection.close()


def test_the_page_has_what_the_collectors_tell(page):
    status, text = ask(page())
    assert status == 200
    (family,) = parsed(text)
    assert (family.name, family.samples[0].value) == ("shoal_answer", 42)


def test_only_the_metrics_are_there(page):
    assert ask(page(), "/")[0] == 404
    assert ask(page(), "/metrics/../etc/passwd")[0] == 404


def test_a_web_page_under_another_name_gets_nothing(page):
    served = page()
    assert ask(served, Host="localhost:80")[0] == 200
    for name in ("elsewhere.example:80", "elsewhere.example", "127.0.0.1.elsewhere.example:80"):
        status, text = ask(served, Host=name)
        assert status == 403
        assert "shoal_answer" not in text


@pytest.fixture
def token(tmp_path):
    """A file with a token, as a pod has it."""
    path = tmp_path / "token"
    path.write_text("s3cret\n")
    return path


def test_a_token_is_asked_for_where_there_is_one(page, token):
    served = page(host="0.0.0.0", token=token)
    assert ask(served, Authorization="Bearer s3cret", Host="10.0.0.7:7300")[0] == 200
    for headers in (
        {},
        {"Authorization": "Bearer "},
        {"Authorization": "Bearer s3cret2"},
        {"Authorization": "s3cret"},
        {"Authorization": "Bearer s3cr\xe9t"},
    ):
        status, text = ask(served, **headers)
        assert status == 401
        assert "shoal_answer" not in text
        assert "s3cret" not in text


def test_a_token_that_was_changed_is_the_one_that_counts(page, token):
    served = page(token=token)
    token.write_text("other")
    assert ask(served, Authorization="Bearer s3cret")[0] == 401
    assert ask(served, Authorization="Bearer other")[0] == 200


@pytest.mark.parametrize("content", ["", "\n", None])
def test_without_a_token_in_the_file_nobody_reads(page, token, content):
    served = page(token=token)
    token.unlink() if content is None else token.write_text(content)
    for given in ("Bearer ", "Bearer", "Bearer None", "Bearer \n".strip("\n")):
        assert ask(served, Authorization=given)[0] == 401


def test_no_page_is_open_to_other_machines_without_a_token(page):
    with pytest.raises(ValueError, match="needs a token"):
        page(host="0.0.0.0")


def test_a_taken_port_is_an_error(page):
    port = int(page().address.rpartition(":")[2])
    with pytest.raises(OSError, match="in use"):
        page(port=port)


def test_readers_who_hold_on_do_not_use_up_threads(page, answer):
    served = page()
    answer.going_on.clear()
    host, _, port = served.address.rpartition(":")
    held = []
    for _ in range(READERS):
        made = socket.create_connection((host, int(port)))
        made.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        held.append(made)
        answer.reading.acquire()
    with pytest.raises((http.client.RemoteDisconnected, ConnectionError)):
        ask(served)
    answer.going_on.set()
    for made in held:
        with made, made.makefile("rb") as file:
            assert b"shoal_answer 42.0" in file.read()
    assert ask(served)[0] == 200


@pytest.mark.parametrize("sent", [b"G", b"GET /metrics HTTP/1.0\r\n"])
def test_who_sends_a_byte_now_and_then_has_no_more_time_than_others(page, monkeypatch, sent):
    monkeypatch.setattr(pages, "REQUEST_SECONDS", 0.5)
    host, _, port = page().address.rpartition(":")
    with socket.create_connection((host, int(port))) as slow:
        slow.sendall(sent)
        slow.settimeout(0.05)
        give_up = time.monotonic() + PATIENCE
        with contextlib.suppress(ConnectionError):  # it was closed between two bytes
            while True:
                assert time.monotonic() < give_up, "the connection is still open"
                with contextlib.suppress(TimeoutError):
                    if not slow.recv(1):
                        break
                slow.sendall(b"a")  # less than the time after the one before


def test_who_takes_nothing_has_no_more_time_than_others(page, answer, monkeypatch):
    monkeypatch.setattr(pages, "REQUEST_SECONDS", 0.5)
    answer.text = "x" * 50_000_000  # more than a connection holds
    served = page()
    host, _, port = served.address.rpartition(":")
    with socket.create_connection((host, int(port))) as slow:
        slow.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        until("a reading", lambda: answer.reading.acquire(blocking=False))
        until("room", lambda: not served._server._open)
