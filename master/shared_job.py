"""A job shared by threads: one at a time, and written down before anybody is answered.

Holds the one lock. No process is started, no call is made and no disk is waited for under it.
Every thread of the master asks and changes the job through here.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import traceback
from collections.abc import Callable
from typing import TypeVar

from shoal.config.job import JobConfig
from shoal.errors import UserError
from shoal.master.job.events import Event, JobFailed, Noted
from shoal.master.job.job import Job
from shoal.master.journal.journal import JournalError, StalledError
from shoal.master.journal.witnesses import Witnesses
from shoal.master.work.failures import Failure
from shoal.master.work.ids import Start
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

PATIENCE_SECONDS = 3.0
"""For a change to be written, before whoever made it is told to ask again."""

_NO_POSITION = pb.JournalPosition()


class SharedJob:
    """`job`, whose state is reached through `apply` only.

    clock: seconds, monotonic.
    commit: returns once what has changed the job is written down, and waits so many seconds
        for it; None: without end. Called before anybody is answered, or anything is done,
        because of it; without the lock, so that many wait for the disk at once.
    witnesses: of the journal that `commit` writes.
    """

    def __init__(
        self,
        job: Job,
        *,
        clock: Callable[[], float] = time.monotonic,
        commit: Callable[[float | None], None] = lambda _: None,
        witnesses: Witnesses | None = None,
    ) -> None:
        self._job = job
        self._clock = clock
        self._commit = commit
        self._witnesses = witnesses
        self._lock = threading.Lock()
        self._wake: Callable[[], None] = lambda: None

    def listen(self, wake: Callable[[], None]) -> None:
        """Call `wake` when the job has instructions, or its processes are to end."""
        self._wake = wake

    @property
    def config(self) -> JobConfig:
        """The job's configuration, as it is now."""
        return self._job.config

    def now(self) -> float:
        """The job's time."""
        return self._clock()

    def look(self, question: Callable[[Job, float], Result]) -> Result:
        """Call `question(job, now)`, which changes nothing, alone with the job.

        What it sees may not be written down yet: it is to be shown, and nothing more.
        """
        with self._lock:
            return question(self._job, self._clock())

    def answer(self, change: Callable[[Job, float], Result]) -> Result:
        """Apply a change as `apply` does, for a caller that asks again if writing stalls.

        Raises WireError (NOT_READY) then: the threads that answer are needed for others.
        """
        try:
            return self.apply(change, PATIENCE_SECONDS)
        except (StalledError, JournalError) as error:
            raise WireError(pb.NOT_READY, str(error)) from error

    def warn(self, text: str) -> None:
        """Show a warning to those who follow the job, unless the journal cannot be written."""
        with contextlib.suppress(WireError):
            self.answer(Noted(f"warning: {text}"))

    def apply(
        self, change: Callable[[Job, float], Result], patience: float | None = None
    ) -> Result:
        """Call `change(job, now)`, as of an event, alone with the job, and write down its events.

        patience: as of `commit`. Raises what both raise.
        """
        with self._lock:
            result = change(self._job, self._clock())
            wake = self._job.has_instructions or self._job.halted
        # Also where this call changed nothing: its answer may follow from a change that
        # another call has made and not yet written.
        self._commit(patience)
        if wake:
            self._wake()
        return result

    def note(self, event: Event[None]) -> None:
        """Tell the job of an event that nobody is answered for: it is written with the next one.

        At once if instructions follow from it. Raises what `apply` does.
        """
        with self._lock:
            event(self._job, self._clock())
            wanted = self._job.has_instructions or self._job.halted
        if wanted:
            self.apply(lambda *_: None)

    # ------------------------------------------------------------ the journal

    def position(self) -> pb.JournalPosition:
        """The last event of the journal on disk, to be told."""
        return self._witnesses.position() if self._witnesses is not None else _NO_POSITION

    def hear(self, start: Start, seen: pb.JournalPosition) -> None:
        """A process says how far it has seen the journal.

        If the journal has gone back the job fails, and WireError is raised.
        """
        if self._witnesses is None:
            return
        try:
            self._witnesses.hear(start, seen)
        except UserError as error:
            failure = Failure.of_user(str(error))
            self.answer(JobFailed(failure))
            raise WireError(pb.NOT_READY, str(error)) from error

    @property
    def all_heard(self) -> bool:
        """True if every process has spoken that may have seen more of the journal than there is."""
        witnesses = self._witnesses
        return witnesses is None or self.look(lambda job, _: witnesses.all_heard(job))

    # ------------------------------------------------------------ errors of ours

    def fail(self, failure: Failure) -> None:
        """End the job as failed; changes nothing once it has ended."""
        with contextlib.suppress(JournalError):
            self.apply(JobFailed(failure))

    def attempt(self, work: Callable[[], None]) -> bool:
        """Call `work`, whose failure is the job's; returns whether it had none.

        For all that a thread of its own does: nobody else would see what it raises.
        """
        try:
            work()
        except JournalError as error:
            # In memory only; whoever was not answered asks the next master.
            logger.error("%s", error)
            failure = Failure.internal(str(error))
            self.look(JobFailed(failure))
        except Exception as error:
            logger.exception("the master failed")
            self.fail(Failure.internal(f"the master failed: {error}", traceback.format_exc()))
        else:
            return True
        return False
