"""The questions and commands to the master of a job, here or on Kubernetes: `shoal scale`, ...

Each raises UserError if the master does not run, does not answer, or refuses.
"""

from __future__ import annotations

from shoal.base.disk.job_folder import JobFolder
from shoal.client.ask.running_job import RunningJob
from shoal.config.job import JobConfig
from shoal.errors import UserError
from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.channels.rpc import Connection
from shoal.proto.errors import WireError
from shoal.proto.methods import Method, Reply, Request
from shoal.proto.protocol import mismatch
from shoal.proto.wire.transport import peer_name
from shoal.security.identities import client_identity

STACKS_SECONDS = 60.0
"""For a master to answer: it waits for some heartbeats of each worker."""


def connection_to(
    config: JobConfig,
    folder: JobFolder,
    address: str,
    deadline: float,
    role: str = "master",
    index: int = 0,
) -> Connection:
    """A connection to a process of a job of this machine, tried once for each call."""
    peer, identity = peer_name(config.token, role, index), client_identity(config, folder)
    return Connection(address, deadline=deadline, patience=0, peer=peer, identity=identity)


def status_of(master: Connection) -> pb.JobStatus:
    """The status that a master tells. Raises CallError."""
    return master.call(methods.GET_JOB_STATUS, pb.JobStatusRequest())


def checked(job: RunningJob, status: pb.JobStatus) -> pb.JobStatus:
    """The status of a job. Raises UserError if its master is of another version."""
    if why := mismatch("this command", f"the master of job {job.name}", status.protocol):
        raise UserError(why)
    return status


def stop(job: RunningJob) -> None:
    """Ask a running job to stop."""
    with job.master() as master:
        master.call(methods.STOP_JOB, pb.StopJobRequest(reason="shoal stop"))


def scale(job: RunningJob, workers: int | None, servers: int | None = None) -> None:
    """Change how many workers or servers a running job wants; None: as it is."""
    with job.master() as master:
        for flag, request in (
            ("--workers: ", pb.ScaleJobRequest(num_workers=workers)),
            ("--servers: ", pb.ScaleJobRequest(num_servers=servers)),
        ):
            if request.ByteSize():
                _call(master, methods.SCALE_JOB, request, flag)


def hold_publishing(job: RunningJob, *, held: bool) -> None:
    """Hold what a running job publishes, or release it."""
    with job.master() as master:
        _call(master, methods.HOLD_PUBLISHING, pb.HoldPublishingRequest(held=held))


def rebalance(job: RunningJob) -> bool:
    """Even out the load of the servers; True if rows move for it."""
    with job.master() as master:
        return _call(master, methods.SCALE_JOB, pb.ScaleJobRequest(rebalance=True)).moves


def stacks(job: RunningJob, role: str = "", index: int = 0) -> list[pb.ProcessStacks]:
    """Ask where the threads of all processes stand, or those of one."""
    request = pb.JobStacksRequest(role=role, index=index)
    with job.master(STACKS_SECONDS) as master:
        return list(_call(master, methods.GET_JOB_STACKS, request).processes)


def find_id(job: RunningJob, table: str, key: int) -> pb.FoundId:
    """Look up an id at the servers of a running job."""
    with job.master() as master:
        return _call(master, methods.FIND_JOB_ID, pb.FindIdRequest(table=table, id=key))


def _call(
    master: Connection, method: Method[Request, Reply], request: Request, flag: str = ""
) -> Reply:
    """A call whose wrong input is the user's."""
    try:
        return master.call(method, request)
    except WireError as error:
        if error.kind != pb.BAD_REQUEST:
            raise
        raise UserError(f"{flag}{error.message}") from error
