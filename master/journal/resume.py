"""From which checkpoint a stopped job goes on, so that its ledger matches its model.

A server's shard is its state after exactly the pushes that it names, the last one of each
worker, and shards are not of one moment. What of the leases that makes is known to the job
(copies.py). A checkpoint that was made of an older one and the log of updates names the pushes
to the end of the log. With --sync all shards are of the same update, and what is in that
follows from the journal: the gradients offered, less those that were not applied by then. Owns
that reasoning, and the choice of the checkpoint.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from shoal.base.disk.job_folder import JobFolder
from shoal.checkpoints.folders import Checkpoint, folder_name, numbers, remove
from shoal.checkpoints.formats.manifests import CheckpointError
from shoal.checkpoints.newest import newest_good
from shoal.config.job import RESUMABLE, JobConfig
from shoal.errors import UserError
from shoal.files.storage import open_storage
from shoal.master.job.events import (
    CheckpointFixed,
    CheckpointRecovered,
    CheckpointTaken,
    GradientOffered,
    Resumed,
    Taken,
    TaskReported,
)
from shoal.master.job.updates import Gradient
from shoal.master.job.view.status import position
from shoal.master.journal.events import Entry, RecordedJob
from shoal.master.journal.journal import Journal
from shoal.master.journal.log_recovery import FromLog, checkpoint_of_log
from shoal.master.journal.reading import read, read_segments
from shoal.master.journal.witnesses import Witnesses
from shoal.master.work import outcomes
from shoal.master.work.accounts.applied import LastPush
from shoal.master.work.accounts.spans import Interval
from shoal.master.work.ids import WorkerId
from shoal.master.work.phases import Phase
from shoal.master.work.units import Span, Task
from shoal.proto import shoal_pb2 as pb

logger = logging.getLogger(__name__)

_PUT_BACK = "Put back the undamaged files of the journal, or begin anew with --overwrite"


@dataclass
class _Given:
    """A TRAIN task of --sync: gradients of it that were admitted, with its records done then.

    whole: it was reported done.
    """

    task: Task
    gradients: list[tuple[Gradient, int]] = field(default_factory=list)
    whole: bool = False

    def intervals(self, unapplied: set[Gradient]) -> list[Interval]:
        """The task's records in a model that lacks these gradients, which came after all others."""
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

    def follow(self, entry: Entry) -> None:
        updates = self._job.updates
        match entry.event:
            case Resumed(in_model=in_model):
                self._given, self._base = {}, [*in_model]
            case GradientOffered(gradient, _, task_id, done):
                task = self._job.members.workers[gradient.worker].holds(task_id)
                before = updates.counts.gradients
                self._job.replay([entry])
                if task is not None and updates.counts.gradients > before:
                    given = self._given.setdefault(task_id, _Given(task))
                    given.gradients.append((gradient, done))
                return
            case TaskReported(worker, _, task_id, outcomes.Done()):
                task = self._job.members.workers[worker].holds(task_id)
                if task is not None and task.kind == pb.TRAIN:
                    self._given.setdefault(task.id, _Given(task)).whole = True
        self._job.replay([entry])

    def applied(self) -> list[Interval]:
        """The records that are in the model now."""
        unapplied = self._job.updates.unapplied()
        found = [i for given in self._given.values() for i in given.intervals(unapplied)]
        return [*self._base, *found]


def resume_job(
    job: RecordedJob,
    config: JobConfig,
    journal: Journal,
    token: str,
    now: float,
    folder: JobFolder | None = None,
    bad: tuple[int, str] | None = None,
) -> None:
    """Resume a job from its newest good checkpoint, or else from its beginning.

    config: the configuration to go on with. folder: where a log of updates may be, which is done
    again after the checkpoint; None: not here. bad: a checkpoint, by number, that is not good, and
    why. Raises UserError if it cannot.

    Only the checkpoint's manifests are read if its servers can find out whether it is good, which
    they do as they restore it. If a server refuses it (`CheckpointRefused`), this is called
    again, with another token, and takes an earlier checkpoint.
    """
    if job.phases.phase == Phase.SUCCEEDED:
        raise UserError(f"--resume: job {config.job_name} has succeeded: nothing is left to do")
    restored: Taken | None = None
    checkpoint: Checkpoint | None = None
    refused: list[CheckpointError] = []
    in_model: list[Interval] = []
    there: list[int] = []
    known = {each.number: each for each in job.checkpoints.kept.all}
    if bad is not None:
        refused.append(CheckpointError(bad[1]))
        known.pop(bad[0], None)
    if job.config.command == "train":  # a job that takes none takes one as its export fails
        try:
            root = open_storage(config.checkpoint_dir)
            # One that is whole may be unknown here: the master died before it wrote of it.
            there = numbers(root)
            nonces = {number: each.nonce for number, each in known.items()}
            check = partial(_check, job, config, folder)
            checkpoint, more = newest_good(root, nonces, check)
            refused += more
        except OSError as error:
            raise UserError(f"--resume: {config.checkpoint_dir}: {error}") from error
        for reason in refused:
            logger.warning("a checkpoint is not good: %s", reason)
        restored = known[checkpoint.number] if checkpoint is not None else None
    # Older ones are still good if this one goes bad; newer ones hold what the ledger has not.
    newest = restored.number if restored is not None else 0
    given_up = [number for number in there if number > newest]
    log = FromLog(None)
    # With --sync no log makes a checkpoint: its servers may have ended at different updates.
    if job.config.keeps_log and not job.config.sync:
        log = _log_done_again(job, config, folder, newest, now)
    if refused and checkpoint is None and (log.taken is None or log.why):
        _refuse_damaged(config, refused, log)
    if log.journal is not None:
        Witnesses(journal).compare("the log of updates", log.journal)
    if log.taken is not None:
        job.on(CheckpointRecovered(log.taken, newest, log.replayed), now)
        restored = log.taken
        checkpoint = Checkpoint(open_storage(config.checkpoint_dir), restored.number)
    shards: tuple[tuple[LastPush, ...], ...] = ()
    if checkpoint is not None and job.config.sync:
        journal.commit()
        in_model = _given_by(journal, checkpoint.number)
    elif checkpoint is not None:
        shards = _shards_of(checkpoint)
        _refuse_unknown(job, shards)
        in_model = merged(job.work.copies.in_shards(checkpoint.number, shards))
    changes = {name: getattr(config, name) for name in RESUMABLE}
    job.on(Resumed(token, changes, restored, given_up, in_model, log.why, shards), now)


def _check(
    job: RecordedJob, config: JobConfig, folder: JobFolder | None, checkpoint: Checkpoint
) -> None:
    """Raise CheckpointError if a checkpoint is not good, unless its servers will find that out."""
    checkpoint.check_files()
    # With another number of servers the job forgets which pushes there were, so that it could not
    # go on from an older checkpoint after that. With --sync the journal says what is in each.
    same = job.config.sync or job.moves.keeps_table(config.num_servers)
    if not same or _has_log(job, folder):
        from shoal.checkpoints import contents  # late: it needs pyarrow, few masters do

        contents.verify(checkpoint)


def _has_log(job: RecordedJob, folder: JobFolder | None) -> bool:
    """True if there is a log of updates to replay after the checkpoint."""
    logged = job.config.keeps_log and not job.config.sync
    if not logged or not _pushed(job) or folder is None:
        return False
    return job.config.log_in_files and any(folder.update_log.glob("*.log"))


def _pushed(job: RecordedJob) -> bool:
    """True if a worker can have pushed anything since the job began or was resumed."""
    return all(member.registered for member in job.members.servers.values())


def _refuse_damaged(config: JobConfig, refused: Sequence[CheckpointError], log: FromLog) -> None:
    """Raise UserError: no checkpoint is good, and no log has all since the job's beginning."""
    if log.taken is not None:
        remove(open_storage(config.checkpoint_dir).child(folder_name(log.taken.number)))
    nor = f". Nor can it go on from its log of updates: {log.why}" if log.why else ""
    raise UserError(
        f"--resume: none of the job's checkpoints in {config.checkpoint_dir} is good: "
        f"{refused[0]}{nor}"
    )


def _log_done_again(
    job: RecordedJob, config: JobConfig, folder: JobFolder | None, base: int, now: float
) -> FromLog:
    if not _pushed(job):
        # No worker has pushed anything since the job began or was resumed: what logs there are,
        # are of an earlier course, and what of them counts is in the checkpoint.
        return FromLog(None)
    if folder is None:
        return FromLog(None, why="on Kubernetes a master cannot do it again")
    try:
        return checkpoint_of_log(
            folder, job.config, config, base, position(job, now), job.moves.routing
        )
    except OSError as error:
        raise UserError(f"--resume: {config.checkpoint_dir}: {error}") from error


def _shards_of(checkpoint: Checkpoint) -> tuple[tuple[LastPush, ...], ...]:
    """The last push of each worker in each server's shard of a checkpoint."""
    return tuple(
        tuple(
            LastPush(
                WorkerId(push["worker"]),
                push["incarnation"],
                push["sequence"],
                push["task"],
                push["records_done"],
            )
            for push in shard["pushes"]
            if push["sequence"]
        )
        for shard in checkpoint.shards
    )


def _given_by(journal: Journal, number: int) -> list[Interval]:
    """With --sync, what of the training records is in a checkpoint. Raises UserError."""
    fixed, found = 0, None
    for segment in read_segments(journal.path, 1):
        for at, entry in segment.entries("Checkpoint"):
            match entry.event:
                case CheckpointFixed():
                    fixed = at.number - 1
                case CheckpointTaken(taken) if taken.number == number:
                    found = fixed
    if found is None:
        raise UserError(f"the journal {journal.path} does not know checkpoint {number}")
    _, entries = read(journal.path)
    job = RecordedJob(journal.config, lambda _: None)
    return given_by(job, itertools.islice(entries, found))


def given_by(job: RecordedJob, entries: Iterable[Entry]) -> list[Interval]:
    """With --sync, what of the training records is in the model after these events, from the first.

    Taken at a moment at which no update is under way, so that all servers have the same ones.
    job: new.
    """
    given = _GivenTasks(job)
    for entry in entries:
        given.follow(entry)
    return merged(given.applied())


def _refuse_unknown(job: RecordedJob, shards: Iterable[Iterable[LastPush]]) -> None:
    """Raise UserError if a shard has a push that came after an event which the journal lacks."""
    board = job.work.board
    pushes = [push for shard in shards for push in shard]
    if (lease := job.work.copies.unreported(pushes)) is not None:
        raise UserError(
            f"the journal's end is missing: {lease.worker}.{lease.incarnation} has pushed what it "
            f"computed after task {lease.task.id}, and the journal has no report of that one. It "
            f"would be trained again. {_PUT_BACK}"
        )
    for push in pushes:
        member = job.members.workers.get(push.worker)
        later = member is not None and push.incarnation > member.incarnation
        if later or (push.task and (not board.sources or board.waits(push.task))):
            raise UserError(
                f"the journal's end is missing: {push.worker}.{push.incarnation} has pushed what "
                f"it computed of task {push.task}, which the journal never gave out. It would be "
                f"trained again. {_PUT_BACK}"
            )


def merged(intervals: Sequence[Interval]) -> list[Interval]:
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
