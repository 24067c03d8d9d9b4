"""A server that is told to end (SIGTERM: an eviction, a drained node) drains.

Where the master can do that, its rows move to the other servers, and it serves meanwhile. Else it
takes no more pushes, and has the master take a checkpoint: its next incarnation then goes on with
all that this one has acknowledged. Owns the waiting.
"""

from __future__ import annotations

import logging
import time

from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.channels import rpc
from shoal.proto.errors import CallError, WireError
from shoal.ps.service import ParameterServer

logger = logging.getLogger(__name__)

MASTER_SECONDS = 15.0
"""For the master to answer, or for the next one, whose pod takes 5 to 10 s to come. One that is
gone, as when the whole job is deleted, takes no checkpoint."""

ASK_SECONDS = 0.2

SPARE_SECONDS = 2.0
"""Of the grace period, for the process to end by itself."""


def drain(
    server: ParameterServer, request: pb.DrainRequest, connection: rpc.Connection, grace: float
) -> None:
    """Return when nothing acknowledged is left to be lost, or nobody can help that.

    connection: to the master, which need not be ready; closed here. grace: seconds until the
    process is killed.
    """
    give_up = time.monotonic() + grace - SPARE_SECONDS
    logger.info("told to end; asking what is to become of its rows")
    try:
        while True:
            request.seconds = max(0.0, give_up - time.monotonic())
            reply = _answer(connection, request)
            if not reply.wait:
                break
            if not reply.serve:
                server.close()
                request.closed = True
            if time.monotonic() > give_up:
                logger.warning("leaving: neither did its rows move nor was a checkpoint taken")
                return
            if server.stopped.wait(ASK_SECONDS):
                return
        logger.info("leaving: %s", reply.outcome)
    except CallError as error:
        logger.warning("leaving without a checkpoint: %s", error)
    finally:
        server.close()
        connection.close()


def _answer(connection: rpc.Connection, request: pb.DrainRequest) -> pb.DrainReply:
    """The master's answer; that it cannot answer yet, as its journal is full, is to wait."""
    try:
        return connection.call(methods.DRAIN, request)
    except WireError as error:
        if error.kind != pb.NOT_READY:
            raise
        return pb.DrainReply(wait=True, serve=not request.closed)
