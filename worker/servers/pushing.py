"""Pushing: a step's gradients, to each server its part, each applied once.

Owns the sequence numbers of pushes, and sending again what a server refused because the routing
had changed. Requests are push_requests.py's, calls to all servers fan_out.py's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from shoal.proto import faults, methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError
from shoal.proto.values.routing import Routing
from shoal.proto.wire import frames
from shoal.worker.servers.calls import ROUTING_ERRORS, ServerCalls
from shoal.worker.servers.fan_out import FannedOut
from shoal.worker.servers.in_flight import InFlightPushes
from shoal.worker.servers.push_requests import Parts, PushPlan, Tables, split_by_owner, told

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Push:
    """One step's gradients.

    tables: position -> (ids int64 [u], gradients float32 [u, dim]).
    dense: gradient of the flat trainable vector and change of the flat
        non-trainable one.
    versions, times, applied: of the values that the gradients were computed from, one a
        server, as PullReply's.
    number: counts the pushes that the worker computes, from 1.
    hold: as PushRequest's; ServerGroup.hold gives it.
    left_out: why it is to go to no server at all, in words; "" if it is to.
    table_rates: learning rates of all tables, by position; empty: all have `learning_rate`.
    event_time: as Batch's.
    """

    tables: dict[int, tuple[Int64, Float32]]
    dense: tuple[Float32, Float32]
    learning_rate: float
    versions: list[int]
    times: list[float]
    applied: list[int]
    task: int
    records_done: int
    modulate_rate: bool = False
    hold: int = 0
    number: int = 0
    left_out: str = ""
    table_rates: Sequence[float] = ()
    event_time: int | None = None


class Pusher:
    """Pushes, for one thread.

    acknowledged: the last push that all servers have, by sequence.
    """

    def __init__(
        self, calls: ServerCalls, in_flight: InFlightPushes, value_type: pb.DataType
    ) -> None:
        """in_flight: is told of what is sent and applied.

        value_type: of gradients on the wire; unspecified: that in which servers hold the rows.
        """
        self._calls = calls
        self._value_type = value_type
        self._held: list[pb.DataType] = []
        self._sequence = self.acknowledged = 0
        self._in_flight = in_flight

    def register(self, held: list[pb.DataType]) -> None:
        """Push gradients of tables whose rows servers hold in these types, one a table."""
        self._held = held

    def hold(self, push: Push) -> int:
        """Send gradients to all servers, to be held; returns the gradient's number."""
        number = self._sequence + 1
        self.push(replace(push, hold=number))
        return number

    def push(self, push: Push) -> int:
        """Send gradients to all servers; returns the highest staleness.

        Returns when every server has applied them, each once.
        """
        calls = self._calls
        routing = calls.routing
        # Each server gets a push, also one that is for it without values: so all have the same
        # last push of this worker, and are at the same step.
        wanted = set(routing.present)
        tables: Tables = push.tables
        staleness = 0
        while True:
            parts = split_by_owner(tables, routing)
            self._sequence += 1
            plan = self._plan(push, parts, routing, wanted)
            servers = [each for each in routing.present if each in wanted or parts.some(each)]
            # Before they go out: a pull may see one of them applied before its answer is here.
            self._in_flight.sent(push.number, servers, self._sequence)
            faults.point("before-push")
            last = pb.LastPush(
                identity=pb.PushIdentity(sequence=self._sequence),
                task=push.task,
                records_done=push.records_done,
            )
            call = FannedOut(calls, methods.PUSH, servers, plan.fan_out, plan.frame)
            calls.sent(servers, last, call.was_answered)
            call.run(one_by_one=faults.armed("between-acknowledgements"))
            if call.made is not None:
                versions, most = told(call.made)
                staleness = max(staleness, most)
                self._applied(push, last, {each: versions[each] for each in call.answered})
            refusals: dict[int, WireError] = {}
            for server in call.left:
                try:
                    frame = call.finish(server)
                except WireError as error:
                    if error.kind not in ROUTING_ERRORS:
                        raise
                    refusals[server] = error
                    continue
                reply, _ = frames.decode(frame, pb.PushReply)
                staleness = max(staleness, reply.staleness)
                self._applied(push, last, {server: reply.version})
                if server != call.left[-1]:
                    faults.point("between-acknowledgements")
            if not refusals:
                self.acknowledged = self._sequence
                return staleness
            # A refusal changes nothing on that server: what it was to get goes out
            # again under a new number, routed by the new table.
            calls.follow_routing(next(iter(refusals.values())), routing)
            known, routing = routing.present, calls.routing
            if len(refusals) < len(servers):
                # Servers leave when a push is on all of them or on none.
                refusals = {each: refusals[each] for each in routing.present if each in refusals}
                if not refusals:
                    self.acknowledged = self._sequence
                    return staleness
            wanted = {
                server
                for server in routing.present
                if server not in known or (server in wanted and server in refusals)
            }
            tables = parts.of_all(list(refusals))

    def _applied(self, push: Push, last: pb.LastPush, versions: Mapping[int, int]) -> None:
        """Servers have applied a push, or hold it, and are at these versions."""
        self._calls.acknowledged(versions, last)
        if not push.hold:
            self._in_flight.applied(versions, self._sequence)
        self._calls.see(versions)

    def _header(self, push: Push, parts: Parts, epoch: int) -> pb.PushRequest:
        """The part of a push's header that is the same for all servers."""
        identity = pb.PushIdentity(sequence=self._sequence)
        identity.MergeFrom(self._calls.caller)
        return pb.PushRequest(
            identity=identity,
            routing_epoch=epoch,
            tables=parts.tables,
            ids_of=parts.ids_of,
            learning_rate=push.learning_rate,
            table_rates=push.table_rates,
            modulate_rate=push.modulate_rate,
            hold=push.hold,
            task=push.task,
            records_done=push.records_done,
            event_time=push.event_time,
        )

    def _plan(self, push: Push, parts: Parts, routing: Routing, wanted: Set[int]) -> PushPlan:
        """The requests of a push. wanted: servers that get their slices of the dense values."""
        # A server that came since the pull began at the others' version.
        came = routing.servers - len(push.versions)
        versions = [*push.versions[: routing.servers], *[max(push.versions)] * came]
        applied = [*push.applied[: routing.servers], *[max(push.applied)] * came]
        times = [*push.times[: routing.servers], *[0.0] * came]
        return PushPlan(
            parts=parts,
            common=self._header(push, parts, routing.epoch),
            dense=push.dense,
            slices=routing.dense,
            has_dense=np.array([each in wanted for each in range(routing.servers)], np.int64),
            versions=np.array(versions, np.int64),
            times=np.array(times, np.float64),
            own_pushes=np.array(self._in_flight.applied_after(applied), np.int64),
            value_types=[self._value_type or self._held[table] for table in parts.tables],
        )
