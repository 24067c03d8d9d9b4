"""What servers tell of one push a second, if they look at pushes."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.config.job import JobConfig
from shoal.errors import UserError
from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.channels import serving
from shoal.proto.errors import WireError
from shoal.proto.values.norms import BOUNDS
from shoal.proto.values.routing import Routing
from shoal.ps.metrics import SampleMetrics
from shoal.ps.push_samples import HotIds, PushSamples
from shoal.ps.service import ParameterServer
from tests.ps.caller import Caller


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def looked_at(connect, clock):
    """A caller of a server whose pushes are looked at, and what that tells."""
    servers = []

    def make(hot_ids=0):
        server = ParameterServer(0, Routing.even(1))
        server.registration.begin_anew()
        samples = PushSamples(server, hot_ids, clock)
        handlers = samples.watching(server.handlers())
        made, port = serving.serve(handlers, "127.0.0.1:0", threads=2)
        servers.append(made)
        caller = Caller(connect(f"127.0.0.1:{port}"))
        caller.register()
        caller.initialize(np.arange(5), [0.5, 0.25])
        return caller, samples

    yield make
    for each in servers:
        each.stop(None).wait()


def status(caller):
    return caller.connection.call(methods.STATUS, pb.ServerStatusRequest())


def told(samples):
    """{(sample, *values of labels)} of all that is told."""
    return {
        (each.name, *each.labels.values()): each.value
        for family in SampleMetrics(samples).collect()
        for each in family.samples
    }


def test_norms_are_those_of_the_gradients_and_of_the_rows_after_the_push(looked_at):
    caller, samples = looked_at()
    # Rows begin as ones, and the rate is 1.
    caller.push([1, 2], [[3, 0, 4], [0, 0, 0.5]])
    found = told(samples)
    assert found["shoal_gradient_row_norm_count", "items"] == 2
    assert found["shoal_gradient_row_norm_sum", "items"] == pytest.approx(5.5)
    assert found["shoal_gradient_row_norm_bucket", "items", "1.0"] == 1
    rows = [np.linalg.norm([-2, 1, -3]), np.linalg.norm([1, 1, 0.5])]
    assert found["shoal_row_norm_sum", "items"] == pytest.approx(sum(rows))
    assert not any(name.startswith("shoal_hot_id") for name, *_ in found)


def test_the_status_has_the_norms_of_rows(looked_at):
    caller, _ = looked_at()
    assert not status(caller).tables[0].HasField("row_norms")
    caller.push([1, 2], [[3, 0, 4], [0, 0, 0.5]])
    found = status(caller).tables[0].row_norms
    rows = [np.linalg.norm([-2, 1, -3]), np.linalg.norm([1, 1, 0.5])]
    assert (found.count, found.sum) == (2, pytest.approx(sum(rows)))
    assert found.maximum == pytest.approx(max(rows))
    low, high = (i for i, count in enumerate(found.buckets) if count)
    assert BOUNDS[low - 1] < rows[1] <= BOUNDS[low]
    assert BOUNDS[high - 1] < rows[0] <= BOUNDS[high]


def test_one_push_a_second_is_looked_at(looked_at, clock):
    caller, samples = looked_at()
    for sequence in (1, 2, 3):
        caller.push([sequence], [[1, 2, 3]], sequence=sequence)
    assert told(samples)["shoal_row_norm_count", "items"] == 1
    clock.now += 1.0
    caller.push([4], [[1, 2, 3]], sequence=4)
    assert told(samples)["shoal_row_norm_count", "items"] == 2


def test_a_push_that_is_refused_is_not_looked_at(looked_at, clock):
    caller, samples = looked_at()
    with pytest.raises(WireError):
        caller.push([1], [[1, 2, np.nan]])
    assert told(samples) == {}


def test_hot_ids_are_told_by_their_share_where_they_are_wanted(looked_at, clock):
    caller, samples = looked_at(hot_ids=2)
    for sequence in range(1, 5):
        caller.push([7, 100 + sequence], np.ones((2, 3)), sequence=sequence)
        clock.now += 1.0
    found = told(samples)
    hot = {key[2]: value for key, value in found.items() if key[0] == "shoal_hot_id_share"}
    assert len(hot) == 2
    assert hot["7"] == 1.0
    assert sorted(hot.values()) == [0.25, 1.0]


@given(
    st.lists(st.lists(st.integers(-20, 20), max_size=12), max_size=30),
    st.integers(1, 8),
)
def test_counts_of_hot_ids_are_too_low_by_a_share_at_most(batches, counters):
    hot, exact = HotIds(counters), Counter()
    for batch in batches:
        hot.add(np.array(batch, np.int64))
        exact.update(batch)
    found = dict(hot.top(counters + 1))
    assert len(found) <= counters
    error = exact.total() / (counters + 1)
    for number, count in exact.items():
        assert count - error <= found.get(number, 0) <= count


def test_ids_are_named_only_where_metrics_are_served():
    given = {"model_def": "m.custom_model", "training_data": "t.csv"}
    with pytest.raises(UserError, match="--metrics-hot-ids works only with --serve-metrics"):
        JobConfig(**given, metrics_hot_ids=3)
    with pytest.raises(UserError, match="--metrics-hot-ids must be at most 100, not 101"):
        JobConfig(**given, metrics_hot_ids=101, serve_metrics=True)


def test_a_look_that_fails_is_the_last_and_the_push_was_taken(clock, monkeypatch):
    samples = PushSamples(ParameterServer(0, Routing.even(1)), 0, clock)
    looks = []

    def fail(frame):
        looks.append(frame)
        raise MemoryError

    monkeypatch.setattr(samples, "look", fail)
    push = samples.looked_at(lambda frame: f"took {frame}")
    assert push("one") == "took one"
    clock.now += 3600
    assert push("two") == "took two"
    assert looks == ["one"]
