"""The process of a worker: `python -m shoal.worker`.

Owns the process's life: join the job, work, end, and tell the master why if not well.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
from pathlib import Path

import click

from shoal.base import log
from shoal.base.disk.job_folder import JobFolder
from shoal.base.garbage import lasting_imports
from shoal.base.signals import on_signal
from shoal.config.job import JobConfig
from shoal.errors import EXIT_JOB_FAILED, EXIT_USER_ERROR, UserError
from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.channels.rpc import Connection
from shoal.proto.errors import CallError
from shoal.proto.identity import Identity, IdentityError
from shoal.proto.memory import keep_freed_memory
from shoal.proto.values.positions import WitnessConnection
from shoal.proto.wire.open_files import allow_open_files
from shoal.proto.wire.transport import peer_name
from shoal.security.identities import own_identity
from shoal.worker.engines import check_backend, choose_engine_of, framework, import_framework
from shoal.worker.reports.heartbeat import Heartbeat
from shoal.worker.reports.progress import Progress

logger = logging.getLogger(__name__)

NEED = "workers need"


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--config", required=True, help="The job's job.json.")
@click.option("--index", required=True, type=click.IntRange(0), help="Which worker this is.")
@click.option("--incarnation", default=0, type=click.IntRange(0), help="Its number of restarts.")
@click.option("--master", required=True, help="host:port of the job's master.")
def main(config: str, index: int, incarnation: int, master: str) -> None:
    """One worker of a shoal job. Started by the job's master."""
    try:
        job = JobConfig.load(config)
    except UserError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(EXIT_USER_ERROR)
    progress = Progress(keep_steps=job.step_losses)
    log.configure(
        "worker",
        job.log_level,
        job.log_format,
        job=job.job_name,
        index=index,
        task=lambda: progress.task,
    )
    logger.info("begun, as process %d", os.getpid())
    keep_freed_memory()
    allow_open_files()
    # Read by TensorFlow when it is imported: its notes on CPU features are no news.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    # Before the long import of a framework: the first process of a container has no default
    # handlers, so a request to end that came meanwhile would be lost.
    for number in (signal.SIGTERM, signal.SIGINT):
        on_signal(number, progress.stopped.set)
    folder = JobFolder(Path(config).parent)
    try:
        identity = own_identity(job, folder, "worker", index)
    except IdentityError as error:
        logger.error("cannot join the job: %s", error)
        sys.exit(EXIT_JOB_FAILED)
    connection = WitnessConnection(
        master,
        patience=job.master_timeout_seconds,
        cancelled=progress.stopped,
        peer=peer_name(job.token, "master"),
        identity=identity,
        address_now=folder.master_address,
        until_ready=True,
    )
    try:
        with contextlib.ExitStack() as stack:
            if job.serve_metrics:
                from shoal.worker.metrics import serving_metrics  # late: its imports take long

                stack.enter_context(serving_metrics(progress, job, folder, index, incarnation))
            _work(job, folder, index, incarnation, connection, identity, progress)
    except CallError as error:
        logger.error("leaving the job: %s", error)
        sys.exit(EXIT_JOB_FAILED)
    finally:
        connection.close()
    logger.info("ended")


def _work(
    job: JobConfig,
    folder: JobFolder,
    index: int,
    incarnation: int,
    master: Connection,
    identity: Identity | None,
    progress: Progress,
) -> None:
    try:
        with lasting_imports():
            choose_engine_of(job)
            import_framework()
            check_backend()
    except (ImportError, UserError) as error:
        text = str(error) if isinstance(error, UserError) else framework().missing(NEED, error)
        logger.error("cannot work: %s", text)
        _report(master, index, incarnation, pb.Failure(kind=pb.USER_ERROR, message=text))
        sys.exit(EXIT_USER_ERROR)
    if progress.stopped.is_set():
        return
    with lasting_imports():
        from shoal.worker.code.kept_modules import KeptModules
        from shoal.worker.code.module import as_exception, load_module
        from shoal.worker.engines import chosen_engine
        from shoal.worker.loop import Worker, failure_of
        from shoal.worker.servers.group import ServerGroup
        from shoal.worker.servers.pull_requests import VALUE_TYPES

        engine = chosen_engine()  # is imported, too
    if not job.image:  # all workers are on this machine
        engine.share_cores(job.num_workers)

    servers = None
    cache_mb, cache_staleness = job.row_cache_limits
    heartbeat = Heartbeat(
        master,
        progress,
        index,
        incarnation,
        job.heartbeat_seconds,
        job.master_timeout_seconds,
    )
    try:
        servers = ServerGroup(
            master,
            index,
            incarnation,
            progress.stopped,
            token=job.token,
            patience=job.server_patience_seconds,
            identity=identity,
            value_type=VALUE_TYPES[job.wire_dtype],
            cache_bytes=cache_mb << 20,
            cache_staleness=cache_staleness,
            whole_updates=job.sync,
        )
        group = servers
        heartbeat.excused = lambda: group.away
        heartbeat.start()
        # Pods have the modules of their image, which does not change, and no folder in common.
        kept = None if job.image else KeptModules(folder.modules)
        module = load_module(job.model_zoo, job.model_def, job.model_params, kept)
        check_backend()
        worker = Worker(job, module, master, servers, progress, heartbeat, index, incarnation)
        worker.run()
        heartbeat.stop()
        heartbeat.beat()  # with the last steps
    except CallError:
        if progress.stopped.is_set():
            return  # the others of the job end too
        raise
    except BaseException as error:  # sys.exit() in the user's code is no end of the job's
        logger.exception("worker %d cannot go on", index)
        _report(master, index, incarnation, failure_of(as_exception(error)))
        sys.exit(EXIT_JOB_FAILED)
    finally:
        heartbeat.stop()
        if servers is not None:
            servers.close()


def _report(master: Connection, index: int, incarnation: int, failure: pb.Failure) -> None:
    request = pb.ReportFailureRequest(
        role="worker", index=index, incarnation=incarnation, failure=failure
    )
    try:
        master.call(methods.REPORT_FAILURE, request, patience=10.0)
    except CallError as error:
        logger.error("the master could not be told: %s", error)


if __name__ == "__main__":
    main()
