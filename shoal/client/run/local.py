"""Running a job from this process: start its master, follow it, end with its result.

Owns what the command line and the Python API share. display.py shows the job; checks.py and
claim.py refuse wrong input beforehand.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from shoal.base.disk import temporary
from shoal.base.disk.job_folder import JobFolder
from shoal.base.modules.module_texts import changed
from shoal.checkpoints.outputs import check_output, try_output
from shoal.client.ask.local_jobs import LocalJob
from shoal.client.found.claim import claimed, reclaimed, take_in
from shoal.client.found.following import CALL_SECONDS, POLL_SECONDS, STOP_SECONDS, Interruptions
from shoal.client.found.processes import kill_job
from shoal.client.run.beginning import with_beginning
from shoal.client.run.checks import check_inputs
from shoal.client.run.engine import with_engine
from shoal.client.run.series import Series
from shoal.client.show.display import Display
from shoal.config.flags import flag
from shoal.config.groups.running import RELAUNCH_WINDOW_SECONDS
from shoal.config.job import RESUMABLE_IMAGES, JobConfig
from shoal.errors import UserError
from shoal.proto import faults, methods
from shoal.proto import shoal_pb2 as pb
from shoal.result import JobFailedError, JobResult
from shoal.security.identities import INSECURE, prepare
from shoal.seed.pool import Pool
from shoal.seed.starting import prepared

SILENCE_SECONDS = 5.0
"""Of a master, until it is told."""

LOG_LINES = 20
"""Lines of the master's log that are shown if it dies."""


def run_job(
    config: JobConfig,
    display: Display,
    interruptions: Interruptions | None = None,
    written: Path | None = None,
) -> JobResult:
    """Run the job to its end and return its result, whatever its state.

    It leaves no process behind, even if it raises. SIGINT, SIGTERM and SIGHUP stop the job; a
    second one kills it. interruptions: through them others may stop or kill it, too. written: a
    folder with files that `config` names, which is moved into the job's folder.

    Raises UserError before anything is started, JobFailedError if the master dies
    without a result.
    """
    if config.image:
        from shoal.client.run.remote import run_remote_job  # late: the Kubernetes library is large

        return run_remote_job(config, display, interruptions, written)
    config = config.resolved()
    doubts = check_inputs(config)
    config = with_engine(config)
    with Series(config) as series:
        if (done := series.done()) is not None:
            _tell(display, f"job {config.job_name} has succeeded before: nothing is to be done")
            return done
        config = with_beginning(series.continued())
        check_output(config)
        try_output(config)
        with claimed(config) as folder:
            if written is not None:
                config = take_in(written, folder, config)
            doubts += filter(None, [config.unprotected])
            series.begins()
            result = _follow(folder, config, display, interruptions, doubts)
            _tell(display, series.ended(result))
            return result


def resume_job(
    job_dir: str,
    changes: dict[str, Any],
    display: Display,
    interruptions: Interruptions | None = None,
) -> JobResult:
    """Go on with a job that was stopped, failed or killed; as `run_job` otherwise.

    changes: of the configuration, among `RESUMABLE`. The job runs where it ran before.
    """
    if JobFolder(Path(job_dir)).templates.is_file():
        from shoal.client.run.remote_resume import resume_from_folder

        return resume_from_folder(job_dir, changes, display)
    if image := sorted(changes.keys() & set(RESUMABLE_IMAGES)):
        raise UserError(
            f"{flag(image[0])} is for jobs on Kubernetes; {job_dir} is a job on this machine"
        )

    def checked(config: JobConfig) -> JobConfig:
        check_inputs(config)
        check_output(config)
        try_output(config)
        return with_engine(config)

    folder = JobFolder(Path(job_dir).absolute())
    with reclaimed(folder, changes, checked) as (folder, config), Series(config) as series:
        # Whatever was left of it must not speak for the job any more.
        kill_job(folder.config)
        series.begins()
        doubts = [
            f"{module} has changed since the job began: what is left is trained by its text of now"
            for module in changed(folder.modules)
        ]
        # A user mends a module, and resumes the job that failed by it.
        shutil.rmtree(folder.modules, ignore_errors=True)
        resume = secrets.token_hex(8) if folder.journal.is_dir() else ""
        result = _follow(folder, config, display, interruptions, doubts, resume=resume)
        _tell(display, series.ended(result))
        return result


def _tell(display: Display, text: str) -> None:
    """Show a text, if there is any, while no job runs."""
    if text:
        with display:
            display.event(text)


def _follow(
    folder: JobFolder,
    config: JobConfig,
    display: Display,
    interruptions: Interruptions | None,
    doubts: Sequence[str] = (),
    resume: str = "",
) -> JobResult:
    """Run the job in its claimed folder to its end; no process is left behind.

    doubts: warnings that are shown first. resume: names a resumption of the job.
    """
    before, began = _identity(folder.result), time.monotonic()
    with (
        _no_process_left(folder),
        display,
        interruptions or Interruptions() as interruptions,
    ):
        pool = Pool.of(folder)
        prepare(config, folder)
        display.started(config, folder)
        for doubt in [*doubts, *([INSECURE] if config.insecure else [])]:
            display.event(f"warning: {doubt}")
        with pool or contextlib.nullcontext():
            code = _Run(folder, config, display, interruptions, pool, resume, before).follow()
    seconds = time.monotonic() - began
    return _result(config, folder, code, before, seconds if interruptions.count else None)


@contextlib.contextmanager
def _no_process_left(folder: JobFolder) -> Iterator[None]:
    """Make a temporary folder for the job's processes; at the end remove it, and kill them.

    Raises UserError if it cannot be made.
    """
    try:
        temporary.make(folder)
        yield
    finally:
        kill_job(folder.config)
        temporary.remove(folder)


def master_command(config_path: Path) -> list[str]:
    """Python's arguments for a job's master."""
    return ["-m", "shoal.master", "--config", str(config_path)]


class _Run:
    """One master process and the loop that follows it."""

    def __init__(
        self,
        folder: JobFolder,
        config: JobConfig,
        display: Display,
        interruptions: Interruptions,
        pool: Pool | None,
        resume: str = "",
        before: tuple[int, int] | None = None,
    ) -> None:
        """resume: names a resumption of the job. before: `_identity` of an earlier result."""
        self._folder = folder
        self._before = before
        self._pool = pool
        self._resume = ["--resume", resume] if resume else []
        self._limit = config.relaunch_limit
        self._killed = False
        self._display = display
        self._interruptions = interruptions
        self._job = LocalJob(folder)
        self._stopping_since: float | None = None
        self._stop_sent = False
        self._heard = time.monotonic()
        self._answered = self._told = False

    def follow(self) -> int:
        """Start the master and follow the job to its end; returns the master's exit code.

        A master that a signal ended is started again, as a worker would be: the next one
        goes on from the journal with the processes that are there.
        """
        killed: list[float] = []
        with contextlib.closing(self._job):
            while True:
                code = self._follow_master()
                ended = _identity(self._folder.result) not in (None, self._before)
                if code >= 0 or self._killed or ended:
                    return code
                now = time.monotonic()
                killed = [at for at in killed if now - at < RELAUNCH_WINDOW_SECONDS] + [now]
                if len(killed) > self._limit:
                    return code
                self._display.event(
                    f"the master was killed by signal {-code}; it is started again, "
                    f"restart {len(killed)} of at most {self._limit} within an hour"
                )

    def _follow_master(self) -> int:
        self._heard, self._answered, self._told = time.monotonic(), False, False
        with (self._folder.logs / "master.log").open("ab") as log:
            # In a session of its own: Ctrl-C is ours to translate, and a closed
            # terminal must not take the master before it has ended the others.
            start = prepared(
                [*master_command(self._folder.config), *self._resume],
                {**os.environ, faults.PROCESS_VARIABLE: "master-0"},
                self._pool,
            )
            process = start(log)
            try:
                while not process.wait(POLL_SECONDS):
                    if self._must_kill():
                        self._killed = True
                        break
                    self._look()
            finally:
                # The master first, so that it does not start anew what is killed next.
                os.kill(process.pid, signal.SIGKILL)
                process.wait()
                code = process.reap()
        return -signal.SIGKILL if self._killed or code is None else code

    def _must_kill(self) -> bool:
        if self._display.gone:
            self._interruptions.stop()
        if self._interruptions.count and self._stopping_since is None:
            self._stopping_since = time.monotonic()
            self._display.event("stopping; interrupt again to kill the job at once")
        if self._stopping_since is None:
            return False
        late = time.monotonic() - self._stopping_since > STOP_SECONDS
        return late or self._interruptions.count > 1

    def _look(self) -> None:
        """Call the master once: tell it to stop if so wanted, and show its status."""
        # A master that does not answer is asked again in the next round; whether it lives is
        # known from its process.
        try:
            if self._stopping_since is not None and not self._stop_sent:
                with self._job.master(CALL_SECONDS) as master:
                    request = pb.StopJobRequest(reason="interrupted by the user")
                    master.call(methods.STOP_JOB, request)
                self._stop_sent = True
            status = self._job.status()
        except UserError:
            self._tell_of_silence()
        else:
            self._display.update(status)
            self._heard, self._answered, self._told = time.monotonic(), True, False

    def _tell_of_silence(self) -> None:
        """Say, once, that the master has not answered for some time."""
        silent = time.monotonic() - self._heard
        if silent >= SILENCE_SECONDS and not self._told:
            self._told = True
            log = self._folder.logs / "master.log"
            what = (
                f"warning: the master has not answered for {silent:.0f} s"
                if self._answered
                else f"waiting for the master to start, for {silent:.0f} s so far"
            )
            self._display.event(f"{what}; see {log}")


def _identity(path: Path) -> tuple[int, int] | None:
    """Numbers that differ between a file and one that replaces it; None without a file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def _result(
    config: JobConfig,
    folder: JobFolder,
    code: int,
    before: tuple[int, int] | None,
    interrupted: float | None,
) -> JobResult:
    """The job's own result, or one for a job that was killed on request.

    before: `_identity` of an earlier result, which a refused resumption leaves in its place.
    interrupted: seconds that it ran until then; None if nobody interrupted it.

    Raises JobFailedError with the end of the master's log if it died, or refused to run.
    """
    if _identity(folder.result) != before:
        with contextlib.suppress(OSError, ValueError):
            return JobResult.read(folder.result)
    if interrupted is not None:
        name, path = config.job_name, folder.path
        return JobResult(name, config.command, "stopped", path, seconds=interrupted)
    log = folder.logs / "master.log"
    try:
        with log.open(errors="replace") as file:
            last = "".join(deque(file, maxlen=LOG_LINES)).rstrip()
    except OSError:
        last = ""
    how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
    raise JobFailedError(
        f"the job's master {how} without a result; the end of {log}:\n{last or '(empty)'}"
    )
