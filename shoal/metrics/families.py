"""Metrics that several roles have: the identity of a process, histograms, one state of several."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from shoal.proto import shoal_pb2 as pb

BUCKETS = 24
"""Of a histogram of what servers measure: up to 2^23 pushes, or as many milliseconds."""


class ProcessInfo(Collector):
    """Which process of which job this is."""

    def __init__(self, job_name: str, role: str, index: int, incarnation: int) -> None:
        self._labels = {
            "job_name": job_name,
            "role": role,
            "index": str(index),
            "incarnation": str(incarnation),
            "version": metadata.version("shoal"),
        }

    def collect(self) -> Iterator[Metric]:
        """The one family."""
        family = GaugeMetricFamily(
            "shoal_process_info",
            "The process: its job, role and index, and how often it was started before.",
            labels=list(self._labels),
        )
        family.add_metric(list(self._labels.values()), 1)
        yield family


def one_of(name: str, about: str, label: str, states: Iterable[str], now: str) -> Metric:
    """A gauge for each of several states, 1 for the one that is and 0 for the others."""
    return gauges(name, about, label, {each: float(each == now) for each in states})


def gauges(name: str, about: str, label: str, values: Mapping[str, float]) -> Metric:
    """A gauge for each value of one label."""
    family = GaugeMetricFamily(name, about, labels=[label])
    for each, value in values.items():
        family.add_metric([each], value)
    return family


def counters(name: str, about: str, label: str, values: Mapping[str, float]) -> Metric:
    """A counter for each value of one label. name: without _total."""
    family = CounterMetricFamily(name, about, labels=[label])
    for each, value in values.items():
        family.add_metric([each], value)
    return family


def histogram(name: str, about: str, measured: pb.Distribution, unit: float = 0.0) -> Metric:
    """A distribution as servers measure it, as a histogram with BUCKETS buckets.

    unit: of its buckets, in the unit of its values; 0: the values are whole numbers.
    """
    counts = list(measured.buckets[:BUCKETS]) + [0] * (BUCKETS - len(measured.buckets))
    total, buckets = 0, []
    for digits, count in enumerate(counts):
        total += count
        # The bucket of values with so many binary digits; a whole number may be the last of them.
        highest = (1 << digits) * unit if unit else (1 << digits) - 1
        buckets.append((str(float(highest)), float(total)))
    buckets.append(("+Inf", float(measured.count)))
    family = HistogramMetricFamily(name, about)
    family.add_metric([], buckets, measured.sum)
    return family
