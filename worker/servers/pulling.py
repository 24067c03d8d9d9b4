"""Pulling: the rows and dense values that a batch needs, from all servers at once.

Owns splitting a pull over servers, the cache of rows, and putting the answers together.
Requests are pull_requests.py's, calls to all servers fan_out.py's.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError
from shoal.proto.values.routing import Routing
from shoal.worker.servers.cache import RowCache
from shoal.worker.servers.calls import ServerCalls, slices
from shoal.worker.servers.fan_out import FannedOut
from shoal.worker.servers.ids import TableIds, group_tables
from shoal.worker.servers.pull_requests import Answer, PullHead, PullPlan, Told

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]

UPDATE_PAUSE = 0.001
"""Seconds before a pull that saw two updates of --sync is done again."""


@dataclass(frozen=True)
class Pulled:
    """Rows and dense values for one batch.

    ids: one a table, as grouped for the pull.
    rows: one a table, float32 [unique, dim].
    trainable, state: the flat dense vectors, float32; not to be written to.
    versions, times, applied, updates: one a server; PullReply's. Of a server that is absent they
        are another one's, which has all that it would have, but for the time.
    routing: the table by which they were pulled.
    """

    ids: list[TableIds]
    rows: list[Float32]
    trainable: Float32
    state: Float32
    versions: list[int]
    times: list[float]
    applied: list[int]
    updates: list[int]
    routing: Routing


class Puller:
    """Pulls, for one thread.

    cache: of rows, for training; None for none.
    after: the update of --sync that servers are to have applied before they answer a pull for
        training; one that still lacks it after a second answers without it.
    """

    def __init__(
        self,
        calls: ServerCalls,
        cancelled: threading.Event,
        value_type: pb.DataType,
        *,
        whole_updates: bool,
    ) -> None:
        """value_type: as PullRequest's. whole_updates: all servers' values are of one update."""
        self._calls = calls
        self._cancelled = cancelled
        self._value_type = value_type
        self._whole_updates = whole_updates
        self._dims: list[int] = []
        self._held: list[pb.DataType] = []
        self.after = 0
        self.cache: RowCache | None = None
        self._epoch = calls.routing.epoch  # of the table by which rows were cached

    def register(
        self, dims: list[int], held: list[pb.DataType], cache_bytes: int, cache_staleness: int
    ) -> None:
        """Pull rows of these lengths from now on, one a table.

        held: as PullPlan's. cache_...: as of RowCache.
        """
        self._dims, self._held = dims, held
        if cache_bytes:
            servers = self._calls.routing.servers
            self.cache = RowCache(cache_bytes, cache_staleness, dims, servers)

    def pull(
        self, calls: Sequence[Sequence[Int64]], *, training: bool, exact: bool = False
    ) -> Pulled:
        """Rows for the ids of a batch and the dense vectors, as of ServerGroup.pull."""
        while True:
            routing = self._calls.routing
            try:
                ids = group_tables(calls, routing)
                pulled = self.fetch(ids, routing, training=training, exact=exact)
            except WireError as error:
                self._calls.follow_routing(error, routing)
                continue
            # An update reaches servers one after another, within moments.
            if not self._whole_updates or len(set(pulled.updates)) == 1:
                return pulled
            if self._cancelled.wait(UPDATE_PAUSE):
                return pulled  # for nothing: the job ends

    def fetch(
        self, ids: list[TableIds], routing: Routing, *, training: bool, exact: bool = False
    ) -> Pulled:
        """Pull ids that were grouped by `routing`.

        Raises WireError (`ROUTING_ERRORS`) if that is old.
        """
        calls, dense = self._calls, self._calls.dense
        if self.cache is not None and routing.epoch != self._epoch:
            self.cache.moved(routing.servers)
            self._epoch = routing.epoch
        # Evaluation and prediction see the servers' own values.
        cached = self.cache.look_up(ids) if self.cache is not None and training else None
        wanted = ids if cached is None else cached.missing
        value_type = pb.FLOAT32 if exact else self._value_type
        plan = PullPlan(
            wanted, self._dims, value_type, self._held, whole_updates=self._whole_updates
        )
        after = self.after if training else 0
        head = PullHead(routing.epoch, dense.known(routing), training, calls.caller, after)
        whole = dense.unfilled()
        call = FannedOut(
            calls,
            methods.PULL,
            routing.present,
            lambda: plan.fan_out(head, whole, routing.dense),
            lambda server: plan.frame(head, server),
        )
        call.run()
        told = Told.of(call.made, routing.servers)
        newer = {}
        in_place = [each for each in call.answered if told.has_dense[each]]
        if not (all_in_place := len(in_place) == routing.dense):
            newer = {server: slices(*whole, server, routing.dense) for server in in_place}
        for server in call.left:
            answer: Answer = call.finish(server, partial(plan.take, server))
            told.note(server, answer.reply)
            if answer.dense is not None:
                newer[server] = answer.dense
        calls.see({server: told.versions[server] for server in routing.present})
        # Only now: a server that refuses, above, has all of them pulled again.
        for server in in_place if all_in_place else newer:
            dense.versions[server] = told.versions[server]
        told.complete(routing)
        versions = told.versions
        rows = plan.rows
        if cached is not None:
            rows = cached.join(rows, versions)
            # The gradients are as stale as the oldest row that they come from. What it lacks
            # counts as others' pushes, though some may be our own.
            versions = [
                version if oldest is None else min(version, oldest)
                for version, oldest in zip(versions, cached.oldest, strict=True)
            ]
        dense.take(newer, whole if all_in_place else None)
        return Pulled(
            ids,
            rows,
            dense.trainable,
            dense.state,
            versions,
            told.times,
            told.applied,
            told.updates,
            routing,
        )
