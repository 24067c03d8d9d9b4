"""Redis has just the job's rows in the end; with a real server, which is killed and emptied."""

import random
import shutil
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import shoal
from shoal.deltas import to_redis, walking
from shoal.deltas.to_redis import RedisRows, TakenOverError, follow_into
from tests.deltas.history import History
from tests.deltas.published import write_model
from tests.deltas.test_following import FATES, hint, more
from tests.deltas.test_reading import damage, folder_of

redis = pytest.importorskip("redis")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("redis-server") is None, reason="needs redis-server"),
]


class Server:
    """A redis-server at a Unix socket, which keeps nothing."""

    def __init__(self, folder):
        self.socket = folder / "redis.sock"
        self._command = ["redis-server", "--port", "0", "--unixsocket", str(self.socket)]
        self._command += ["--save", "", "--appendonly", "no", "--dir", str(folder)]
        self.start()

    def start(self):
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)
        self.client = redis.Redis(unix_socket_path=str(self.socket))
        end = time.monotonic() + 60
        while True:
            try:
                self.client.ping()
                return
            except redis.ConnectionError:
                assert time.monotonic() < end
                time.sleep(0.01)

    def kill(self):
        self._process.kill()
        self._process.wait()
        self.client.close()

    def url(self, prefix="t:"):
        return f"unix://{self.socket}?prefix={prefix}"

    def rows(self, prefix="t:"):
        """Of tables a and b, id -> row; and all other keys."""
        found, others = [{}, {}], set()
        keys = [key.decode() for key in self.client.keys("*")]
        for key in keys:
            table, _, number = key.removeprefix(prefix).rpartition(":")
            if key.startswith(prefix) and table in ("a", "b"):
                found["ab".index(table)][int(number)] = self.client.get(key)
            else:
                others.add(key)
        return found, others


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    made = Server(tmp_path_factory.mktemp("redis"))
    yield made
    made.kill()


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(walking, "POLL_SECONDS", 0.002)
    monkeypatch.setattr(walking, "GAP_SECONDS", 0.0)
    monkeypatch.setattr(to_redis, "KEYS_AT_ONCE", 7)


@pytest.fixture(autouse=True)
def empty(server):
    server.client.flushall()


@pytest.fixture
def history(tmp_path):
    made = History(tmp_path / "live")
    more(made)
    return made


OWN = {"t:delta", "t:chain", "t:tables", "t:writer"}


def written(history, server, number=None, **options):
    """Write up to a delta, by default the newest one."""
    rows = RedisRows(server.url(), **options)
    follow_into(history.root.location, rows, number or len(history.deltas))
    rows.close()


def test_redis_has_the_rows_the_number_and_nothing_else(history, server):
    server.client.set("t:users:1", "of somebody else")
    server.client.set("other:a:1", "of somebody else")
    more(history, 3)
    written(history, server)
    found, others = server.rows()
    assert found == history.rows
    assert others == OWN | {"t:users:1", "other:a:1"}
    assert server.client.get("t:delta") == b"4"
    history.sweep(40)  # removed, and set again by the same delta
    history.push()
    history.lose()  # some slots whole, the others not
    history.publish()
    written(history, server)
    assert server.rows() == (history.rows, others)
    more(history, 2, base=True)
    written(history, server)
    assert server.rows() == (history.rows, others)


def test_some_tables_only(history, server):
    written(history, server, tables=["b"])
    assert server.rows()[0] == [{}, history.rows[1]]
    more(history)
    with pytest.raises(shoal.UserError, match="--tables: there is no table 'c'; there are a, b"):
        written(history, server, tables=["c"])


def test_tables_of_the_model_before_go_with_a_base(history, server):
    written(history, server)
    history.spec.tables[1].name = "c"
    history.model = write_model(history.root, history.spec, "f" * 16)
    more(history, base=True)
    written(history, server)
    found, others = server.rows()
    assert found == [history.rows[0], {}]
    assert {each for each in others if each.startswith("t:c:")} == {
        f"t:c:{each}" for each in history.rows[1]
    }
    assert server.client.smembers("t:tables") == {b"a", b"c"}


def test_a_prefix_with_the_signs_of_patterns_is_taken_as_it_is(history, server):
    server.client.set("xyz:a:5", "of somebody else")
    rows = RedisRows(server.url("x[y]*:"))
    follow_into(history.root.location, rows, 1)
    history.lose()
    more(history, base=True)
    follow_into(history.root.location, rows, 2)
    rows.close()
    found, others = server.rows("x[y]*:")
    assert found == history.rows
    assert "xyz:a:5" in others


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(FATES, st.integers(0, 10_000))
def test_whatever_dies_redis_has_just_the_rows_in_the_end(server, tmp_path_factory, fates, seed):
    """Lost and damaged deltas; writers that die in the middle; and FLUSHALL."""
    server.client.flushall()
    history = History(tmp_path_factory.mktemp("live"), seed)
    draw = random.Random(seed)
    more(history)
    rows = RedisRows(server.url())
    for fate in fates:
        if fate in ("sweep", "lose"):
            getattr(history, fate)()
            continue
        more(history, base=fate == "base")
        number = len(history.deltas)
        if fate == "lost":
            shutil.rmtree(folder_of(history, number))
        if fate == "damaged":
            damage(draw.choice([*folder_of(history, number).iterdir()]))
        if draw.random() < 0.1:
            server.client.flushall()
        if draw.random() < 0.5:
            steps(history, rows, draw, server)
        if draw.random() < 0.3:  # another process goes on in its place
            rows.close()
            rows = RedisRows(server.url())
    more(history, base=True)
    hint(history, len(history.deltas))
    follow_into(history.root.location, rows, len(history.deltas))
    rows.close()
    assert server.rows() == (history.rows, OWN)


class DiesError(shoal.Error):
    """Ends a writer in the middle."""


def steps(history, rows, draw, server):
    """Let a writer go on, until one of its commands fails, or Redis is emptied under it."""
    left, what = draw.randrange(1, 60), draw.choice(["dies", "flushall"])
    real = rows._client.execute_command

    def command(*arguments, **options):
        nonlocal left
        left -= 1
        if not left:
            if what == "dies":
                raise DiesError
            server.client.flushall()
        return real(*arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows._client, "execute_command", command)
        try:
            rows.begin()
            walk = walking.Walk(history.root, rows.apply, None, rows.number, rows.checksum)
            for _ in range(2 * walking.TRIES):
                if rows.find():
                    walk.step()
                else:
                    walk = walking.Walk(history.root, rows.apply, None, rows.number, rows.checksum)
        except shoal.Error:
            pass


def following(history, rows, ends):
    given = (history.root.location, rows, None, ends)
    thread = threading.Thread(target=follow_into, args=given, daemon=True)
    thread.start()
    return thread


def until_it_has(server, history):
    end = time.monotonic() + 60
    wanted = str(len(history.deltas)).encode()
    while True:
        try:
            if server.client.get("t:delta") == wanted:
                return
        except redis.ConnectionError:
            pass
        assert time.monotonic() < end
        time.sleep(0.01)


def test_flushall_and_the_death_of_redis_are_noticed(history, tmp_path):
    server = Server(tmp_path)
    rows, ends = RedisRows(server.url()), threading.Event()
    thread = following(history, rows, ends)
    until_it_has(server, history)
    more(history, 2)
    until_it_has(server, history)
    server.client.flushall()
    until_it_has(server, history)
    assert server.rows() == (history.rows, OWN)
    server.kill()
    more(history)
    server.start()
    until_it_has(server, history)
    assert server.rows() == (history.rows, OWN)
    ends.set()
    thread.join()
    rows.close()
    server.kill()


def test_a_second_writer_takes_the_place_of_the_first(history, server):
    first, second = RedisRows(server.url()), RedisRows(server.url())
    first.begin()
    second.begin()
    (delta,) = shoal.deltas.read(history.root.location)
    with pytest.raises(TakenOverError, match="another shoal follow writes t:delta now"):
        first.find()
    with pytest.raises(shoal.StorageError, match="it was emptied, or another writer has begun"):
        first.apply(delta)
    assert server.client.get("t:delta") is None
    first.close()
    second.close()


def test_a_number_of_somebody_else_is_told(history, server):
    server.client.set("t:delta", "seven")
    with pytest.raises(shoal.UserError, match="t:delta is b'seven', which shoal did not write"):
        written(history, server)


@pytest.mark.parametrize("url", ["http://h", "redis:", "localhost:6379", "redis://h:x/0"])
def test_other_urls_are_told(url):
    with pytest.raises(shoal.UserError, match="--to: "):
        RedisRows(url)


def test_a_password_is_in_no_message(monkeypatch):
    monkeypatch.setenv("REDIS_PASSWORD", "sesame-open")
    rows = RedisRows("redis://me:${REDIS_PASSWORD}@127.0.0.1:1/0")
    assert "sesame" not in rows.place
    assert rows._client.connection_pool.connection_kwargs["password"] == "sesame-open"
    with pytest.raises(rows.failures) as caught:
        rows.begin()
    assert "sesame" not in str(caught.value)
    rows.close()


def command(history, server, *more):
    arguments = [sys.executable, "-m", "shoal", "follow", history.root.location]
    return subprocess.Popen(
        [*arguments, "--to", server.url(), *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_the_command_goes_on_after_it_was_killed(history, server):
    with command(history, server) as process:
        until_it_has(server, history)
        more(history)
        process.kill()
    with command(history, server) as process:
        more(history)
        until_it_has(server, history)
        process.send_signal(signal.SIGTERM)
        told = process.stdout.read()
        assert process.wait(60) == 0, told
    assert "delta 3 is in unix://" in told
    with command(history, server, "--until", "3") as process:
        assert process.wait(60) == 0
    assert server.rows() == (history.rows, OWN)
    with command(history, server, "--tables", "c") as process:
        more(history)
        assert process.wait(60) == 2
        assert "--tables: there is no table 'c'" in process.stdout.read()


def test_values_are_little_endian_float32(history, server):
    written(history, server)
    (row, *_), (wanted, *_) = (
        [np.frombuffer(each, "<f4").tolist() for each in rows.values()]
        for rows in (server.rows()[0][0], history.rows[0])
    )
    assert len(row) == len(wanted) == 2
