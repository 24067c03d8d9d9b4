"""The process of a parameter server: `python -m shoal.ps`.

Owns the process's life: listen, register with the master, serve, end. The calls
are in service.py.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import click

from shoal.base import log
from shoal.base.disk.job_folder import JobFolder
from shoal.base.signals import on_signal
from shoal.config.job import JobConfig
from shoal.errors import EXIT_JOB_FAILED, EXIT_USER_ERROR, StorageError, UserError
from shoal.proto import faults, methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.channels import rpc, serving
from shoal.proto.errors import CallError
from shoal.proto.identity import IdentityError
from shoal.proto.memory import keep_freed_memory
from shoal.proto.plane.hello import lacking_tls
from shoal.proto.protocol import own_protocol
from shoal.proto.values.routing import Routing
from shoal.proto.wire import transport
from shoal.proto.wire.open_files import allow_open_files
from shoal.ps.drain import MASTER_SECONDS, drain
from shoal.ps.push_samples import PushSamples
from shoal.ps.saved.progress import StoppedError
from shoal.ps.saved.recovery import RefusedError, Sources
from shoal.ps.service import ParameterServer
from shoal.ps.update_log.place import sink_of
from shoal.ps.update_log.space import LogSpace
from shoal.security.identities import listening_address, own_identity

logger = logging.getLogger(__name__)

SHUTDOWN_GRACE_SECONDS = 5.0
"""Time for calls under way, once asked to end."""

TELL_SECONDS = 5.0
"""For the master to answer while a worker waits for this server."""

LOOK_SECONDS = 1.0
"""Between looks whether the master is there, which asks about once a second."""


THREADS = 4
"""For workers that register; their pulls and pushes have a thread for each connection."""


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--config", required=True, help="The job's job.json.")
@click.option("--index", required=True, type=click.IntRange(0), help="Which server this is.")
@click.option("--incarnation", default=0, type=click.IntRange(0), help="Its number of restarts.")
@click.option(
    "--master",
    default="",
    help="host:port of the job's master. Without one the server serves alone, as the "
    "benchmarks need it, and prints its own host:port.",
)
@click.option(
    "--address",
    default="",
    help="host:port to listen on; 0: any free port. Default: as the job's --tls says.",
)
@click.option(
    "--advertise",
    default="",
    help="host:port at which the others reach this server. Default: where it listens.",
)
@click.option(
    "--health",
    default="",
    help="host:port that answers the health check without encryption, for probes of Kubernetes.",
)
@click.option(
    "--grace",
    default=30.0,
    type=click.FloatRange(0),
    help="Seconds after SIGTERM until it is killed, for its rows to move, or a checkpoint.",
)
def main(
    config: str,
    index: int,
    incarnation: int,
    master: str,
    address: str,
    advertise: str,
    health: str,
    grace: float,
) -> None:
    """One parameter server of a shoal job. Started by the job's master."""
    try:
        job = JobConfig.load(config)
    except UserError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(EXIT_USER_ERROR)
    log.configure("ps", job.log_level, job.log_format, job=job.job_name, index=index)
    keep_freed_memory()
    allow_open_files()
    finite_only = job.nonfinite_gradients != "allow"
    server = ParameterServer(
        index,
        Routing.even(job.num_servers),
        finite_only=finite_only,
        synchronous=job.sync,
        storage_patience=job.storage_patience_seconds,
        sources=Sources(job.checkpoint_dir, job.restore_from, job.continue_from, job.first_rows),
        publish=job.publish,
    )
    server.moves.connect = lambda other, at: rpc.Connection(
        at, peer=transport.peer_name(job.token, "ps", other), identity=identity
    )
    on_signal(signal.SIGTERM, server.told_to_end)
    on_signal(signal.SIGINT, server.stopped.set)

    folder = JobFolder(Path(config).parent)
    try:
        address = address or listening_address(job, folder, f"ps-{index}.{incarnation}")
        identity = own_identity(job, folder, "ps", index)
        server.slow_tls = lacking_tls() if identity else ""
    except IdentityError as error:
        logger.error("cannot join the job: %s", error)
        sys.exit(EXIT_JOB_FAILED)

    def connect(patience: float, *, until_ready: bool = True) -> rpc.Connection:
        return rpc.Connection(
            master,
            patience=patience,
            cancelled=server.stopped,
            peer=transport.peer_name(job.token, "master"),
            identity=identity,
            address_now=folder.master_address,
            until_ready=until_ready,
        )

    connection = grpc_server = None
    ends = contextlib.ExitStack()
    try:
        restored = ""
        name = transport.peer_name(job.token, "ps", index)
        if master:
            server.take_calls(False)
        # First of all: what is restored takes as long as it takes, and probes and the master
        # are to find somebody meanwhile.
        served = server.handlers()
        if job.serve_metrics or job.tensorboard_dir:
            samples = PushSamples(server, job.metrics_hot_ids)
            served = samples.watching(served)
        if job.serve_metrics:
            from shoal.ps.metrics import serving_metrics  # late: its imports take long

            served = ends.enter_context(
                serving_metrics(server, samples, served, job, folder, incarnation)
            )
        grpc_server, port = serving.serve(
            served, address, THREADS, name, identity, health, server.admit
        )
        here = serving.bound(address, port)
        logger.info("listening on %s", here)
        if master:
            connection = connect(job.master_timeout_seconds)
            server.progress.keep_telling(_progress_teller(index, incarnation, connection))
            plan = _plan(server, index, incarnation, connection)
            if job.keeps_log:
                sink = sink_of(job, index, incarnation, connection, server.ownership, identity)
                space = LogSpace(job.log_bytes, grows=job.log_in_files and not job.log_mb)
                server.keep_log(sink, incarnation, space, server.stopped.set)
            restored = _restore(server, plan)
            update, held = server.held()
            request = pb.RegisterServerRequest(
                server=index,
                incarnation=incarnation,
                address=advertise or here,
                restored=restored,
                replayed=server.registration.replayed,
                journal=server.seen.position,
                has=server.last_pushes(),
                checkpoint=server.registration.checkpoint,
                update=update,
                held=held,
            )
            if server.registration.restarted:
                server.registration.workers.tell = _teller(index, incarnation, connection)
            _register(server, request, connection)
            if job.keeps_log:
                server.look_after_log()
            _serve_until_orphaned(server, job.master_timeout_seconds)
            if server.draining.is_set():
                drain_request = pb.DrainRequest(server=index, incarnation=incarnation)
                # A master that is not ready for long must not use up the time to end.
                to_master = connect(min(MASTER_SECONDS, grace / 2), until_ready=False)
                drain(server, drain_request, to_master, grace)
        else:
            click.echo(here)
            server.stopped.wait()
    except StoppedError:
        logger.info("told to end before it could serve")
    except StorageError as error:
        assert connection is not None
        _tell_storage_away(index, incarnation, job, error, connection)
        sys.exit(EXIT_JOB_FAILED)
    except UserError as error:
        assert connection is not None
        failure = pb.Failure(kind=pb.USER_ERROR, message=str(error))
        logger.error("%s", error)
        _tell_failed(index, incarnation, failure, connection)
        sys.exit(EXIT_USER_ERROR)
    except RefusedError as error:
        assert connection is not None
        failure = pb.Failure(kind=pb.USER_ERROR, message=str(error))
        _tell_failed(index, incarnation, failure, connection, error.number)
        sys.exit(EXIT_JOB_FAILED)
    except CallError as error:
        logger.error("cannot join the job: %s", error)
        sys.exit(1)
    finally:
        ends.close()
        if grpc_server is not None:
            grpc_server.stop(SHUTDOWN_GRACE_SECONDS).wait()
        if connection is not None:
            connection.close()
    logger.info("ended")


def _serve_until_orphaned(server: ParameterServer, timeout: float) -> None:
    """Return when the server is to end, or no master has asked for `timeout` seconds.

    Who holds the model must not hold it for ever if nobody is left to end it. Raises what kept
    the server from having one.
    """
    # Counted by looks, not read from a clock: a server that was itself stopped for a
    # while must first get the chance to be asked.
    silent = 0.0
    while not server.stopped.wait(LOOK_SECONDS):
        silent = 0.0 if server.asked.is_set() else silent + LOOK_SECONDS
        server.asked.clear()
        if server.draining.is_set():
            return
        if (failure := server.registration.failure) is not None:
            raise failure
        if silent > timeout:
            logger.error("leaving the job: no master has asked for %.0f s", silent)
            return


def _plan(
    server: ParameterServer, index: int, incarnation: int, connection: rpc.Connection
) -> pb.RestoreReply:
    """Ask the master for the server's restore plan, and take over the plan's routing table."""
    faults.point("before-restore-plan")
    plan = connection.call(
        methods.GET_RESTORE,
        pb.RestoreRequest(server=index, incarnation=incarnation, protocol=own_protocol()),
    )
    if plan.HasField("routing"):
        server.ownership.routing = Routing.from_message(plan.routing)
    return plan


def _restore(server: ParameterServer, plan: pb.RestoreReply) -> str:
    """Restore what is planned, if anything; in words, "" for nothing."""
    if plan.joins:
        server.registration.begin_empty()
        server.take_calls()
        return ""
    if not plan.again:
        server.registration.begin_anew()
        server.take_calls()
        return ""
    restored = server.registration.restore(plan)
    logger.info("%s", restored)
    return restored


def _tell_storage_away(
    index: int, incarnation: int, job: JobConfig, error: StorageError, connection: rpc.Connection
) -> None:
    """Ask the master to end the job: it cannot go on without the data that this server restores."""
    message = (
        f"{error}\nNothing is lost by this. When the storage is back, go on with: "
        f"shoal train --resume {job.job_dir}"
    )
    logger.error("%s", message)
    failure = pb.Failure(kind=pb.ENVIRONMENT, message=message)
    _tell_failed(index, incarnation, failure, connection)


def _tell_failed(
    index: int,
    incarnation: int,
    failure: pb.Failure,
    connection: rpc.Connection,
    refused_checkpoint: int = 0,
) -> None:
    """Tell the master why this server ends; as pb.ReportFailureRequest."""
    request = pb.ReportFailureRequest(
        role="ps",
        index=index,
        incarnation=incarnation,
        failure=failure,
        refused_checkpoint=refused_checkpoint,
    )
    try:
        connection.call(methods.REPORT_FAILURE, request)
    except CallError as problem:
        # The next incarnation tries again.
        logger.error("the master has not heard it: %s", problem)


def _teller(
    index: int, incarnation: int, connection: rpc.Connection
) -> Callable[[pb.LastPush], object]:
    """Has the master hear what a worker was told by earlier incarnations of this server."""

    def tell(acknowledged: pb.LastPush) -> object:
        request = pb.WorkerMetRequest(
            server=index, incarnation=incarnation, acknowledged=acknowledged
        )
        # Without waiting for a master that is away: the worker registers again.
        return connection.call(methods.WORKER_MET, request, deadline=TELL_SECONDS, patience=0.0)

    return tell


def _progress_teller(
    index: int, incarnation: int, connection: rpc.Connection
) -> Callable[[pb.ServerProgress], object]:
    """Has the master hear how far this server is."""

    def tell(progress: pb.ServerProgress) -> object:
        request = pb.ReportProgressRequest(server=index, incarnation=incarnation, progress=progress)
        # Repeated for a moment only, so that a master that has moved is found.
        return connection.call(
            methods.REPORT_PROGRESS, request, deadline=TELL_SECONDS, patience=TELL_SECONDS
        )

    return tell


def _register(
    server: ParameterServer, request: pb.RegisterServerRequest, connection: rpc.Connection
) -> None:
    reply = connection.call(methods.REGISTER_SERVER, request)
    server.moves.set_routing(reply.routing)
    server.moves.settle()
    server.registration.settle()
    for fence in reply.fences:
        server.fence(fence)
    server.ready.set()
    server.take_calls()


if __name__ == "__main__":
    threading.current_thread().name = "main"
    main()
