"""The handling of a leased range that failed: it updates the queues and the list of bad records.

Stands between the verdicts (poison.py) and the three places in which ranges wait: the training
tasks, a round of evaluation, the predictions. Ends the job if more records are bad than
--max-bad-records allows. No I/O.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from shoal.base.words import one_line
from shoal.config.flags import flag
from shoal.master.work.evaluation.evaluation import Evaluations
from shoal.master.work.failures import Failure
from shoal.master.work.ids import WorkerId
from shoal.master.work.record import JobRecord
from shoal.master.work.tasks.poison import BadRecords, after_failure, piece
from shoal.master.work.tasks.tasks import TaskBoard
from shoal.master.work.units import Span, Task, TaskQueue
from shoal.proto import shoal_pb2 as pb

SHOWN = 240
"""Characters of a message about a range: logs and result.json have the whole error."""

STORAGE_ROUNDS = 3
"""Times at which workers may try one range for all of --storage-patience-seconds."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class FailureCause:
    """The failure of a worker at a range.

    failure: its span is the part that the worker blames, if known. crash: the worker's process
    has ended, and not from outside. worker: the holder of the lease.
    """

    failure: Failure
    crash: bool
    worker: WorkerId


@dataclass(frozen=True)
class Consequence:
    """The consequence of a failed range for the job.

    failure: the job ends with it; None if the job goes on. repeated: the range had failed in the
    same way before. Another start of the worker's process then does not count towards the limit of
    restarts, as the range is at fault.
    """

    failure: Failure | None
    repeated: bool


class RangeFailures:
    """limit: records that may be given up."""

    def __init__(self, limit: int, record: JobRecord) -> None:
        self._record = record
        self.bad = BadRecords(limit)
        self.skipped: list[int] = []

    def resumed(self, limit: int) -> None:
        """The job begins again; what was given up is tried again."""
        self.bad.resumed(limit)
        self.skipped = []

    def training(
        self, board: TaskBoard, task: Task, cause: FailureCause, touched: int, now: float
    ) -> Consequence:
        """A TRAIN task failed. touched: head that some server may have."""
        case = _Case(self.bad.limit, cause)
        given_up = board.retry(task.id, touched, case.judge)
        if given_up is not None and given_up.span is not None:
            record = board.record_of(given_up)
            # Retention deletes many at once, of which each would fail in a task of its own.
            bad = replace(record, end=record.start + max(cause.failure.gone, 1))
            board.exclude(bad)
            given_up = replace(given_up, span=bad)
        return self._conclude(case, given_up, now)

    def evaluation(
        self, evaluations: Evaluations, task: Task, cause: FailureCause, now: float
    ) -> Consequence:
        """An EVALUATE task failed."""
        case = _Case(self.bad.limit, cause)
        assert task.span is not None
        if pieces := case.judge(task, task.span):
            evaluations.retry(task, pieces)
            return self._conclude(case, None, now)
        nothing_left = evaluations.give_up(task)
        consequence = self._conclude(case, task, now)
        if nothing_left and consequence.failure is None:
            message = f"no record of {flag(f'{task.data}_data')} can be evaluated: "
            failure = replace(cause.failure, message=message + cause.failure.message)
            return replace(consequence, failure=failure)
        return consequence

    def prediction(
        self, queue: TaskQueue, task: Task, cause: FailureCause, now: float
    ) -> Consequence:
        """A PREDICT task failed."""
        case = _Case(self.bad.limit, cause, "predicted")
        assert task.span is not None
        if pieces := case.judge(task, task.span):
            queue.retry(task.id, pieces)
            return self._conclude(case, None, now)
        queue.give_up(task.id)
        self.skipped.append(task.position)
        return self._conclude(case, task, now)

    def _conclude(self, case: _Case, given_up: Task | None, now: float) -> Consequence:
        failure = case.cause.failure
        if case.away and case.rest is not None:
            if case.waited < STORAGE_ROUNDS:
                self._record.note(now, shortened(f"{case.rest} goes back: {failure.message}"))
                return Consequence(None, False)
            message = (
                f"{case.rest} could not be {case.done}, {case.waited} times: {failure.message}. "
                "When the storage is there again, the job goes on with --resume."
            )
            return Consequence(replace(failure, kind=pb.USER_ERROR, message=message), False)
        if case.hopeless:
            assert case.rest is not None
            message = (
                f"{case.rest} ended the process of a worker {case.crashes} times, the last time: "
                f"{failure.message} --max-bad-records 1 or more has the record found and left out."
            )
            return Consequence(replace(failure, message=message, span=case.rest), True)
        if given_up is None or given_up.span is None:
            if case.rest is not None:
                self._tell(case, case.rest, now)
            return Consequence(None, case.repeated)
        record = self.bad.of(given_up, given_up.span, failure)
        if self.bad.add(record):
            many = "bad record" if record.records == 1 else f"{record.records} bad records"
            self._record.note(now, shortened(f"{many}: {record}"))
            logger.info("%s", failure.traceback)
        if self.bad.exceeded:
            return Consequence(self.bad.explained(record, failure), case.repeated)
        return Consequence(None, case.repeated)

    def _tell(self, case: _Case, rest: Span, now: float) -> None:
        what = "and cut to find the record at fault" if case.was_cut else "and tried again"
        error = case.cause.failure.error or case.cause.failure.message
        text = f"{rest} failed, {what}: {error}"
        if case.known:
            logger.info("%s", text)  # its first failure was told, the record at fault will be
        else:
            self._record.note(now, shortened(text))


def shortened(text: str) -> str:
    """The first line of a message that quotes an error, of at most `SHOWN` characters."""
    return one_line(text.partition("\n")[0], SHOWN)


class _Case:
    """One verdict, and what of it is to be told. done: what was to be done, "read"."""

    def __init__(self, limit: int, cause: FailureCause, done: str = "read") -> None:
        self._limit = limit
        self.done = done
        self.cause = cause
        self.rest: Span | None = None
        self.was_cut = self.repeated = self.hopeless = self.known = False
        self.crashes = self.waited = 0
        self.away = cause.failure.kind == pb.STORAGE

    def judge(self, task: Task, rest: Span) -> Sequence[Task]:
        """Return the tasks to give out again for a failed one; nothing if it is to be given up."""
        self.rest = rest
        if self.away:
            # Not the range's fault: it goes back as it is, and nothing is counted against it.
            self.waited = 1 + (task.waited if rest == task.span else 0)
            worker = self.cause.worker.index
            return (piece(task, rest, waited=self.waited, failed_on=worker),)
        crash = self.cause.crash
        pieces = after_failure(
            task,
            rest,
            suspected=self.cause.failure.span,
            crash=crash,
            worker=self.cause.worker,
        )
        self.was_cut = len(pieces) > 1
        self.crashes = (0 if rest != task.span else task.crashes) + crash
        self.repeated = crash and (self.crashes > 1 or task.suspect)
        self.known = task.suspect or bool(task.failures or task.crashes)
        # To find the record costs the start of a process at each step, in vain where none
        # may be given up.
        if crash and not self._limit and (self.was_cut or not pieces):
            self.hopeless = True
            return (piece(task, rest),)
        return pieces
