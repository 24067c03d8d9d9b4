"""What of a job is in a checkpoint: so that the ledger of a resumed job matches its model.

A server's share is its state after exactly the pushes that it names, the last one of each
worker, and shares are not of one moment. The journal says when the servers were asked to
fix their shares and when all had: a lease that ended before is in all of them, one that
began after is in none, and of those between the shares' own pushes say how much. A
checkpoint that was made of an older one and the log of updates has all that was pushed to
the end, of which the share's pushes tell as well. Owns that reasoning, and the choice of the
checkpoint.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from shoal.checkpoints.folders import Checkpoint, newest_good, numbers
from shoal.checkpoints.storage import open_storage
from shoal.config import RESUMABLE, JobConfig
from shoal.errors import UserError
from shoal.job_folder import JobFolder
from shoal.master import outcomes, segments
from shoal.master.applied import AppliedPush, applied_heads
from shoal.master.checkpoints import Checkpoints, Taken
from shoal.master.events import Event, RecordedJob, decode
from shoal.master.ids import WorkerId
from shoal.master.journal import Journal, job_of, read_segments, usable
from shoal.master.log_recovery import FromLog, checkpoint_of_log
from shoal.master.phases import Phase
from shoal.master.segments import Header
from shoal.master.spans import Interval
from shoal.master.status import position
from shoal.master.updates import Gradient
from shoal.master.witnesses import Witnesses
from shoal.master.work import Span, Task
from shoal.proto import shoal_pb2 as pb

logger = logging.getLogger(__name__)


@dataclass
class _Lease:
    """A TRAIN task that a worker held. began, ended: positions in the journal."""

    task: Task
    worker: WorkerId
    incarnation: int
    began: int
    ended: int | None = None
    head: int = 0  # of the span: on all servers
    touched: int = 0  # of the span: on at least one server
    fenced: Sequence[AppliedPush | None] = ()


class _Leases:
    """All leases of a job, from its journal; of what it was before, the intervals."""

    def __init__(self, job: RecordedJob, first: int) -> None:
        """first: the position of the first event that the job has not had."""
        self._job = job
        self.leases: list[_Lease] = []
        board = job.flow.work.board
        self.base = board.settled() if board is not None else []
        for slot in job.members.workers.values():
            # The one ahead begins later than the one at work.
            both = (job.leases.held(slot.id), job.leases.ahead(slot.id))
            for before, task in zip((2, 1), both, strict=True):
                if task is not None and task.kind == pb.TRAIN:
                    self.leases.append(_Lease(task, slot.id, slot.incarnation, first - before))

    def follow(self, number: int, event: Event) -> None:
        arguments = {name: decode(value) for name, value in event.arguments.items()}
        self._job.hear(event)
        worker = arguments.get("worker")
        held = self._job.leases.held(worker) if isinstance(worker, WorkerId) else None
        ahead = self._job.leases.ahead(worker) if isinstance(worker, WorkerId) else None
        if event.method in ("task_wanted", "task_ahead_wanted"):
            self._job.replay([event])
            task = self._job.leases.of(arguments["worker"], event.task)
            known = (held, ahead)
            if task is not None and task not in known and task.kind == pb.TRAIN:
                lease = _Lease(task, arguments["worker"], arguments["incarnation"], number)
                self.leases.append(lease)
            return
        if event.method == "resumed":
            self.leases = []
            self.base = [*arguments["in_model"]]
        elif held is not None and held.kind == pb.TRAIN:
            if event.method == "task_reported" and held.id == arguments["task_id"]:
                if isinstance(arguments["outcome"], outcomes.Done):
                    self._end(held, number, held.records, held.records)
                elif arguments["outcome"].kind != pb.INTERNAL:  # else a fence follows
                    trained = arguments.get("trained", outcomes.Trained())
                    done = max(trained.done, self._job.flow.work.done(held))
                    self._end(held, number, done, max(trained.touched, done))
            elif event.method == "fenced":
                done = self._job.flow.work.done(held)
                heads = applied_heads(held, arguments["pushes"], done)
                lease = self._end(held, number, *heads)
                lease.fenced = arguments["pushes"]
                if ahead is not None:
                    self._end(ahead, number, 0, 0)
        self._job.replay([event])

    def _end(self, task: Task, number: int, head: int, touched: int) -> _Lease:
        lease = next(each for each in reversed(self.leases) if each.task.id == task.id)
        lease.ended, lease.head, lease.touched = number, head, touched
        return lease


@dataclass
class _Given:
    """A TRAIN task of --sync: gradients of it that were admitted, with its records done then.

    whole: it was reported done.
    """

    task: Task
    gradients: list[tuple[Gradient, int]] = field(default_factory=list)
    whole: bool = False

    def intervals(self, unapplied: set[Gradient]) -> list[Interval]:
        """What of it is in a model that lacks these gradients, which came after all others."""
        there = [done for gradient, done in self.gradients if gradient not in unapplied]
        complete = self.whole and len(there) == len(self.gradients)
        head = self.task.records if complete else max(there, default=0)
        # A feed that shuffles says 0 until it is through: any record may be in it.
        touched = head if head or not there else self.task.records
        return _intervals(self.task, head, touched)


class _GivenTasks:
    """All that gradients of --sync were made of, from a job's journal."""

    def __init__(self, job: RecordedJob) -> None:
        self._job = job
        self._given: dict[int, _Given] = {}
        self._base: list[Interval] = []

    def follow(self, event: Event) -> None:
        arguments = {name: decode(value) for name, value in event.arguments.items()}
        updates = self._job.flow.updates
        if event.method == "resumed":
            self._given, self._base = {}, [*arguments["in_model"]]
        elif event.method == "gradient_offered":
            gradient, task_id = arguments["gradient"], arguments["task_id"]
            task = self._job.leases.of(gradient.worker, task_id)
            before = updates.counts.gradients
            self._job.replay([event])
            if task is not None and updates.counts.gradients > before:
                given = self._given.setdefault(task_id, _Given(task))
                given.gradients.append((gradient, arguments["records_done"]))
            return
        elif event.method == "task_reported" and isinstance(arguments["outcome"], outcomes.Done):
            task = self._job.leases.of(arguments["worker"], arguments["task_id"])
            if task is not None and task.kind == pb.TRAIN:
                self._given.setdefault(task.id, _Given(task)).whole = True
        self._job.replay([event])

    def applied(self) -> list[Interval]:
        """What is in the model now."""
        unapplied = self._job.flow.updates.unapplied()
        found = [i for given in self._given.values() for i in given.intervals(unapplied)]
        return [*self._base, *found]


def resume_job(
    job: RecordedJob,
    config: JobConfig,
    journal: Journal,
    token: str,
    now: float,
    folder: JobFolder | None = None,
) -> None:
    """Have a job go on from its newest good checkpoint, or else from its beginning.

    config: what the job is to go on with. folder: where a log of updates may be, which is done
    again after the checkpoint; None: not here. Raises UserError if it cannot.
    """
    if job.flow.phase == Phase.SUCCEEDED:
        raise UserError(f"--resume: job {config.job_name} has succeeded: nothing is left to do")
    restored: Taken | None = None
    checkpoint: Checkpoint | None = None
    in_model: list[Interval] = []
    there: list[int] = []
    known = {each.number: each for each in job.checkpoints.kept}
    if Checkpoints.enabled(job.config):
        try:
            root = open_storage(config.checkpoint_dir)
            # One that is whole may be unknown here: the master died before it wrote of it.
            there = numbers(root)
            nonces = {number: each.nonce for number, each in known.items()}
            checkpoint, refused = newest_good(root, nonces)
        except OSError as error:
            raise UserError(f"--resume: {config.checkpoint_dir}: {error}") from error
        for reason in refused:
            logger.warning("a checkpoint is not good: %s", reason)
        if refused and checkpoint is None:
            raise UserError(
                f"--resume: none of the job's checkpoints in {config.checkpoint_dir} is good: "
                f"{refused[0]}"
            )
        restored = known[checkpoint.number] if checkpoint is not None else None
    # Older ones are still good if this one goes bad; newer ones hold what the ledger has not.
    newest = restored.number if restored is not None else 0
    given_up = [number for number in there if number > newest]
    log = FromLog(None)
    if job.config.durability == "log":
        log = _log_done_again(job, config, folder, newest, now)
    if log.journal is not None:
        Witnesses(journal).compare("the log of updates", log.journal)
    if log.taken is not None:
        job.checkpoint_recovered(log.taken, newest, log.replayed, now)
        restored = log.taken
        checkpoint = Checkpoint(open_storage(config.checkpoint_dir), restored.number)
    if checkpoint is not None:
        journal.commit()
        in_model = _in_checkpoint(journal, checkpoint)
    changes = {name: getattr(config, name) for name in RESUMABLE}
    job.resumed(token, changes, restored, given_up, in_model, now, log.why)


def _log_done_again(
    job: RecordedJob, config: JobConfig, folder: JobFolder | None, base: int, now: float
) -> FromLog:
    if folder is None:
        return FromLog(None, why="on Kubernetes a master cannot do it again")
    try:
        return checkpoint_of_log(folder, job.config, config, base, position(job, now))
    except OSError as error:
        raise UserError(f"--resume: {config.checkpoint_dir}: {error}") from error


def _in_checkpoint(journal: Journal, checkpoint: Checkpoint) -> list[Interval]:
    """What of the training records is in a checkpoint, from as little of the journal as will do."""
    number, shares = checkpoint.number, checkpoint.shares
    moments, start = _found_moments(journal.path, number, snapshot=not journal.config.sync)
    job, first = RecordedJob(journal.config, lambda _: None), 0

    def events() -> Iterator[Event]:
        for segment in read_segments(journal.path, start):
            yield from (entry.event for _, entry in segment.entries())

    if start > 1:
        header = next(read_segments(journal.path, start)).header
        job, first = job_of(header), header.before.number
    return in_checkpoint(job, events(), moments, shares, first)


def in_checkpoint(
    job: RecordedJob,
    events: Iterable[Event],
    moments: Moments,
    shares: Sequence[Mapping[str, Any]],
    first: int = 0,
) -> list[Interval]:
    """What of the training records is in a checkpoint, as "trained" and "touched".

    job: as the events before `first` have left it, which are not later than that at which the
    checkpoint was begun; new, if that is 0. events: from there on. moments: of the checkpoint.
    shares: what each server wrote in its manifest.
    """
    if job.config.sync:
        # No update was under way when it was fixed, so all servers have the same ones.
        assert not first
        given = _GivenTasks(job)
        for event in itertools.islice(events, moments.fixed):
            given.follow(event)
        return _merged(given.applied())
    leases = _Leases(job, first)
    for at, event in enumerate(itertools.islice(events, moments.taken - first), first):
        leases.follow(at, event)
    _refuse_unknown(job, shares)
    found = list(leases.base)
    for lease in leases.leases:
        if lease.began > moments.fixed:
            continue
        if lease.ended is not None and lease.ended < moments.begun:
            head, touched = lease.head, lease.touched
        else:
            pushes = [_applied(lease, leases.leases, s, share) for s, share in enumerate(shares)]
            head, touched = applied_heads(lease.task, pushes, 0)
        found += _intervals(lease.task, head, touched)
    return _merged(found)


def _refuse_unknown(job: RecordedJob, shares: Sequence[Mapping[str, Any]]) -> None:
    """Raise UserError if a share has a push of a task that the journal never gave out."""
    board = job.flow.work.board
    for push in (push for share in shares for push in share["pushes"]):
        task, worker = push["task"], WorkerId(push["worker"])
        slot = job.members.workers.get(worker)
        later = slot is not None and push["incarnation"] > slot.incarnation
        if later or (task and (board is None or board.waits(task))):
            raise UserError(
                f"the journal's end is missing: {worker}.{push['incarnation']} has pushed what it "
                f"computed of task {task}, which the journal never gave out. It would be trained "
                "again. Put back the undamaged files of the journal, or begin anew with --overwrite"
            )


@dataclass(frozen=True)
class Moments:
    """Where in the journal, by positions from 0, a checkpoint was begun, fixed and complete.

    begun: what had ended by then is in all shares; -1: the beginning. fixed: what began later
    is in none.
    """

    begun: int
    fixed: int
    taken: int


def moments_of(number: int, events: Iterable[tuple[int, Event]]) -> Moments | None:
    """The moments of checkpoint `number`, from events with their positions.

    None if what is to be known came before these.
    """
    begun = fixed = -1
    found: dict[int, Moments] = {}
    for at, event in events:
        if event.method == "checkpoint_begun":
            begun = at
        elif event.method == "checkpoint_fixed":
            fixed = at
        elif event.method == "checkpoint_taken" and begun >= 0:
            found[event.arguments["taken"]["number"]] = Moments(begun, fixed, at)
        elif event.method == "checkpoint_recovered":
            # What the log had is in it, and that is told by its pushes alone.
            base = event.arguments["base"]
            if base in found or not base:
                before = found[base].begun if base else -1
                found[event.arguments["taken"]["number"]] = Moments(before, at, at)
    return found.get(number)


def _found_moments(path: Path, number: int, *, snapshot: bool) -> tuple[Moments, int]:
    """The moments of a checkpoint, and the segment to read the journal from.

    snapshot: whether that of a segment may stand for what was before. Raises UserError.
    """
    told: list[tuple[int, Event]] = []
    after: list[Header] = []
    for index in range(len(segments.segments(path)), 0, -1):
        segment = next(read_segments(path, index))
        after.append(segment.header)
        told[:0] = [
            (position.number - 1, entry.event) for position, entry in segment.entries("checkpoint_")
        ]
        moments = moments_of(number, told)
        if moments is not None:
            starts = (h for h in after if h.before.number == moments.begun + 1 and usable(h))
            start = next(starts, None) if snapshot else None
            return moments, start.index if start is not None else 1
    raise UserError(f"the journal {path} does not know checkpoint {number}")


def _merged(intervals: Sequence[Interval]) -> list[Interval]:
    """The same with neighbours made one."""
    merged: list[Interval] = []
    for each in sorted(intervals, key=lambda i: (i.kind, i.epoch, i.span.source, i.span.start)):
        last = merged[-1] if merged else None
        if (
            last is not None
            and (last.kind, last.epoch, last.span.source)
            == (each.kind, each.epoch, each.span.source)
            and last.span.end == each.span.start
        ):
            merged[-1] = replace(last, span=replace(last.span, end=each.span.end))
        else:
            merged.append(each)
    return merged


def _applied(
    lease: _Lease, leases: Sequence[_Lease], server: int, share: Mapping[str, Any]
) -> AppliedPush | None:
    """The last push of a lease that a share holds."""
    task = lease.task
    for push in share["pushes"]:
        if push["worker"] != lease.worker.index or push["incarnation"] < lease.incarnation:
            continue
        if push["incarnation"] > lease.incarnation:
            # A successor has pushed, so all of the lease's pushes are here. If it was
            # fenced, that told of them; else it had ended before its worker did.
            if lease.fenced or lease.ended is None:
                return lease.fenced[server] if server < len(lease.fenced) else None
            return AppliedPush(push["sequence"], task.id, lease.head)
        if push["task"] == task.id:
            return AppliedPush(push["sequence"], task.id, push["records_done"])
        later = any(
            each.task.id == push["task"] and each.began > lease.began
            for each in leases
            if each.worker == lease.worker and each.incarnation == lease.incarnation
        )
        if not later or (lease.ended is not None and not lease.touched):
            return _NOTHING
        # It was done, or came so far when it failed.
        done = task.records if lease.ended is None else lease.head
        return AppliedPush(push["sequence"], task.id, done)
    return _NOTHING


_NOTHING = AppliedPush(0, 0, 0)


def _intervals(task: Task, head: int, touched: int) -> list[Interval]:
    span = task.span
    assert span is not None
    head, touched = min(head, task.records), min(touched, task.records)
    parts = (("trained", 0, head), ("touched", head, touched))
    return [
        Interval(kind, task.epoch, Span(span.source, span.start + start, span.start + end))
        for kind, start, end in parts
        if end > start
    ]
