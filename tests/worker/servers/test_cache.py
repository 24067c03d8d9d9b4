"""The row cache: what is used again, for how long, and what is never."""

import threading

import numpy as np
import pytest

from shoal.native.initializers import InitializerSpec
from shoal.native.optimizers import OptimizerSpec
from shoal.proto import shoal_pb2 as pb
from shoal.worker.servers.cache import RowCache
from shoal.worker.servers.group import ServerGroup
from shoal.worker.servers.pushing import Push

IDS = np.arange(40)
NONE = np.zeros(0, np.float32)


def spec(dims=(2, 3)):
    rule = OptimizerSpec("sgd").to_json()
    zeros = InitializerSpec("zeros").to_json()
    return pb.ModelSpec(
        tables=[
            pb.TableSpec(name=f"t{dim}", dim=dim, initializer=zeros, optimizer=rule) for dim in dims
        ],
        trainable=[pb.VariableSpec(name="w", shape=[4])],
        dense_optimizer=rule,
    )


class Worker:
    """A worker with or without a cache, whose pushes take one from every element."""

    def __init__(self, made, connect, index, megabytes=1, staleness=0):
        self.group = ServerGroup(
            connect(made.master),
            index,
            0,
            threading.Event(),
            cache_bytes=megabytes << 20,
            cache_staleness=staleness,
        )
        self.group.register(spec(), np.zeros(4, np.float32), NONE)

    def pull(self, ids=IDS, training=True):
        return self.group.pull([[ids], [ids[:10]]], training=training)

    def step(self, ids=IDS):
        pulled = self.pull(ids)
        tables = {
            table: (pulled.ids[table].unique, np.ones_like(rows))
            for table, rows in enumerate(pulled.rows)
        }
        dense = np.zeros(4, np.float32)
        self.group.push(
            Push(tables, (dense, NONE), 1.0, pulled.versions, pulled.times, pulled.applied, 0, 0)
        )
        return pulled

    def value(self, **options):
        """The one value that all elements have."""
        found = np.unique(np.concatenate([rows.ravel() for rows in self.pull(**options).rows]))
        assert found.size == 1
        return found[0]


@pytest.fixture
def cluster_of_two(cluster):
    return cluster(2)


def close(*workers):
    for worker in workers:
        worker.group.close()


def test_a_row_is_used_until_its_server_has_applied_more_pushes(cluster_of_two, connect):
    """Staleness 2: the row of version 0 serves at versions 0, 1 and 2, and is pulled at 3.
    What a pull learns of the versions holds for the next one."""
    other = Worker(cluster_of_two, connect, 1, megabytes=0)
    worker = Worker(cluster_of_two, connect, 0, staleness=2)
    values = []
    for _ in range(6):
        values.append(worker.value())
        other.step()
    # Known versions at the six pulls: 0, 0, 1, 2, 3, 4.
    assert values == [0, 0, 0, 0, -4, -4]
    close(worker, other)


def test_own_pushes_are_among_those_a_cached_row_lacks(cluster_of_two, connect):
    worker = Worker(cluster_of_two, connect, 0, staleness=100)
    worker.step()
    assert worker.value() == 0
    assert worker.value(training=False) == -1  # evaluation reads the servers
    close(worker)


def test_the_push_says_how_old_its_oldest_row_is(cluster_of_two, connect):
    worker = Worker(cluster_of_two, connect, 0, staleness=100)
    other = Worker(cluster_of_two, connect, 1, megabytes=0)
    assert worker.step().versions == [0, 0]
    for _ in range(3):
        other.step()
    assert worker.pull(ids=np.arange(100, 140)).versions == [4, 4]
    assert worker.pull().versions == [0, 0]
    close(worker, other)


def test_only_what_is_missing_is_pulled(cluster_of_two, connect, monkeypatch):
    worker = Worker(cluster_of_two, connect, 0, staleness=100)
    worker.pull()
    worker.pull(ids=np.arange(20, 60))
    cache = worker.group.pulls.cache
    assert (cache.asked, cache.hits) == (50 + 50, 20)
    close(worker)


def test_a_full_cache_gives_right_rows(cluster_of_two, connect):
    """More ids than places: rows take the place of others, none is mistaken for another."""
    worker = Worker(cluster_of_two, connect, 0, staleness=10**6)
    worker.group.pulls.cache = RowCache(2000, 10**6, [2, 3], 2)
    ids = np.arange(5000)
    rows = np.stack([ids, -ids], axis=1).astype(np.float32)
    worker.group.assign_rows(0, ids, rows)
    rng = np.random.default_rng(0)
    for _ in range(20):
        some = rng.integers(0, 5000, 200)
        pulled = worker.group.pull([[some], [some[:5]]], training=True)
        np.testing.assert_array_equal(pulled.rows[0][pulled.ids[0].inverses[0]], rows[some])
    assert worker.group.pulls.cache.hits
    close(worker)


def test_a_server_that_went_back_empties_the_cache():
    """As one that was started again from a checkpoint."""
    from shoal.proto.values.routing import Routing
    from shoal.worker.servers.ids import group_tables

    cache = RowCache(1 << 20, 100, [2], 1)
    ids = group_tables([[IDS]], Routing.even(1))
    cache.look_up(ids).join([np.ones((40, 2), np.float32)], [50])
    assert cache.look_up(ids).missing[0].unique.size == 0
    cache.look_up(ids).join([np.ones((0, 2), np.float32)], [49])
    assert cache.look_up(ids).missing[0].unique.size == 40
