"""The base of all ways of training: the source of tasks, and the steps of their batches.

Owns one step from its batches to its push, and finds the records of a step's error; no threads.
pipeline.py, or with --sync synchronous.py, owns the order of a step's parts; model/model.py owns
the computation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from shoal.proto import shoal_pb2 as pb
from shoal.worker.attribution import attributing
from shoal.worker.input.batch import Batch
from shoal.worker.model.model import Predicted, Prepared, ServedModel
from shoal.worker.reports.progress import Progress
from shoal.worker.servers.in_flight import NOTHING, InFlightPushes
from shoal.worker.servers.pushing import Push
from shoal.worker.training.staleness import StalenessBound


class Tasks(Protocol):
    """The source and the destination of training tasks (worker/tasks.py)."""

    def batches(self, task: pb.Task) -> Iterator[Batch]:
        """The batches of a task."""

    def ahead(self, task: pb.Task) -> pb.Task | None:
        """Lease the task after `task`, which is not done yet; None if there is none."""

    def begin(self, task: pb.Task) -> None:
        """The first step of a task is about to be computed."""

    def predicted(self, predicted: Predicted) -> None:
        """Every server has the gradients of a batch, which was predicted before its step."""

    def done(self, task: pb.Task, after: pb.Task) -> None:
        """Every push of a task is acknowledged; the one `after` it, leased ahead, goes on."""


@dataclass(frozen=True)
class Step:
    """A computed step on its way to the servers.

    loss: mean over its minibatches. left_out: (records, why) of those of its minibatches
    whose gradients are in no push. predicted: of those of its minibatches that count.
    """

    push: Push
    loss: float
    records_done: int
    left_out: tuple[tuple[int, str], ...] = ()
    predicted: tuple[Predicted, ...] = ()


def prepare(model: ServedModel, batch: Batch, progress: Progress) -> Prepared:
    """A batch with all that its step takes. Raises what ServedModel.prepare does."""
    with progress.watch.doing("the pull", batch.records), attributing(batch.records):
        return model.prepare(batch)


def steps(
    model: ServedModel,
    batches: Iterable[Prepared],
    task: pb.Task,
    progress: Progress,
    own: InFlightPushes | None = None,
) -> Iterator[Step]:
    """The steps of a task, each of as many batches as make a push, the last of what is left.

    own: the pushes in flight, to which each step is added; None if nothing is pulled ahead of
    them. Raises as `compute`.
    """
    made: list[Step] = []
    for prepared in batches:
        with progress.watch.doing("the step", prepared.batch.records):
            made.append(compute(model, prepared, task, made, own))
        if len(made) == model.accumulated:
            yield together(model, made, own)
            made = []
    if made:
        yield together(model, made, own)


def together(model: ServedModel, made: list[Step], own: InFlightPushes | None = None) -> Step:
    """One step of several, of which none is pushed by itself, added to the pushes in flight."""
    step = made[0] if model.accumulated == 1 else _averaged(model, made)
    if own is not None and not step.push.left_out:
        own.computed(step.push.number, step.push.dense[1])
    return step


def _averaged(model: ServedModel, made: list[Step]) -> Step:
    left_out = tuple(each for step in made for each in step.left_out)
    kept = [each for each in made if not each.push.left_out]
    if not kept:
        return replace(made[-1], left_out=left_out)
    loss = sum(each.loss for each in kept) / len(kept)
    push = model.average([each.push for each in kept])
    done = made[-1].records_done
    predicted = tuple(each for step in kept for each in step.predicted)
    return Step(replace(push, records_done=done), loss, done, left_out, predicted)


def compute(
    model: ServedModel,
    prepared: Prepared,
    task: pb.Task,
    before: Sequence[Step] = (),
    own: InFlightPushes | None = None,
) -> Step:
    """The step of a prepared batch, after those `before` it in the same push.

    own: the pushes in flight, from which those are found that the pulled values lack; None if
    none can be. Raises as ServedModel.compute, with the records noted.
    """
    pulled = prepared.pulled
    missing = NOTHING if own is None else own.missing(pulled.applied, pulled.routing.dense)
    changes = [each.push.dense[1] for each in before if not each.push.left_out]
    with attributing(prepared.batch.records):
        loss, made = model.compute(prepared, task.id, missing.then(changes))
    left_out = ((prepared.batch.size, made.left_out),) if made.left_out else ()
    predicted = model.predicted(prepared.batch, made)
    return Step(made, loss, prepared.batch.records_done, left_out, predicted)


def push(
    model: ServedModel,
    progress: Progress,
    staleness: StalenessBound | None,
    tasks: Tasks,
    step: Step,
) -> None:
    """Push a step and tell of it once every server has it."""
    if not step.push.left_out:
        progress.learning_rate = step.push.learning_rate
        with progress.watch.doing("the push"), progress.stage("push"):
            model.servers.push(step.push)
    if staleness is not None:
        staleness.applied()
    servers = model.servers
    progress.add_step(
        step.records_done, servers.version, step.loss, step.left_out, servers.acknowledged
    )
    tell_predicted(step, progress, tasks)


def tell_predicted(step: Step, progress: Progress, tasks: Tasks) -> None:
    """Tell of a step's predictions once it is done. Raises what the metrics raise."""
    for each in step.predicted:
        # Their records are trained: none of them is to be tried again.
        with progress.watch.doing("the metrics"), attributing(None):
            tasks.predicted(each)
