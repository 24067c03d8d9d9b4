"""Asking a master for another number of workers or servers, or for equal shares.

The same for a job of this machine and one on Kubernetes.
"""

from __future__ import annotations

from shoal.errors import UserError
from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.channels.rpc import Connection
from shoal.proto.errors import WireError


def have(master: Connection, workers: int | None, servers: int | None) -> None:
    """Set the numbers of workers and servers that a job wants; None: as it is. Raises UserError."""
    if workers is not None:
        _asked(master, pb.ScaleJobRequest(num_workers=workers), "--workers: ")
    if servers is not None:
        _asked(master, pb.ScaleJobRequest(num_servers=servers), "--servers: ")


def rebalanced(master: Connection) -> bool:
    """Even out the load of the servers; True if rows move for it. Raises UserError."""
    return _asked(master, pb.ScaleJobRequest(rebalance=True), "").moves


def _asked(master: Connection, request: pb.ScaleJobRequest, flag: str) -> pb.ScaleJobReply:
    try:
        return master.call(methods.SCALE_JOB, request)
    except WireError as error:
        if error.kind != pb.BAD_REQUEST:
            raise
        raise UserError(f"{flag}{error.message}") from error
