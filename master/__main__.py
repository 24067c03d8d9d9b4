"""`python -m shoal.master`: the process of one job's master.

Owns the job folder's lock, the address file, signals and the exit code.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

import click
import grpc

from shoal.base import log
from shoal.base.disk import temporary
from shoal.base.disk.job_folder import JobFolder
from shoal.base.disk.wholefile import write_json
from shoal.base.thinned import ThinnedFile
from shoal.config.job import JobConfig
from shoal.errors import (
    EXIT_INTERRUPTED,
    EXIT_JOB_FAILED,
    EXIT_SUCCESS,
    EXIT_USER_ERROR,
    FULL,
    UserError,
    without_secrets,
)
from shoal.files.described import DescribedSources
from shoal.files.storage import LocalStorage
from shoal.master.calls.found_ids import FoundIds
from shoal.master.calls.slot_loads import SlotLoads
from shoal.master.calls.stacks import Stacks
from shoal.master.client_service import ClientService
from shoal.master.figures.kubeflow import StatusServer, TrainJobReports
from shoal.master.figures.recorder import Recorder
from shoal.master.figures.step_losses import StepLosses
from shoal.master.job.job import Job
from shoal.master.job.members.launcher import Launcher
from shoal.master.journal.journal import Journal, JournalError
from shoal.master.journal.kept_audit import audit_apart
from shoal.master.journal.resume import resume_job
from shoal.master.journal.witnesses import Witnesses, compare_files, told_before
from shoal.master.launchers.processes import ProcessLauncher, shoal_command
from shoal.master.machine import processor_time
from shoal.master.result import result_of
from shoal.master.runner import Runner
from shoal.master.service import MasterService
from shoal.master.shared_job import SharedJob
from shoal.master.trained import keep_trained
from shoal.master.work.phases import Phase
from shoal.proto import shoal_pb2 as pb
from shoal.proto.channels import serving
from shoal.proto.identity import Identity, IdentityError
from shoal.proto.memory import share_heaps
from shoal.proto.values.positions import position_json
from shoal.proto.wire import transport
from shoal.proto.wire.open_files import allow_open_files
from shoal.security.identities import ensure, listening_address, own_identity
from shoal.seed.pool import Pool

logger = logging.getLogger(__name__)

HOST = "127.0.0.1"
RPC_THREADS = 16
"""Handlers only take the job's lock for a moment, so few threads serve many workers."""


STOP_SECONDS = 10.0
"""For calls under way to end, when the master does."""


class RunningError(UserError):
    """Another master runs the job."""


@contextlib.contextmanager
def locked(folder: JobFolder, job_name: str) -> Iterator[None]:
    """Hold the job folder's lock.

    Raises RunningError if another master holds it.
    """
    with folder.lock.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunningError(f"job {job_name} is already running in {folder.path}") from None
        yield


def exit_code_of(job: Job) -> int:
    """The process's exit code for a job that has ended."""
    if job.phases.phase == Phase.SUCCEEDED:
        return EXIT_SUCCESS
    if job.phases.phase == Phase.STOPPED:
        return EXIT_INTERRUPTED
    failure = job.phases.failure
    if failure is not None and failure.kind == pb.USER_ERROR:
        return EXIT_USER_ERROR
    return EXIT_JOB_FAILED


def job_clock(last: tuple[float, float] | None) -> Callable[[], float]:
    """The job's seconds: from 0, and going on where an earlier master's journal ends.

    last: the wall clock and the job's seconds there; None: there was none.

    While no master was there, time passed as the wall clock says; but never backwards,
    as that may have been set.
    """
    base = time.monotonic()
    if last is not None:
        wall, seconds = last
        base -= seconds + max(0.0, time.time() - wall)
    return lambda: time.monotonic() - base


def serve(
    handlers: serving.Handlers,
    name: str,
    folder: JobFolder,
    address: str,
    identity: Identity | None,
    health: str = "",
) -> tuple[grpc.Server, str]:
    """Serve at an address; if its port is 0, on that of the master before, if it is free.

    The job's processes look for a new master at the old address first. Returns the address, too.
    """
    before = folder.master_address()
    if address.endswith(":0") and before is not None and not before.startswith("unix:"):
        with contextlib.suppress(OSError):
            return serving.serve(handlers, before, RPC_THREADS, name, identity)[0], before
    server, port = serving.serve(handlers, address, RPC_THREADS, name, identity, health)
    return server, serving.bound(address, port)


def _close(journal: Journal) -> None:
    with contextlib.suppress(JournalError):  # which has ended the job, and is in its result
        journal.close()


MakeLauncher = Callable[[Runner, str], Launcher]
"""The launcher that posts to a runner, for a master at an address (host:port)."""


def run_job(
    config: JobConfig,
    folder: JobFolder,
    port: int,
    *,
    host: str = HOST,
    make_launcher: MakeLauncher | None = None,
    stop_signals: Sequence[signal.Signals] = (signal.SIGINT, signal.SIGTERM),
    resume: str = "",
    health: str = "",
    publish: Callable[[], None] = lambda: None,
    identity: Identity | None = None,
) -> int:
    """Run the job, write its result, and return the exit code.

    Goes on with a job whose journal is in the folder. The caller sees to it that there is one
    master only.

    make_launcher: by default, of processes of this machine.
    stop_signals: those that stop the job.
    resume: names a resumption, of a job whose processes have all ended; done once.
    health: host:port that answers the health check without encryption.
    publish: called as soon as the result is written.
    identity: of the master, by default that of its files.

    Raises UserError if the journal is damaged; OSError if the port is taken.
    """
    share_heaps()
    allow_open_files()
    identity = identity or own_identity(config, folder, "master")
    with contextlib.ExitStack() as stack:
        journal = Journal(folder.journal, config, begun=bool(resume))
        stack.callback(_close, journal)
        losses = None
        if journal.config.step_losses:
            losses = stack.enter_context(closing(StepLosses(folder.losses)))
        job = journal.restore()
        witnesses = Witnesses(journal, () if resume else told_before(job))
        if journal.begun:
            compare_files(witnesses, folder, config)
        clock = job_clock(journal.last if journal.begun else None)
        # Of a job that has succeeded only what follows is left: its master was killed before that.
        unresumed = bool(resume) and resume not in job.resumptions
        resumed = unresumed and job.phases.phase != Phase.SUCCEEDED
        if resumed:
            # On Kubernetes a master has not the memory of a server, nor its log.
            logs = folder if make_launcher is None else None
            resume_job(job, config, journal, resume, clock(), logs)
        # Not before: a job that cannot be resumed keeps its result.
        folder.result.unlink(missing_ok=True)

        def resume_again(_: Job, now: float) -> None:
            token, bad = f"{job.resumptions[-1]}+", job.checkpoints.refused
            resume_job(job, config, journal, token, now, bad=bad)

        shared = SharedJob(job, clock=clock, commit=journal.commit, witnesses=witnesses)
        # Pods have machines of their own.
        cores = {"cores": processor_time} if make_launcher is None else {}
        runner = Runner(shared, resume_again, identity, **cores)
        for number in stop_signals:
            signal.signal(
                number, lambda received, _: runner.request_stop(signal.Signals(received).name)
            )
        stacks = stack.enter_context(closing(Stacks(shared, identity)))
        index = DescribedSources(LocalStorage(folder.index))
        service = MasterService(shared, losses, stacks, index)
        clients = ClientService(
            shared,
            stacks,
            stack.enter_context(closing(FoundIds(shared, identity))),
            stack.enter_context(closing(SlotLoads(shared, identity))),
            audit=partial(audit_apart, folder),
            trouble=lambda: journal.trouble,
            metrics=ThinnedFile(folder.metrics).text,
        )
        name = transport.peer_name(config.token, "master")
        here = f"{host}:{port}"
        if make_launcher is None and not port:
            here = listening_address(config, folder, "master")
        handlers: serving.Handlers = service.handlers() | clients.handlers()
        if config.serve_metrics:
            from shoal.master.figures.metrics import serving_metrics  # late: its imports take long

            handlers = stack.enter_context(serving_metrics(shared, handlers, folder))
        server, address = serve(handlers, name, folder, here, identity, health)
        try:
            write_json(folder.master, {"address": address, "pid": os.getpid()})
            logger.info("job %s in %s, serving on %s", config.job_name, folder.path, address)
            if make_launcher is None:
                pool = Pool.of(folder)
                stack.enter_context(pool or contextlib.nullcontext())
                launcher: Launcher = ProcessLauncher(
                    runner.post,
                    folder,
                    shoal_command(folder, address),
                    lambda start: ensure(config, folder, start.process.role, start.process.index),
                    pool,
                )
            else:
                launcher = make_launcher(runner, address)
            # Not that of job.json: a resumption may have changed it.
            reports = TrainJobReports(shared, StatusServer.of(os.environ))
            recorder = Recorder(shared, folder, journal.config)
            # After the result is there, and also if there is none.
            stack.callback(recorder.wait_for_uploads)
            stack.callback(reports.wait)
            with recorder, reports:
                runner.run(launcher, again=journal.begun, resumed=resumed)
            keep_trained(shared, index)
            result = shared.look(result_of) | {"journal": position_json(shared.position())}
            write_json(folder.result, result)
            # Before uploads and reports, which are waited for at the end.
            publish()
        finally:
            folder.master.unlink(missing_ok=True)
            # Where a thread of gRPC cannot be started, or has ended, nobody ends the wait.
            with contextlib.suppress(RuntimeError):
                server.stop(grace=1.0).wait(STOP_SECONDS)
        return exit_code_of(job)


@click.command(context_settings={"token_normalize_func": lambda name: name.replace("_", "-")})
@click.option(
    "--config",
    "config_path",
    required=True,
    type=click.Path(path_type=Path),
    help="job.json in the job's folder.",
)
@click.option(
    "--port",
    default=0,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="Port to serve on; 0 takes a free one.",
)
@click.option("--resume", default="", help="Name of this resumption of a job that has ended.")
def main(config_path: Path, port: int, resume: str) -> None:
    """Run the master of one job until the job has ended."""
    try:
        config = JobConfig.load(config_path)
        log.configure("master", config.log_level, config.log_format, job=config.job_name)
        # Not resolve(): a job's processes are recognised by the path in their command
        # lines, which must be the one that the client wrote.
        folder = JobFolder(config_path.absolute().parent)
        with locked(folder, config.job_name):
            code = run_job(config, folder, port, resume=resume)
            # As the client would, which may have been killed. Under the lock: the job may be
            # resumed as soon as it is free, with another temporary folder.
            temporary.remove(folder)
        sys.exit(code)
    except (UserError, OSError, IdentityError) as error:
        if isinstance(error, OSError) and error.errno in FULL and not error.filename:
            logger.exception("the master ends")  # only its lines tell which file has no room
        click.echo(f"Error: {without_secrets(str(error))}", err=True)
        sys.exit(EXIT_USER_ERROR if isinstance(error, UserError) else EXIT_JOB_FAILED)
    except Exception:
        # At once: threads of a master that broke half way may never end by themselves.
        logger.exception("the master failed")
        logging.shutdown()
        os._exit(EXIT_JOB_FAILED)


if __name__ == "__main__":
    main(prog_name="python -m shoal.master")
