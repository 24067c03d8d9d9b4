"""The actions after an evaluation during training: an export, a checkpoint, a lower rate.

Owns which of them are due, and the tasks of exports. rules.py decides that a rule asks for one;
checkpoints.py takes the checkpoints. No I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Sequence

from shoal.master.work.evaluation.evaluation import EvaluationResult
from shoal.master.work.evaluation.rules import Rules
from shoal.master.work.units import Task, TaskIds, TaskQueue
from shoal.proto import shoal_pb2 as pb


class FollowUps:
    """The work that the evaluations of one job lead to.

    exported: position of the evaluation whose model --output holds; None for none.
    rate_reductions: how often the learning rate was reduced.
    checkpoint_wanted: whether one is to be taken; best_checkpoint: and to be kept, as that
        of the best evaluation so far. Whoever sees to it sets both to False.
    """

    def __init__(self, next_id: TaskIds) -> None:
        self._next_id = next_id
        self._queue: TaskQueue | None = None
        self._position: int | None = None  # of the evaluation whose export is due or under way
        self._again: int | None = None  # the same for the next export
        self.exported: int | None = None
        self.rate_reductions = 0
        self.checkpoint_wanted = False
        self.best_checkpoint = False

    def follow(
        self, rules: Rules, results: Sequence[EvaluationResult], *, training: bool
    ) -> list[str]:
        """See to what the newest of these evaluations leads to; what that is, in words.

        training: whether training goes on, so that its values do not stay what they are.
        Raises UnknownMetricError.
        """
        newest = len(results) - 1
        said = []
        if rules.checkpoint is not None and rules.checkpoint.position(results) == newest:
            self.checkpoint_wanted = training
            self.best_checkpoint = bool(rules.checkpoint.monitor)
        if rules.export is not None and rules.export.position(results) == newest and training:
            self.export(newest)
            monitor = rules.export.monitor
            value = results[newest].metrics[monitor]
            said.append(f"{monitor} {value:.6g} is the best so far: the model is exported")
        if rules.plateau is not None:
            reductions = rules.plateau.reductions(results)
            if reductions > self.rate_reductions and training:
                monitor = rules.plateau.best.monitor
                said.append(f"the learning rate is reduced: {monitor} has not improved")
            self.rate_reductions = reductions
        return said

    def export(self, position: int) -> None:
        """An export is due, of the evaluation at this position."""
        if self._queue is None or self._queue.finished:
            self._position = position
            self._queue = TaskQueue([Task(self._next_id(), pb.EXPORT)], self._next_id)
        elif self._queue.waiting:
            self._position = position  # not begun: it will be of these values
        else:
            self._again = position

    @property
    def idle(self) -> bool:
        """True if no export is due or under way."""
        return self._queue is None or self._queue.finished

    def take(self) -> Task | None:
        """Lease an export that is due; None if there is none."""
        return None if self._queue is None else self._queue.take()

    def leases(self, task: Task) -> bool:
        """True if a worker holds this task, and it comes from here."""
        return self._queue is not None and self._queue.leases(task.id)

    def give_back(self, task: Task) -> None:
        """Take a leased export from a worker that will not finish it."""
        assert self._queue is not None
        self._queue.give_back(task.id)

    def complete(self, task: Task) -> None:
        """A leased export is done."""
        assert self._queue is not None
        self._queue.complete(task.id)
        self.exported, position = self._position, self._again
        self._again = None
        if position is not None:
            self.export(position)

    def resume(self, rules: Rules, results: Sequence[EvaluationResult]) -> None:
        """The job goes on from a model that came after these evaluations, with new processes.

        An export under way is given up.
        """
        self._queue = None
        self._again = None
        if self.exported is not None and self.exported >= len(results):
            self.exported = None
        if rules.plateau is not None and self.rate_reductions:
            self.rate_reductions = rules.plateau.reductions(results)
        self.checkpoint_wanted = self.best_checkpoint = False

    def export_holds(self, rules: Rules, results: Sequence[EvaluationResult]) -> bool:
        """True if --output already has the model that the export rule selects."""
        if rules.export is None or self.exported is None:
            return False
        return rules.export.position(results) == self.exported
