"""The place that keeps a server's log: the next server's memory, or files (--durability).

Owns that choice, and the questions to the master that it takes.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from shoal.base.disk.job_folder import JobFolder
from shoal.config.job import JobConfig
from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.channels.rpc import Connection
from shoal.proto.identity import Identity
from shoal.proto.protocol import own_protocol
from shoal.proto.values.routing import holder_index
from shoal.proto.wire.transport import peer_name
from shoal.ps.ownership import Ownership
from shoal.ps.update_log.file_sink import FileSink
from shoal.ps.update_log.peer_sink import PeerSink
from shoal.ps.update_log.sinks import Sink


def sink_of(
    job: JobConfig,
    index: int,
    incarnation: int,
    master: Connection,
    ownership: Ownership,
    identity: Identity | None = None,
) -> Sink:
    """The place of the log of server `index`. ownership, identity: of that server."""
    if job.log_in_files:
        folder = JobFolder(Path(job.job_dir)).update_log
        return FileSink(folder, index, incarnation, sync=job.log_fsync)

    def locate(keeper: int) -> str:
        # Without a retry: who waits for the other server asks again.
        request = pb.GetRoutingRequest(addresses_only=True)
        return master.call(methods.GET_ROUTING, request, patience=0.0).servers[keeper]

    def holder() -> str:
        request = pb.RestoreRequest(server=index, incarnation=incarnation, protocol=own_protocol())
        return master.call(methods.GET_RESTORE, request).holder

    return PeerSink(
        index,
        incarnation,
        lambda: holder_index(index, ownership.routing.dense),
        partial(peer_name, job.token, "ps"),
        locate,
        holder,
        # Workers wait for this server meanwhile.
        retry_seconds=job.server_patience_seconds / 2,
        server_timeout_seconds=job.server_timeout_seconds,
        identity=identity,
    )
