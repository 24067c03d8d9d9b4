"""Fixtures for tests that need parameter servers: real ones, over real gRPC."""

import gc
import os
import shutil
import signal
import tempfile
import threading
from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, settings

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["KERAS_BACKEND"] = "tensorflow"  # whatever it is in this shell

from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.channels import rpc, serving
from shoal.proto.plane import hello
from shoal.proto.values.routing import Routing
from shoal.ps.saved.recovery import Sources
from shoal.ps.service import ParameterServer
from shoal.seed import pool
from tests import tls_ways

# No property fails because the machine is slow, and the same examples are tried each time, as
# in any other test. --hypothesis-profile=search looks for new ones. `fast`, which is for
# `make test-fast`, tries a fifth of them (tests/examples.py), and `deep`, for `make nightly`, ten
# times as many, other ones each time.
settings.register_profile(
    "search",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.register_profile(
    "repeatable", parent=settings.get_profile("search"), derandomize=True, max_examples=25
)
settings.register_profile("fast", parent=settings.get_profile("repeatable"), max_examples=20)
settings.register_profile("deep", parent=settings.get_profile("search"), max_examples=1000)
settings.load_profile("repeatable")


def pytest_addoption(parser):
    text = "tests of kills and signals run with processes that are forked, and executed"
    parser.addoption("--both-ways", action="store_true", help=text)


def pytest_configure(config):
    """Seeds for the processes of all jobs, and signals as in a terminal.

    nohup and a script's background commands ignore some of them, and children inherit that.
    """
    if not os.environ.get(pool.VARIABLE):  # the processes of pytest-xdist have it from the first
        folder = os.environ[pool.VARIABLE] = tempfile.mkdtemp(prefix="shoal-seeds-")
        config.add_cleanup(lambda: shutil.rmtree(folder))  # which ends them
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Failures(config))


class Failures:
    """Names each failed test at once: a run is long, and may end without its summary."""

    def __init__(self, config):
        self._config = config

    def pytest_runtest_logreport(self, report):
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            why = crash.message.partition("\n")[0] if crash else report.when
            self._config.get_terminal_writer().line(f"\nfailed: {report.nodeid}: {why}")


def pytest_collection_modifyitems(items):
    """Files with most jobs first: at the end no process is left alone with a long one.

    For --no-loadscope-reorder; xdist by itself begins with the files of most tests, of whatever
    kind.
    """
    jobs = Counter(item.path for item in items if item.get_closest_marker("job"))
    items.sort(key=lambda item: -jobs[item.path])


def pytest_collection_finish():
    """Leave the tests and their modules, which stay, out of the searches for cycles of objects."""
    gc.freeze()


@pytest.fixture
def tls_pair(request, monkeypatch):
    """The kinds of TLS that who serves and who calls have; see tests/tls_ways.py."""
    assert hello.lacking_tls() == ""
    monkeypatch.setattr(hello, "_in_c", tls_ways.either(*request.param))
    return request.param


@dataclass
class Cluster:
    """Servers in this process, and a peer that answers as the master would."""

    routing: Routing
    servers: list = field(default_factory=list)
    addresses: list = field(default_factory=list)
    master: str = ""
    grpc_servers: list = field(default_factory=list)

    def reroute(self, routing):
        """Give master and servers a new routing table, as a master would."""
        self.routing = routing
        for server in self.servers:
            server.ownership.set_routing(routing.to_message())

    def stop(self, index):
        """Take a server away; what it holds stays in memory."""
        self.grpc_servers[index].stop(None).wait()

    def start(self, index):
        """Have a server that was stopped serve again, at another port."""
        self.grpc_servers[index], port = _start(self.servers[index].handlers())
        self.addresses[index] = f"127.0.0.1:{port}"

    def worker_reply(self, request):
        return pb.RegisterWorkerReply(routing=self.routing.to_message(), servers=self.addresses)


def _start(handlers):
    return serving.serve(handlers, "127.0.0.1:0", threads=8)


@pytest.fixture
def cluster():
    """Start a Cluster of n servers."""
    clusters = []

    def make(servers=2, *, synchronous=False, saved="", first_rows=""):
        made = Cluster(Routing.even(servers))
        clusters.append(made)
        for index in range(servers):
            sources = Sources(saved=saved, first_rows=first_rows)
            server = ParameterServer(index, made.routing, synchronous=synchronous, sources=sources)
            server.registration.begin_anew()
            grpc_server, port = _start(server.handlers())
            made.servers.append(server)
            made.addresses.append(f"127.0.0.1:{port}")
            made.grpc_servers.append(grpc_server)
        grpc_server, port = _start(
            {
                methods.REGISTER_WORKER: made.worker_reply,
                methods.GET_ROUTING: made.worker_reply,
            }
        )
        made.grpc_servers.append(grpc_server)
        made.master = f"127.0.0.1:{port}"
        return made

    yield make
    for made in clusters:
        for grpc_server in made.grpc_servers:
            grpc_server.stop(None).wait()


@pytest.fixture
def connect():
    """Open a Connection that is closed after the test."""
    connections = []

    def to(address, **options):
        connection = rpc.Connection(address, **options)
        connections.append(connection)
        return connection

    yield to
    for connection in connections:
        connection.close()


@pytest.fixture
def server_group(cluster, connect):
    """Join a cluster as a worker."""
    from shoal.worker.servers.group import ServerGroup

    groups = []

    def join(made=None, worker=0, incarnation=0, servers=2, **options):
        made = made or cluster(servers)
        group = ServerGroup(connect(made.master), worker, incarnation, threading.Event(), **options)
        groups.append(group)
        return group

    yield join
    for group in groups:
        group.close()
