"""Synchronous training: gradients that the servers hold, and updates that the master decides.

Owns the sequence of a step under --sync: pull once the servers have applied the update before,
compute, have all servers hold the gradient, offer it to the master, whose answer says for which
update the next gradient is. A worker that got no such answer asks the master. Which gradients make
an update is the master's to say (master/job/updates.py); averaging them is the servers'
(ps/model/tables.py).
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing

from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.channels.rpc import Connection
from shoal.proto.wire.backoff import doubled_seconds
from shoal.worker.input.batch import Batch
from shoal.worker.input.channel import read_ahead
from shoal.worker.model.model import ServedModel
from shoal.worker.reports.progress import Progress
from shoal.worker.training.steps import Step, Tasks, prepare, steps, tell_predicted

FIRST_PAUSE = 0.001
LONGEST_PAUSE = 0.05
"""Seconds between questions while waiting for an update: at first less than a step's time,
then longer, as a waiting worker's questions must not slow the master down."""


class SynchronousTraining:
    """Trains `model` on the batches of a task, each until its gradient is in an update.

    progress: hears of every gradient that is admitted, and ends the task early when it is
    interrupted.
    """

    def __init__(
        self,
        model: ServedModel,
        master: Connection,
        worker: int,
        incarnation: int,
        progress: Progress,
        tasks: Tasks,
    ) -> None:
        self._model = model
        self._master = master
        self._identity = (worker, incarnation)
        self._progress = progress
        self._tasks = tasks
        self._next = 0  # the update to compute for, as the master said ahead; 0: ask
        self._read = 0  # batches of the task, by the thread that reads ahead

    def run(self, task: pb.Task) -> pb.Task:
        """Train on a task, and return it; every gradient is admitted then.

        Returns early if the progress is interrupted. Raises as TrainingPipeline.run does.
        """
        self._tasks.begin(task)
        self._next = 0  # that time may be over: tasks of other kinds may have come between
        with (
            self._progress.training(),
            closing(
                read_ahead(self._counted(self._tasks.batches(task)), self._progress)
            ) as batches,
        ):
            self._train(batches, task)
        return task

    def _counted(self, batches: Iterator[Batch]) -> Generator[Batch, None, None]:
        self._read = 0
        try:
            for batch in batches:
                self._read += 1
                yield batch
        finally:
            if isinstance(batches, Generator):
                batches.close()

    def _train(self, batches: Iterator[Batch], task: pb.Task) -> None:
        taken = 0
        while group := list(itertools.islice(batches, self._model.accumulated)):
            taken += len(group)
            while not self._progress.interrupted:
                if self._given(group, task, taken):
                    break
            else:
                return

    def _given(self, group: Sequence[Batch], task: pb.Task, taken: int) -> bool:
        """Compute the gradient of some batches; whether it was admitted to an update.

        taken: batches of the task until now, with these.
        """
        ahead, self._next = self._next, 0
        update = ahead or self._join()
        if update is None:
            return False
        self._model.wait_for(ahead - 1 if ahead else 0)
        prepared = (prepare(self._model, batch, self._progress) for batch in group)
        first = next(prepared)
        pulled = min(first.pulled.updates)
        if ahead and pulled < ahead - 1:
            return False  # it may lack a gradient, which the master then wants of this worker
        update = max(update, pulled + 1)  # where others have gone on meanwhile
        batches = itertools.chain([first], prepared)
        (step,) = steps(self._model, batches, task, self._progress)
        if step.push.left_out:
            self._tell(step)
            return True
        with self._progress.watch.doing("the push"), self._progress.stage("push"):
            number = self._model.servers.hold(step.push)
        worker, incarnation = self._identity
        request = pb.OfferGradientRequest(
            worker=worker,
            incarnation=incarnation,
            number=number,
            update=update,
            task=task.id,
            records_done=step.records_done,
            # Nobody is to wait for one that has to read first.
            ready=self._read >= taken + self._model.accumulated,
        )
        with self._progress.stage("push"):
            reply = self._master.call(methods.OFFER_GRADIENT, request)
        self._progress.learning_rate = step.push.learning_rate
        self._next = reply.next
        if reply.admitted:
            self._tell(step)
        return reply.admitted

    def _tell(self, step: Step) -> None:
        """A step is done: its gradient is admitted, or left out."""
        version = self._model.servers.version
        self._progress.add_step(step.records_done, version, step.loss, step.left_out)
        tell_predicted(step, self._progress, self._tasks)

    def _join(self) -> int | None:
        """Wait for an update to compute a gradient for; None if the task is to be left."""
        worker, incarnation = self._identity
        request = pb.JoinUpdateRequest(worker=worker, incarnation=incarnation)
        asked = 0
        while not self._progress.interrupted:
            with self._progress.stage("wait for update"):
                reply = self._master.call(methods.JOIN_UPDATE, request)
                if reply.joined:
                    return reply.update
                asked += 1
                self._progress.stopped.wait(doubled_seconds(asked, FIRST_PAUSE, LONGEST_PAUSE))
        return None
