"""Asking the master of a job of this machine that this process does not follow.

The part of local_jobs.py that needs gRPC.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from shoal.base.job_folder import JobFolder
from shoal.client.ask.scaling import have, rebalanced
from shoal.client.found.local_jobs import processes_table, running, state_of, way_on
from shoal.client.found.processes import process_of
from shoal.client.show.drawn import block
from shoal.client.stacks import stacks_of
from shoal.config.job import JobConfig
from shoal.errors import UserError
from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.channels.rpc import Connection
from shoal.proto.errors import CallError
from shoal.proto.wire.transport import peer_name
from shoal.security.identities import client_identity

COMMAND_SECONDS = 30.0
"""For a master to answer a command: nobody watches it twice a second, so it may take its time."""


@contextmanager
def master_of(folder: JobFolder) -> Iterator[Connection]:
    """A connection to the job's master. Raises UserError if it does not run, or answer."""
    name = folder.path.name
    address = folder.master_address()
    if not running(folder) or address is None:
        state = state_of(folder)
        ended = f"was killed{way_on(folder)}" if state == "killed" else f"has ended: {state}"
        raise UserError(f"job {name} does not run: it {ended}")
    config = JobConfig.load(folder.config)
    connection = Connection(
        address,
        deadline=COMMAND_SECONDS,
        patience=0,
        peer=peer_name(config.token, "master"),
        identity=client_identity(config, folder),
    )
    try:
        yield connection
    except CallError as error:
        raise UserError(
            f"the master of job {name} does not answer: {error}; see {folder.logs / 'master.log'}"
        ) from error
    finally:
        connection.close()


def job_status(folder: JobFolder) -> pb.JobStatus:
    """The status of a running job. Raises UserError."""
    with master_of(folder) as master:
        return master.call(methods.GET_JOB_STATUS, pb.JobStatusRequest())


def status(folder: JobFolder) -> list[Any]:
    """The status of a running job, and its processes, to be printed. Raises UserError."""
    return [block(job_status(folder)), processes_table(folder)]


def stop(folder: JobFolder) -> None:
    """Ask a running job to stop. Raises UserError."""
    with master_of(folder) as master:
        master.call(methods.STOP_JOB, pb.StopJobRequest(reason="shoal stop"))


def scale(folder: JobFolder, workers: int | None, servers: int | None = None) -> None:
    """Change how many workers or servers a running job wants. Raises UserError."""
    with master_of(folder) as master:
        have(master, workers, servers)


def rebalance(folder: JobFolder) -> bool:
    """Even out the load of the servers; True if rows move for it. Raises UserError."""
    with master_of(folder) as master:
        return rebalanced(master)


def process(folder: JobFolder, role: str, index: int) -> int:
    """The process id of a master, server or worker of a running job. Raises UserError."""
    if role != "master" or index == 0:
        found = process_of(folder.config, role, index)
        if found is not None:
            return found
    stacks(folder, role, index)  # says what there is, if this is no process of the job
    raise UserError(f"{role}-{index} does not run now: see shoal status")


def stacks(folder: JobFolder, role: str, index: int) -> list[pb.ProcessStacks]:
    """The stacks of the threads of a running job; role and index as the master takes them.

    Raises UserError.
    """
    with master_of(folder) as master:
        return stacks_of(master, role, index)
