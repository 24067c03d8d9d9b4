"""The state of one id, which the master asks of the server that has it.

A client has no certificate that servers accept; the master has.
"""

from __future__ import annotations

import numpy as np

from shoal.master.calls.servers import Place, ServerConnections
from shoal.master.job.job import Job
from shoal.master.job.members.members import ProcessState, ServerMember
from shoal.master.shared_job import SharedJob
from shoal.master.work.ids import ServerId
from shoal.native.ids import slot_of
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import PeerUnavailableError, WireError
from shoal.proto.identity import Identity


class FoundIds:
    """Asks the servers of `job`; shared by threads. Close it at the end. identity: the master's."""

    def __init__(self, job: SharedJob, identity: Identity | None = None) -> None:
        self._job = job
        self._servers = ServerConnections(job.config.token, identity)

    def close(self) -> None:
        """Give up what is under way."""
        self._servers.close()

    def of(self, request: pb.FindIdRequest) -> pb.FoundId:
        """The id, as its server has it now.

        Raises WireError(BAD_REQUEST) for a table that is not there, or a server that cannot answer.
        """
        routing = self._job.look(lambda job, _: job.moves.routing)
        owner = int(routing.owners[slot_of(np.array([request.id], np.int64))[0]])
        server = ServerId(owner)
        state, place = self._job.look(lambda job, _: _where(job, server))
        if place is None:
            raise WireError(pb.BAD_REQUEST, f"{server}, which has id {request.id}, {state}")
        try:
            return self._servers.find_id(server, place, request)
        except PeerUnavailableError as error:
            message = f"{server}, which has id {request.id}, does not answer: {error}"
            raise WireError(pb.BAD_REQUEST, message) from error
        except WireError as error:
            if error.kind not in (pb.NOT_READY, pb.NOT_REGISTERED):
                raise
            message = f"{server}, which has id {request.id}, has no tables yet: {error.message}"
            raise WireError(pb.BAD_REQUEST, message) from error


def _where(job: Job, server: ServerId) -> tuple[str, Place | None]:
    """The reason why a server cannot be asked, "" if it can; and its place."""
    member: ServerMember = job.members.servers[server]
    if member.state == ProcessState.ALIVE:
        return "", Place.of(member)
    dead = member.state == ProcessState.DEAD
    return "has ended" if dead else "is being started: try again when it is there", None
