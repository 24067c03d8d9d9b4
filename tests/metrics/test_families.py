"""Distributions of servers as histograms of Prometheus."""

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families as parsed

from shoal.metrics.families import BUCKETS, histogram
from shoal.proto.values.distribution import Distribution


class One:
    def __init__(self, family):
        self._family = family

    def collect(self):
        yield self._family


def read(family):
    """{bound: count}, the count and the sum, as Prometheus reads them."""
    registry = CollectorRegistry()
    registry.register(One(family))
    (found,) = parsed(generate_latest(registry).decode())
    bounds = {
        float(each.labels["le"]): each.value
        for each in found.samples
        if each.name.endswith("_bucket")
    }
    whole = {each.name.rpartition("_")[2]: each.value for each in found.samples}
    return bounds, whole["count"], whole["sum"]


def below(bounds, value):
    """How many values are at most `value`."""
    return bounds[min(bound for bound in bounds if bound >= value)]


def test_whole_numbers_are_in_their_buckets():
    measured = Distribution()
    values = [0, 0, 1, 2, 3, 4, 7, 8, 100]
    for value in values:
        measured.add(value)
    bounds, count, total = read(histogram("shoal_pushes", "Pushes.", measured.to_message()))
    assert count == len(values)
    assert total == sum(values)
    for bound, number in bounds.items():
        assert number == sum(value <= bound for value in values)
    assert below(bounds, 3) == 5


def test_times_are_in_their_buckets():
    measured = Distribution(unit=0.001)
    values = [0.0001, 0.0015, 0.003, 0.1, 2.5]
    for value in values:
        measured.add(value)
    seconds = histogram("shoal_age_seconds", "Age.", measured.to_message(), 0.001)
    bounds, count, _ = read(seconds)
    assert count == len(values)
    for bound, number in bounds.items():
        assert number == sum(value <= bound for value in values)


def test_values_beyond_the_last_bucket_are_counted():
    measured = Distribution()
    measured.add(2.0 ** (BUCKETS + 3))
    bounds, count, _ = read(histogram("shoal_pushes", "Pushes.", measured.to_message()))
    assert count == bounds[float("inf")] == 1
    assert sum(bounds.values()) == 1


def test_the_buckets_are_the_same_before_and_after_values():
    empty, full = Distribution(), Distribution()
    full.add(70)
    texts = [
        read(histogram("shoal_pushes", "Pushes.", each.to_message())) for each in (empty, full)
    ]
    assert set(texts[0][0]) == set(texts[1][0])
