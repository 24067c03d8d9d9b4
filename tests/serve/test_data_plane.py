"""Rows over the data plane are those of the tables, whichever half answers."""

import numpy as np
import pytest

import shoal
from shoal.serve.data_plane import DIRECT_IDS, DataPlane, Lookups, listening
from tests.deltas.history import IDS, History
from tests.deltas.published import write_model

pytestmark = pytest.mark.slow


@pytest.fixture
def plane(tmp_path, serving, monkeypatch):
    """A server with a port for rows; the history, the client of HTTP, and the address."""
    history = History(tmp_path / "live", dtype="bfloat16")
    history.push()
    history.publish()
    listener = listening("127.0.0.1", 0)
    port = listener.getsockname()[1]
    client = serving(history.root.location, plane=port, predict=False)
    made = DataPlane(client.follower, listener)
    client.follower.start()
    made.start()
    assert client.follower.wait(1, 60)
    yield history, client, f"http://127.0.0.1:{client.port}"
    made.close()


def wanted(history, table, ids):
    rows, dim = history.rows[table], history.dims[table]
    return [rows.get(int(each), bytes(4 * dim)) for each in ids]


@pytest.mark.parametrize("count", [0, 1, 200, DIRECT_IDS, 3 * DIRECT_IDS + 7])
def test_rows_are_those_of_the_table(plane, count):
    history, _, url = plane
    lookups = Lookups(url)
    ids = np.random.default_rng(1).integers(0, IDS, count)
    for position, table in enumerate("ab"):
        found = lookups.lookup(table, ids)
        assert [bytes(each) for each in found] == wanted(history, position, ids)
    history.push()
    history.publish()
    assert plane[1].follower.wait(2, 60)
    assert [bytes(each) for each in lookups.lookup("a", ids)] == wanted(history, 0, ids)
    lookups.close()


def test_large_requests_of_other_clients_are_answered_too(plane, monkeypatch):
    monkeypatch.setattr("shoal.serve.data_plane.DIRECT_IDS", 1 << 20)
    history, _, url = plane
    ids = np.random.default_rng(1).integers(0, IDS, 20_000)
    lookups = Lookups(url)
    assert [bytes(each) for each in lookups.lookup("b", ids)] == wanted(history, 1, ids)
    lookups.close()


def test_ids_beyond_a_vocabulary_and_without_a_row_read_alike_everywhere(
    tmp_path, serving, monkeypatch
):
    """By name in this process, over HTTP, and over the data plane by C and by Python."""
    history = History(tmp_path / "live", dtype="float16")
    history.spec.tables[1].vocabulary = 50
    history.model = write_model(history.root, history.spec)
    history.push(40)
    history.publish()
    listener = listening("127.0.0.1", 0)
    client = serving(history.root.location, plane=listener.getsockname()[1], predict=False)
    plane = DataPlane(client.follower, listener)
    client.follower.start()
    plane.start()
    assert client.follower.wait(1, 60)
    ids = np.arange(-3, IDS)
    rows = client.follower.lookup("b", ids)
    beyond = (ids < 0) | (ids >= 50)
    assert not rows[beyond].any()
    assert rows[~beyond].any(1).all()  # those without a row have their initial values
    _, answer = client.post("/v1/tables/b:lookup", {"ids": ids.tolist()})
    assert np.array_equal(np.float32(answer["rows"]), rows)
    lookups = Lookups(f"http://127.0.0.1:{client.port}")
    assert np.array_equal(lookups.lookup("b", ids), rows)
    monkeypatch.setattr("shoal.serve.data_plane.DIRECT_IDS", 1 << 20)
    many = np.tile(ids, 400)
    assert np.array_equal(lookups.lookup("b", many), np.tile(rows, (400, 1)))
    lookups.close()
    plane.close()
    misses = sum(int(each) not in history.rows[1] for each in ids)
    reads = client.follower.rows.table("b").reads.tolist()
    assert reads == [403 * ids.size, 403 * misses]


def test_another_model_takes_the_place_of_the_old_one(plane):
    history, client, url = plane
    lookups = Lookups(url)
    assert lookups.lookup("a", [1]).shape == (1, 2)
    other = History(history.root.location, seed=3, job="f" * 16, dims=(5, 4))
    other.deltas = history.deltas
    other.push()
    other.publish(base=True)
    assert client.follower.wait(2, 60), client.follower.trouble
    end = 600
    while lookups.tables["a"] != 5:
        found = lookups.lookup("a", [1])
        end -= 1
        assert end
    assert [bytes(each) for each in lookups.lookup("a", range(IDS))] == wanted(other, 0, range(IDS))
    assert found.shape[0] == 1
    lookups.close()


def test_what_cannot_be_asked_is_told(plane, serving):
    history, _, url = plane
    lookups = Lookups(url)
    with pytest.raises(shoal.UserError, match="there is no table 'c'; there are a, b"):
        lookups.lookup("c", [1])
    lookups.close()
    other = serving(history.root.location)
    other.follower.step()
    with pytest.raises(shoal.Error, match="has no port for rows: start it with --rows PORT"):
        Lookups(f"http://127.0.0.1:{other.port}")
