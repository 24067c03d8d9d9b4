"""The status of a parameter server for Prometheus, as families of metrics."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import accumulate

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from shoal.base.disk.job_folder import JobFolder
from shoal.config.job import JobConfig
from shoal.metrics.calls import Calls
from shoal.metrics.families import gauges, histogram, one_of
from shoal.metrics.serving import serving
from shoal.proto import shoal_pb2 as pb
from shoal.proto.channels.serving import Handlers
from shoal.proto.values.norms import BOUNDS, BY_DECADE
from shoal.ps.push_samples import PushSamples
from shoal.ps.service import ParameterServer

STATES = ("starting", "serving", "draining")

MILLISECOND = 0.001


@contextlib.contextmanager
def serving_metrics(
    server: ParameterServer,
    samples: PushSamples,
    handlers: Handlers,
    job: JobConfig,
    folder: JobFolder,
    incarnation: int,
) -> Iterator[Handlers]:
    """Serve the metrics of a server of this job; yields its handlers, whose calls are counted.

    samples: of the pushes to it.
    """
    calls = Calls()
    own = (ServerMetrics(server), SampleMetrics(samples), calls)
    with serving(job, folder, "ps", server.server, incarnation, *own):
        yield calls.counted(handlers)


class ServerMetrics(Collector):
    """The status of `server`, asked for when the page is."""

    def __init__(self, server: ParameterServer) -> None:
        self._server = server

    def collect(self) -> Iterator[Metric]:
        """All families; those of the model once the server has one."""
        server = self._server
        status = server.status(pb.ServerStatusRequest(onlooker=True))
        yield one_of("shoal_server_state", "What the server does.", "state", STATES, self._state())
        yield CounterMetricFamily("shoal_pulls", "Pulls answered.", status.pulls)
        yield CounterMetricFamily("shoal_pushes_applied", "Pushes applied.", status.pushes)
        yield CounterMetricFamily(
            "shoal_pushes_duplicate",
            "Pushes that had been applied before.",
            status.duplicate_pushes,
        )
        yield GaugeMetricFamily(
            "shoal_pending_gradients",
            "Gradients that wait for their update, with --sync.",
            status.pending,
        )
        yield from _of_log(status)
        if status.registered:
            yield from _of_model(status)

    def _state(self) -> str:
        if self._server.draining.is_set():
            return "draining"
        return "serving" if self._server.ready.is_set() else "starting"


class SampleMetrics(Collector):
    """The statistics of the pushes that are looked at."""

    def __init__(self, samples: PushSamples) -> None:
        self._samples = samples

    def collect(self) -> Iterator[Metric]:
        """The norms of each table, and its hot ids if they are wanted."""
        gradients = HistogramMetricFamily(
            "shoal_gradient_row_norm",
            "L2 norm of a row's gradient, of the rows in one push a second.",
            labels=["table"],
        )
        rows = HistogramMetricFamily(
            "shoal_row_norm",
            "L2 norm of a row, after a push, of the rows in one push a second.",
            labels=["table"],
        )
        hot = GaugeMetricFamily(
            "shoal_hot_id_share",
            "Share of the pushes looked at that have this id, at least.",
            labels=["table", "id"],
        )
        for name, seen in self._samples.seen.items():
            for family, norms in ((gradients, seen.gradients), (rows, seen.rows)):
                family.add_metric([name], _decades(norms), norms.sum)
            for number, share in seen.hot:
                hot.add_metric([name, str(number)], share)
        yield gradients
        yield rows
        if self._samples.hot_ids:
            yield hot


def _decades(norms: pb.Distribution) -> list[tuple[str, float]]:
    """Buckets as Prometheus has them: a series for each is too many for ten a decade."""
    below = list(accumulate(norms.buckets))
    below += [norms.count] * (len(BOUNDS) - len(below))
    found = [(str(BOUNDS[i]), float(below[i])) for i in range(0, len(BOUNDS), BY_DECADE)]
    return [*found, ("+Inf", float(norms.count))]


def _of_log(status: pb.ServerStatus) -> Iterator[Metric]:
    yield GaugeMetricFamily("shoal_log_bytes", "Log of updates of this server.", status.log_bytes)
    yield GaugeMetricFamily(
        "shoal_log_held_bytes",
        "Logs of other servers that this one keeps in memory.",
        status.held_log_bytes,
    )
    yield GaugeMetricFamily(
        "shoal_log_unprotected",
        "1 while --durability=log protects no updates of this server.",
        float(bool(status.unprotected)),
    )
    yield CounterMetricFamily(
        "shoal_log_unprotected_seconds",
        "Time without that protection, of the times that are over.",
        status.absent_seconds,
    )


def _of_model(status: pb.ServerStatus) -> Iterator[Metric]:
    rows = {table.name: float(table.rows) for table in status.tables}
    memory = {table.name: float(table.memory_bytes) for table in status.tables}
    yield gauges("shoal_table_rows", "Rows of a table on this server.", "table", rows)
    yield gauges(
        "shoal_table_counting",
        "Ids of a table that this server counts, and that have no row yet.",
        "table",
        {table.name: float(table.counting) for table in status.tables},
    )
    removed = CounterMetricFamily(
        "shoal_table_removed",
        "Ids of a table that sweeps of this server have removed.",
        labels=["table", "reason"],
    )
    for table in status.tables:
        for reason in ("expired", "evicted", "counts"):
            removed.add_metric([table.name, reason], getattr(table.removed, reason))
    yield removed
    if status.HasField("event_time"):
        yield GaugeMetricFamily(
            "shoal_event_time_seconds",
            "Event clock of this server, by --event-time: seconds since 1970.",
            status.event_time / 1e6,
        )
        yield GaugeMetricFamily(
            "shoal_event_time_doubted",
            "1 while event times jump, or are far behind, and nothing expires.",
            float(bool(status.clock_doubt)),
        )
    yield gauges(
        "shoal_table_memory_bytes",
        "Memory of a table on this server, with optimizer slots and index.",
        "table",
        memory,
    )
    yield GaugeMetricFamily(
        "shoal_dense_elements", "Dense values on this server.", status.dense_elements
    )
    yield histogram(
        "shoal_push_staleness",
        "Other pushes that the server applied between a push and the pull before it.",
        status.staleness,
    )
    yield histogram(
        "shoal_push_age_seconds",
        "Time between a push and the pull before it.",
        status.age,
        MILLISECOND,
    )
