"""The training tasks of a job: the queues they wait in, and their leases.

Owns the way of each record through the epochs: leases a task, and queues the rest of it when a
worker dies. epochs.py cuts epochs into spans, ledger.py counts the records that are settled,
lease_copies.py has the record of a lease, and worker_lifecycle.py decides when a worker is dead.
No I/O and no clock.

Each step changes queues and ledger, and `TaskBoard.check` compares the two.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from shoal.master.work.accounts.lease_copies import Lease, Piece, part_of
from shoal.master.work.accounts.ledger import Account, Ledger
from shoal.master.work.accounts.spans import Coverage, Interval
from shoal.master.work.ids import WorkerId
from shoal.master.work.tasks import poison
from shoal.master.work.tasks.epochs import Epochs, Order, Spans
from shoal.master.work.tasks.training_queue import TrainingQueue
from shoal.master.work.units import ANYBODY, Requester, Source, Span, Task, TaskIds, pick
from shoal.proto import shoal_pb2 as pb


class TaskBoard:
    """Training tasks of all epochs, one epoch's queue at a time.

    sources: those that are known. complete: whether these are all there are.
    records_per_task, epochs, seed, max_steps, batch_size, shuffle_tasks, shuffle_buffer: as
        `Epochs` takes them.
    next_id: gives task ids.

    Each record of an opened epoch that is not settled is in one of four places. `take` looks into
    the first three in this order:

    - `_lost`: counted as trained, until a server lost it. Given out also after `stop`.
    - `_requeued`: left by a worker that died or failed.
    - `_queue`: never given out.
    - `_leases`: held by a worker. A head of the task may be settled already (`Lease.acknowledged`).

    Settled records are in `_account`. `_bad` has the records given up in every epoch, by source.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        *,
        records_per_task: int,
        epochs: int,
        seed: int,
        next_id: TaskIds,
        max_steps: int = 0,
        batch_size: int = 1,
        complete: bool = True,
        shuffle_tasks: bool = True,
        shuffle_buffer: int = 0,
    ) -> None:
        self._parts = [tuple(sources)]
        self._complete = complete
        self._records_per_task = records_per_task
        self._shape: dict[str, Any] = {
            "records_per_task": records_per_task,
            "count": epochs,
            "seed": seed,
            "max_steps": max_steps,
            "batch_size": batch_size,
            "shuffle_tasks": shuffle_tasks,
            "shuffle_buffer": shuffle_buffer,
        }
        self._epochs = Epochs(self._parts, **self._shape)
        self._stopped = False
        self._stopped_at = 0  # the version of the model, then
        self._next_id = next_id
        self._requeued: deque[Task] = deque()
        self._queue = TrainingQueue()
        self._lost: deque[Task] = deque()
        self._leases: dict[int, Lease] = {}
        self._account = Account()
        self._bad: defaultdict[str, set[int]] = defaultdict(set)
        self.tasks_total = self._epochs.tasks
        self.tasks_done = 0
        self.epoch = 0
        self._open_epoch(0)

    @property
    def sources(self) -> tuple[Source, ...]:
        """All that are known."""
        return tuple(source for part in self._parts for source in part)

    @property
    def all_known(self) -> bool:
        """True if no source can come that would be trained on."""
        return self._complete or self._epochs.ends_early

    def extend(self, sources: Sequence[Source], *, complete: bool) -> None:
        """There are more sources, which the first epoch has after those that it has already.

        complete: whether these are the last.
        """
        before = self._epochs
        if sources and not self.all_known:
            self._parts.append(tuple(sources))
            self._epochs = Epochs(self._parts, **self._shape)
            self._epochs.follow(before)
            self._open_epoch(0, before.size(0)[0])
        self._complete = complete
        self.tasks_total += self._epochs.tasks - before.tasks

    def _open_epoch(self, epoch: int, begin: int = 0) -> None:
        """Give out the spans of an epoch from a place on."""
        order = Order(self._epochs, epoch)
        self.epoch = epoch
        opened = TrainingQueue()
        count = max(len(order) - begin, 0)
        opened.extend(epoch, self._next_id.reserve(count), order, begin)
        for source, records in self._bad.items():
            opened.replace(source, self._positions(source, records), self._without_bad)
        self._queue.join(opened)

    def resume(self, in_model: Iterable[Interval], times: int, version: int = 0) -> None:
        """Go on from a model that holds just these intervals; all else is to be trained.

        times: how often the job has been resumed, this time too. version: of the model. If training
        was stopped after it, it goes on: what was lost since is to be trained again.
        """
        self._stopped = self._stopped and version >= self._stopped_at
        intervals = list(in_model)
        coverage = Coverage(self.sources, self._epochs.count)
        self.epoch = max((each.epoch for each in intervals), default=0)
        for interval in (*intervals, *self._planned()):
            coverage.add(interval)
        for left in (self._lost, self._requeued, self._queue, self._leases):
            left.clear()
        self._bad.clear()
        self._account.clear()
        missing: dict[int, list[tuple[int, int, int, int, int]]] = {
            epoch: [] for epoch in range(self.epoch + 1)
        }
        places = {name: place for place, name in enumerate(self._epochs.names)}
        for fate in coverage.fates():
            if fate.counts["trained"]:
                self._account.in_model(fate)
            elif fate.counts["planned"]:
                touched = fate.counts["touched"]
                missing[fate.epoch] += [
                    (places[span.source], span.start, span.end, len(span) if touched else 0, block)
                    for span, block in self._epochs.ranges.pieces(fate.span)
                ]
        for epoch, rows in missing.items():
            columns = np.array(rows, np.int64).reshape(-1, 5)
            blocks, of_row = np.unique(columns[:, 4], return_inverse=True)
            turns = self._epochs.shuffled(len(blocks), f"{epoch}/{times}")
            order = np.argsort(turns[of_row], kind="stable")  # rows of a block are in theirs
            spans = Spans(self._epochs.names, np.ascontiguousarray(columns[order].T))
            self._queue.extend(epoch, self._next_id.reserve(len(spans)), spans)
        unopened = sum(self._epochs.size(e)[0] for e in range(self.epoch + 1, self._epochs.count))
        self.tasks_done = max(0, self.tasks_total - len(self._queue) - unopened)
        self.tasks_total = self.tasks_done + len(self._queue) + unopened

    def _planned(self) -> Iterator[Interval]:
        """The records of all epochs up to this one that are to be trained."""
        for epoch in range(self.epoch + 1):
            order = Order(self._epochs, epoch)
            if order.records(0) == self._epochs.records_in_each:
                spans = (Span(source.name, 0, source.records) for source in self.sources)
            else:
                spans = (order[place][0] for place in range(len(order)))
            for span in spans:
                yield Interval("planned", epoch, span)

    def waits(self, task_id: int) -> bool:
        """True if the task of this id was never given out."""
        queued = any(task.id == task_id for task in (*self._lost, *self._requeued))
        return queued or self._queue.waits(task_id) or task_id >= self._next_id.next

    def stop(self, version: int = 0) -> None:
        """Give out no more tasks; what is leased is trained to its end.

        What was not given out stays pending in the ledger, as not reached. version: of the model
        that it was decided by; of several decisions the first counts.
        """
        if not self._stopped:
            self._stopped, self._stopped_at = True, version

    @property
    def finished(self) -> bool:
        """True if no record is pending, or to be trained, and no task is leased."""
        if self._leases or self._lost:
            return False
        return self._stopped or (self.all_known and not self.ledger().pending)

    @property
    def all_leased(self) -> bool:
        """True if no task is left to take, unless the task of a dead worker comes back."""
        if self._lost:
            return False
        if self._stopped:
            return True
        return not (self._requeued or self._queue or self._another_epoch)

    @property
    def _another_epoch(self) -> bool:
        """True if more epochs or sources may follow the opened epoch."""
        return not self.all_known or self.epoch + 1 < self._epochs.count

    @property
    def between_epochs(self) -> bool:
        """True if the next task to be taken is the first one of another epoch."""
        return self._epoch_given_out and not (self._lost or self._stopped)

    @property
    def _epoch_given_out(self) -> bool:
        nothing = not self._requeued and not self._queue
        return nothing and self.all_known and self._another_epoch

    def more_than(self, count: int) -> bool:
        """True if more than `count` tasks of this epoch and the next can still be taken."""
        left = len(self._lost)
        if self._stopped:
            return left > count
        left += len(self._requeued) + len(self._queue)
        if left <= count and self.all_known and self._another_epoch:
            left += self._epochs.size(self.epoch + 1)[0]
        return left > count

    def take(self, requester: Requester = ANYBODY) -> Task | None:
        """Lease the next task; None while there is none.

        What came back from a dead worker goes first, so that its epoch ends promptly.
        The next epoch is opened as soon as the queue is empty: nobody waits for the
        last tasks of an epoch.
        """
        task = pick(self._lost, requester)
        if task is None and not self._stopped:
            task = self._next(requester)
        if task is None:
            return None
        assert task.span is not None
        self._leases[task.id] = Lease(task, WorkerId(requester.worker), requester.incarnation)
        windows = self._epochs.windows.of(task.span)
        return replace(task, windows=windows) if windows else task

    def _next(self, requester: Requester) -> Task | None:
        if self._epoch_given_out:
            self._open_epoch(self.epoch + 1)
        return pick(self._requeued, requester) or self._queue.take(requester)

    def _credit(self, lease: Lease, done: int) -> None:
        done = min(done, lease.task.records)
        if done > lease.acknowledged:
            self._account.trained(lease.task, lease.acknowledged, done)
            lease.acknowledged = done

    def progress(self, task_id: int, done: int) -> None:
        """Every server has acknowledged the first `done` records of a leased task.

        An older, smaller number changes nothing. Raises KeyError if not leased.
        """
        self._credit(self._leases[task_id], done)

    def lease(self, task_id: int) -> Lease:
        """The lease of a task. Raises KeyError if not leased."""
        return self._leases[task_id]

    def complete(self, task_id: int) -> None:
        """All of a leased task is trained. Raises KeyError if not leased."""
        lease = self._leases.pop(task_id)
        self._credit(lease, lease.task.records)
        self.tasks_done += 1

    def _take_back(self, task_id: int, touched: int) -> Task | None:
        """Take a task from its worker; what is left of it, None if nothing is."""
        lease = self._leases.pop(task_id)
        task, done = lease.task, lease.acknowledged
        if done >= task.records:
            self.tasks_done += 1
            return None
        touched = min(max(task.trained_before, touched), task.records)
        rest = part_of(lease.span, done, task.records)
        return poison.piece(replace(task, trained_before=touched), rest)

    def give_back(self, task_id: int, touched: int) -> None:
        """Take a task from a dead worker, and queue what is not acknowledged of it.

        touched: head of the span whose gradients at least one server has applied.

        Raises KeyError if not leased.
        """
        if (rest := self._take_back(task_id, touched)) is not None:
            self._requeue([rest], first=False)

    def retry(
        self, task_id: int, touched: int, judge: Callable[[Task, Span], Sequence[Task]]
    ) -> Task | None:
        """Take a failed task back, as `give_back` does. judge: returns the tasks to give out again.

        Returns the task that is given up, which counts as failed, if `judge` returns none.
        """
        task = self._leases[task_id].task
        rest = self._take_back(task_id, touched)
        if rest is None or rest.span is None:
            return None
        if self._stopped and not task.again:
            self._requeue([rest], first=True)
            return None
        # By the lease's own span: whether it came further is among what is judged.
        whole = replace(task, trained_before=max(task.trained_before, touched))
        pieces = judge(whole, rest.span)
        if not pieces:
            self._account.failed(rest.epoch, rest.span)
            self.tasks_done += 1
            return rest
        self.tasks_total += len(pieces) - 1
        self._requeue(pieces, first=True)
        return None

    def _requeue(self, pieces: Iterable[Task], *, first: bool) -> None:
        tasks = self._without_bad(replace(each, id=self._next_id()) for each in pieces)
        if tasks and tasks[0].again:
            self._lost.extend(tasks)
        elif first:
            self._requeued.extendleft(reversed(tasks))
        else:
            self._requeued.extend(tasks)

    def train_again(self, pieces: Iterable[Piece]) -> None:
        """Give out records again that count as trained, and that a server has lost."""
        for piece in pieces:
            touched = self._account.lost(piece)
            for span in piece.span.pieces(self._records_per_task):
                before = len(span) if touched else 0
                task = Task(0, pb.TRAIN, span, piece.epoch, trained_before=before, again=True)
                self.tasks_total += 1
                self._requeue([task], first=False)

    def exclude(self, bad: Span) -> None:
        """Give records up in every epoch; a lease that holds one will fail by itself.

        bad: by their numbers in the source, as `record_of` gives it.
        """
        records = range(bad.start, bad.end)
        self._bad[bad.source].update(records)
        again = self._without_bad(self._lost)
        self._lost.clear()
        self._lost.extend(again)
        if self._stopped:
            return  # what was not given out is not reached
        tasks = self._without_bad(self._requeued)
        self._requeued.clear()
        self._requeued.extend(tasks)
        self._queue.replace(bad.source, self._positions(bad.source, records), self._without_bad)
        while not self._queue and not self._requeued and self.all_known and self._another_epoch:
            if self._epochs.records_in_each > sum(map(len, self._bad.values())):
                break
            self._open_epoch(self.epoch + 1)  # nothing but records given up

    def record_of(self, task: Task) -> Span:
        """The record that a task of a single position is about, by its number in the source."""
        assert task.span is not None
        record = self._epochs.windows.record(task.epoch, task.span.source, task.span.start)
        return Span(task.span.source, record, record + 1)

    def _positions(self, source: str, records: Collection[int]) -> Callable[[int], set[int]]:
        """The positions of records by epoch."""
        of = self._epochs.windows.position
        return lambda epoch: {of(epoch, source, record) for record in records}

    def _without_bad(self, tasks: Iterable[Task]) -> list[Task]:
        """The same without the records that were given up, which count as failed."""
        kept: list[Task] = []
        for task in tasks:
            assert task.span is not None
            source = task.span.source
            bad = self._positions(source, self._bad.get(source, ()))(task.epoch)
            pieces = poison.without(task, bad) if bad else None
            if pieces is None:
                kept.append(task)
                continue
            for record in sorted(bad):
                if task.span.start <= record < task.span.end:
                    span = Span(source, record, record + 1)
                    self._account.failed(task.epoch, span)
            self.tasks_total += len(pieces) - 1
            kept += [replace(each, id=self._next_id()) for each in pieces]
        return kept

    def fail(self, task_id: int) -> None:
        """Give up what is left of a leased task. Raises KeyError if not leased."""
        lease = self._leases.pop(task_id)
        self._account.left_undone(lease.task.records - lease.acknowledged)

    def ledger(self) -> Ledger:
        """The counts of this moment."""
        return self._account.ledger(self._epochs.records)

    @property
    def given_up(self) -> Sequence[Interval]:
        """The records that were given up, as `Account` has them."""
        return self._account.given_up

    @property
    def taken_back(self) -> list[Interval]:
        """The records that were taken back, as `Account` has them."""
        return self._account.taken_back

    def check(self) -> None:
        """Raise AssertionError unless the counts agree with the queues, for tests."""
        again = sum(task.records for task in (*self._lost, *self._requeued))
        waiting = again + self._queue.records
        tasks = (*self._lost, *self._requeued, *self._queue)
        assert waiting == sum(task.records for task in tasks)
        assert len(self._queue) == len(list(self._queue))
        leased = sum(lease.task.records - lease.acknowledged for lease in self._leases.values())
        opened = sum(self._epochs.size(epoch)[1] for epoch in range(self.epoch + 1))
        unopened = self._epochs.records - opened
        assert self.ledger().pending == waiting + leased + unopened
