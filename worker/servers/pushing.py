"""Pushing: a step's gradients, to each server its part, each applied once.

Owns the sequence numbers of pushes, and sending again what a server refused because the routing
had changed. Frames are requests.py's, connections calls.py's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from shoal.proto import faults, methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError
from shoal.proto.wire import frames
from shoal.worker.servers.calls import ROUTING_ERRORS, ServerCalls, slices
from shoal.worker.servers.in_flight import InFlightPushes
from shoal.worker.servers.requests import push_frame, split_by_owner

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
        """in_flight: is told of what is sent and applied. value_type: of gradients on the wire."""
        self._calls = calls
        self._value_type = value_type
        self._sequence = self.acknowledged = 0
        self._in_flight = in_flight

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
        tables = push.tables
        staleness = 0
        while True:
            parts, owners = split_by_owner(tables, routing)
            self._sequence += 1
            header = self._header(push, routing.epoch)
            requests = {
                server: self._frame(
                    push, server, header, parts[server], routing.dense if server in wanted else 0
                )
                for server in routing.present
                if server in wanted or any(ids.size for ids, _ in parts[server].values())
            }
            # Before they go out: a pull may see one of them applied before its answer is here.
            self._in_flight.sent(push.number, requests, self._sequence)
            faults.point("before-push")
            last = pb.LastPush(
                identity=pb.PushIdentity(sequence=self._sequence),
                task=push.task,
                records_done=push.records_done,
            )
            answers = {}
            for server, request in requests.items():
                answers[server] = calls.start(server, methods.PUSH, request)
                calls.sent(server, last, answers[server])
            refusals: dict[int, WireError] = {}
            for server, answer in answers.items():
                try:
                    frame = calls.finish(server, methods.PUSH, requests[server], answer)
                except WireError as error:
                    if error.kind not in ROUTING_ERRORS:
                        raise
                    refusals[server] = error
                    continue
                reply, _ = frames.decode(frame, pb.PushReply)
                staleness = max(staleness, reply.staleness)
                calls.acknowledged(server, last)
                if not push.hold:
                    self._in_flight.applied(server, self._sequence)
                calls.see(server, reply.version)
                if server != max(answers):
                    faults.point("between-acknowledgements")
            if not refusals:
                self.acknowledged = self._sequence
                return staleness
            # A refusal changes nothing on that server: what it was to get goes out
            # again under a new number, routed by the new table.
            calls.follow_routing(next(iter(refusals.values())), routing)
            known, routing = routing.present, calls.routing
            if len(refusals) < len(requests):
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
            refused = {table: np.isin(owners[table], list(refusals)) for table in tables}
            tables = {
                table: (ids[refused[table]], gradients[refused[table]])
                for table, (ids, gradients) in tables.items()
            }

    def _header(self, push: Push, epoch: int) -> pb.PushRequest:
        """The part of a push's header that is the same for all servers."""
        identity = pb.PushIdentity(sequence=self._sequence)
        identity.MergeFrom(self._calls.caller)
        return pb.PushRequest(
            identity=identity,
            routing_epoch=epoch,
            learning_rate=push.learning_rate,
            table_rates=push.table_rates,
            modulate_rate=push.modulate_rate,
            hold=push.hold,
            task=push.task,
            records_done=push.records_done,
            event_time=push.event_time,
        )

    def _frame(
        self,
        push: Push,
        server: int,
        common: pb.PushRequest,
        part: dict[int, tuple[Int64, Float32]],
        dense_servers: int,
    ) -> frames.Pieces:
        """The frame for a server. dense_servers: number with slices; 0: no slice for this one."""
        header = pb.PushRequest()
        header.CopyFrom(common)
        if server < len(push.versions):
            header.pulled_version = push.versions[server]
            header.pulled_time = push.times[server]
            applied = push.applied[server]
        else:
            # It came since the pull, and began at the others' version.
            header.pulled_version, applied = max(push.versions), max(push.applied)
        header.own_pushes = self._in_flight.applied_after(server, applied)
        dense = slices(*push.dense, server, dense_servers) if dense_servers else None
        return push_frame(header, part, dense, self._value_type)
