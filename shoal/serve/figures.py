"""The page /metrics of `shoal serve`: how new the model is, and what was asked of it."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from shoal.deltas.following import Follower
from shoal.deltas.rows import Rows

BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
"""Of the durations of requests, in seconds."""


class _Figures(Collector):
    def __init__(self, follower: Follower) -> None:
        self._follower = follower

    def collect(self) -> Iterator[Metric]:
        """See Collector."""
        follower, counts = self._follower, self._follower.counts
        if follower.number:
            yield _gauge("delta", "Number of the newest delta that is here.", follower.number)
            yield _gauge("age_seconds", "Seconds since it was created.", follower.age)
            yield from _by_table(follower.rows)
            yield _gauge("row_bytes", "Bytes of all rows.", follower.rows.memory_bytes())
        for name, about, value in (
            ("deltas", "Deltas that were applied.", counts.deltas),
            ("bases", "Bases at which it began, or began again.", counts.bases),
            ("gaps", "Times that the next delta was lost.", counts.gaps),
            ("refused", "Deltas that were damaged, or of another chain.", counts.refused),
            ("apply_seconds", "Seconds of applying deltas.", counts.seconds),
        ):
            yield CounterMetricFamily(f"shoal_serve_{name}", about, value)


class Page:
    """The metrics of one server. seconds: durations of requests, by call and status."""

    def __init__(self, follower: Follower) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_Figures(follower))
        ProcessCollector(registry=self._registry)
        self.seconds = Histogram(
            "shoal_serve_request_seconds",
            "Seconds from a request to its answer.",
            ["call", "status"],
            buckets=BOUNDS,
            registry=self._registry,
        )

    def text(self) -> bytes:
        """The page in Prometheus's format of text."""
        return generate_latest(self._registry)


def _by_table(rows: Rows) -> Iterator[Metric]:
    there = GaugeMetricFamily("shoal_serve_rows", "Rows of a table.", labels=["table"])
    hits, misses = (
        CounterMetricFamily(
            f"shoal_serve_{name}",
            f"Ids with{out} a row that were looked up, for predictions too.",
            labels=["table"],
        )
        for name, out in (("hits", ""), ("misses", "out"))
    )
    for name, table in rows.tables.items():
        there.add_metric([name], len(table.store))
        ids, missing = table.reads.tolist()
        hits.add_metric([name], ids - missing)
        misses.add_metric([name], missing)
    yield from (there, hits, misses)


def _gauge(name: str, about: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"shoal_serve_{name}", about, value)
