"""The training pipeline: pull ahead, compute, push behind.

Owns the threads of one task and what flows between them. Three stages, each in its
own thread, joined by bounded channels of `depth` items:

    reading, feed, ids, pull  ->  step  ->  push

So while step t computes, batch t+1 to t+depth are pulled and t-1 to t-depth pushed,
and rows may be that many of the worker's own pushes old. Depth 0 does one after the
other in the caller's thread: no row is older than the last push.

An exception in any stage ends all of them and is raised to the caller.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import numpy as np

from shoal.proto import shoal_pb2 as pb
from shoal.worker.blame import blaming
from shoal.worker.heartbeat import Progress
from shoal.worker.model import Prepared, ServedModel
from shoal.worker.pace import Pace
from shoal.worker.pipeline import Batch
from shoal.worker.servers import Push

Item = TypeVar("Item")


class ChannelClosedError(Exception):
    """Nothing more goes through the channel."""


class Channel(Generic[Item]):
    """A bounded queue between two threads that either side can end.

    `finish` lets the reader take what is there; `abort` ends both sides at once.
    """

    def __init__(self, size: int) -> None:
        self._items: deque[Item] = deque()
        self._size = size
        self._finished = False
        self._aborted = False
        self._changed = threading.Condition()

    def put(self, item: Item) -> None:
        """Wait for room and add an item. Raises ChannelClosedError once aborted."""
        with self._changed:
            self._changed.wait_for(lambda: self._aborted or len(self._items) < self._size)
            if self._aborted:
                raise ChannelClosedError
            self._items.append(item)
            self._changed.notify_all()

    def get(self) -> Item:
        """Wait for an item. Raises ChannelClosedError at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._aborted or self._items or self._finished)
            if self._aborted or not self._items:
                raise ChannelClosedError
            item = self._items.popleft()
            self._changed.notify_all()
            return item

    def finish(self) -> None:
        """The writer has no more items."""
        with self._changed:
            self._finished = True
            self._changed.notify_all()

    def abort(self) -> None:
        """End at once; items that were not taken are lost."""
        with self._changed:
            self._aborted = True
            self._changed.notify_all()


@dataclass(frozen=True)
class Step:
    """A computed step on its way to the servers.

    loss: mean over its minibatches. left_out: (records, why) of those of its minibatches
    whose gradients are in no push.
    """

    push: Push
    loss: float
    records_done: int
    left_out: tuple[tuple[int, str], ...] = ()


class TrainingPipeline:
    """Trains `model` on the batches of a task.

    depth: see the module's text. progress: hears of every step that all servers have
    acknowledged, and ends the task early when it is interrupted. pace: says when a step
    may be pulled; None for always.
    """

    def __init__(
        self, model: ServedModel, depth: int, progress: Progress, pace: Pace | None = None
    ) -> None:
        self._model = model
        self._depth = depth
        self._progress = progress
        self._pace = pace

    def run(self, batches: Iterator[Batch], task: pb.Task) -> None:
        """Train on all batches; every push is acknowledged when it returns.

        Returns early if the progress is interrupted. Raises what a stage raises; what is
        about records, blames them.
        """
        if self._depth:
            _Run(self._model, self._progress, self._pace, batches, task, self._depth).run()
            return
        for step in steps(self._model, self._prepared(batches), task):
            push(self._model, self._progress, self._pace, step)
            if self._progress.interrupted:
                return

    def _prepared(self, batches: Iterator[Batch]) -> Iterator[Prepared]:
        for batch in paced(batches, self._model.accumulated, self._progress, self._pace):
            yield prepare(self._model, batch)


def timed(batches: Iterator[Batch], progress: Progress) -> Iterator[Batch]:
    """The batches, the wait for each counted as stage "read"."""
    while True:
        with progress.stage("read"):
            batch = next(batches, None)
        if batch is None:
            return
        yield batch


def paced(
    batches: Iterator[Batch], accumulated: int, progress: Progress, pace: Pace | None
) -> Iterator[Batch]:
    """The batches, as the pace allows: it counts pushes. Ends early if the task is to be left."""
    for number, batch in enumerate(timed(batches, progress)):
        if pace is not None and number % accumulated == 0 and not pace.wait():
            return
        yield batch


def prepare(model: ServedModel, batch: Batch) -> Prepared:
    """A batch with all that its step takes. Raises what ServedModel.prepare does."""
    with blaming(batch.records):
        return model.prepare(batch)


def steps(model: ServedModel, batches: Iterable[Prepared], task: pb.Task) -> Iterator[Step]:
    """The steps of a task, each of as many batches as make a push, the last of what is left.

    Raises as `compute`.
    """
    made: list[Step] = []
    for prepared in batches:
        made.append(compute(model, prepared, task, made))
        if len(made) == model.accumulated:
            yield _together(model, made)
            made = []
    if made:
        yield _together(model, made)


def _together(model: ServedModel, made: list[Step]) -> Step:
    if model.accumulated == 1:
        return made[0]
    left_out = tuple(each for step in made for each in step.left_out)
    kept = [each for each in made if not each.push.left_out]
    if not kept:
        return replace(made[-1], left_out=left_out)
    loss = sum(each.loss for each in kept) / len(kept)
    push = model.average([each.push for each in kept])
    done = made[-1].records_done
    return Step(replace(push, records_done=done), loss, done, left_out)


def compute(
    model: ServedModel, prepared: Prepared, task: pb.Task, before: Sequence[Step] = ()
) -> Step:
    """The step of a prepared batch, after those `before` it in the same push.

    Raises as ServedModel.compute, blaming the records.
    """
    moves = [each.push.dense[1] for each in before if not each.push.left_out]
    moved = np.sum(moves, axis=0) if moves else None
    with blaming(prepared.batch.records):
        loss, made = model.compute(prepared, task.id, moved)
    left_out = ((prepared.batch.size, made.left_out),) if made.left_out else ()
    return Step(made, loss, prepared.batch.records_done, left_out)


def push(model: ServedModel, progress: Progress, pace: Pace | None, step: Step) -> None:
    """Push a step and tell of it once every server has it."""
    model.push(step.push)
    if pace is not None:
        pace.applied()
    progress.add_step(step.records_done, model.version, step.loss, step.left_out)


class _Run:
    """The three threads of one task; the caller's is the middle one."""

    def __init__(
        self,
        model: ServedModel,
        progress: Progress,
        pace: Pace | None,
        batches: Iterator[Batch],
        task: pb.Task,
        depth: int,
    ) -> None:
        self._model = model
        self._progress = progress
        self._pace = pace
        self._batches = batches
        self._task = task
        self._pulled: Channel[Prepared] = Channel(depth)
        self._computed: Channel[Step] = Channel(depth)
        self._error: Exception | None = None

    def run(self) -> None:
        threads = [
            threading.Thread(target=self._stage, args=(work,), name=name)
            for name, work in (("pull", self._pull), ("push", self._push))
        ]
        for thread in threads:
            thread.start()
        self._stage(self._compute)
        for thread in threads:
            thread.join()
        if self._error is not None:
            raise self._error

    def _stage(self, work: object) -> None:
        assert callable(work)
        try:
            work()
        except ChannelClosedError:
            pass  # another stage ended the run and said why
        except Exception as error:
            # The first error is the cause; what follows from it in others is not.
            if self._error is None:
                self._error = error
            self._abort()

    def _abort(self) -> None:
        self._pulled.abort()
        self._computed.abort()

    def _pull(self) -> None:
        for batch in paced(self._batches, self._model.accumulated, self._progress, self._pace):
            self._pulled.put(prepare(self._model, batch))
            if self._progress.interrupted:
                self._abort()
                return
        if self._progress.interrupted:
            self._abort()
        self._pulled.finish()

    def _compute(self) -> None:
        for step in steps(self._model, self._received(), self._task):
            with self._progress.stage("wait for push"):
                self._computed.put(step)
        self._computed.finish()

    def _received(self) -> Iterator[Prepared]:
        while True:
            try:
                with self._progress.stage("wait for pull"):
                    prepared = self._pulled.get()
            except ChannelClosedError:
                return
            yield prepared

    def _push(self) -> None:
        while True:
            push(self._model, self._progress, self._pace, self._computed.get())
