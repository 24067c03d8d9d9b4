"""The calls that a process handles: how many, how each ended, and how long it took.

The time is that of handling, and for an answer that is made while it is sent, until it is made.
Calls that are refused before their request is read are not counted.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from shoal.metrics.durations import Durations
from shoal.proto.channels.serving import Handlers
from shoal.proto.errors import WireError
from shoal.proto.methods import Method
from shoal.proto.plane.direct import WithDirect, around
from shoal.proto.wire.frames import Buffer, Pieces

OUTCOMES = ("answered", "refused", "failed")


class _Count:
    """The calls of one method."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.durations = Durations()
        self.outcomes = dict.fromkeys(OUTCOMES, 0)
        self.direct: WithDirect | None = None

    def add(self, outcome: str, began: float) -> None:
        seconds = time.perf_counter() - began
        with self.lock:
            self.durations.add(seconds)
            self.outcomes[outcome] += 1


class Calls(Collector):
    """Counts the calls of the handlers that `counted` gave."""

    def __init__(self) -> None:
        self._counts: dict[str, _Count] = {}

    def counted(self, handlers: Handlers) -> Handlers:
        """The same handlers, whose calls are counted."""
        return {method: self._counted(method, each) for method, each in handlers.items()}

    def _counted(
        self, method: Method[Any, Any], handler: Callable[[Any], Any]
    ) -> Callable[[Any], Any]:
        count = self._counts[method.name] = _Count()
        count.direct = handler if isinstance(handler, WithDirect) else None
        return around(handler, lambda each: self._handling(method, each, count))

    @staticmethod
    def _handling(
        method: Method[Any, Any], handler: Callable[[Any], Any], count: _Count
    ) -> Callable[[Any], Any]:

        def handled(request: Any) -> Any:
            began = time.perf_counter()
            try:
                answer = handler(request)
            except WireError:
                count.add("refused", began)
                raise
            except BaseException:
                count.add("failed", began)
                raise
            if isinstance(answer, Pieces):
                return Pieces(len(answer), _until_made(answer.buffers, count, began))
            if method.streaming:
                return _until_made(answer, count, began)
            count.add("answered", began)
            return answer

        return handled

    def collect(self) -> Iterator[Metric]:
        """Both families, with the calls that were made at least once."""
        requests = CounterMetricFamily(
            "shoal_requests", "Calls handled, by how they ended.", labels=["call", "outcome"]
        )
        times = HistogramMetricFamily(
            "shoal_request_seconds", "Time to handle a call.", labels=["call"]
        )
        for name, count in self._counts.items():
            with count.lock:
                durations, outcomes = count.durations.copy(), dict(count.outcomes)
            if count.direct is not None:
                outcomes["answered"] += durations.include(*count.direct.durations)
            buckets, seconds = durations.buckets(), durations.sum
            if not any(outcomes.values()):
                continue
            for outcome, number in outcomes.items():
                requests.add_metric([name, outcome], number)
            times.add_metric([name], buckets, seconds)
        yield requests
        yield times


def _until_made(parts: Any, count: _Count, began: float) -> Iterator[Buffer | list[Buffer]]:
    """The parts of an answer; the call is counted once the last was taken, or none is any more."""
    outcome = "failed"
    try:
        yield from parts
        outcome = "answered"
    finally:
        count.add(outcome, began)
