"""The place that keeps a server's log: the next server's memory, or files (--durability).

Owns that choice, and the questions to the master that it takes.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from shoal.base.job_folder import JobFolder
from shoal.config.job import JobConfig
from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.channels.rpc import Connection
from shoal.proto.identity import Identity
from shoal.proto.protocol import own_protocol
from shoal.proto.values.routing import Routing, holder_index
from shoal.proto.wire.transport import peer_name
from shoal.ps.update_log.file_sink import FileSink
from shoal.ps.update_log.moved_sink import MovedSink
from shoal.ps.update_log.peer_sink import PeerSink
from shoal.ps.update_log.sinks import Sink


def sink_of(
    job: JobConfig,
    index: int,
    incarnation: int,
    master: Connection,
    plan: pb.RestoreReply,
    identity: Identity | None = None,
) -> Sink:
    """The place of the log of server `index`. plan: of its start. identity: of that server."""
    if job.log_in_files:
        folder = JobFolder(Path(job.job_dir)).update_log
        return FileSink(folder, index, incarnation, sync=job.log_fsync)
    at = partial(peer_sink_of, job, index, incarnation, master, identity=identity)
    routed = plan.HasField("routing")
    dense = Routing.from_message(plan.routing).dense if routed else job.num_servers
    former = plan.former_dense
    sink = at(dense)
    if not former or holder_index(index, dense) == holder_index(index, former):
        return sink
    return MovedSink(at(former, before=True), sink)


def peer_sink_of(
    job: JobConfig,
    index: int,
    incarnation: int,
    master: Connection,
    dense: int,
    *,
    before: bool = False,
    identity: Identity | None = None,
) -> PeerSink:
    """The place of a log at the server that keeps it by a routing table with this `dense`.

    before: it is where the log was before a move.
    """
    peer = holder_index(index, dense)

    def locate() -> str:
        # Without a retry: who waits for the other server asks again.
        request = pb.GetRoutingRequest(addresses_only=True)
        return master.call(methods.GET_ROUTING, request, patience=0.0).servers[peer]

    def holder() -> str:
        request = pb.RestoreRequest(server=index, incarnation=incarnation, protocol=own_protocol())
        reply = master.call(methods.GET_RESTORE, request)
        return reply.former_holder if before else reply.holder

    return PeerSink(
        index,
        incarnation,
        peer,
        peer_name(job.token, "ps", peer),
        locate,
        holder,
        # Workers wait for this server meanwhile.
        retry_seconds=job.server_patience_seconds / 2,
        server_timeout_seconds=job.server_timeout_seconds,
        identity=identity,
    )
