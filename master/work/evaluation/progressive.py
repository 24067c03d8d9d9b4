"""Progressive evaluation: windows of the stream that a job trains on, with --progressive-steps.

Each minibatch that counts was predicted before the model trained on it. Its metric states come with
the report that settles its task, and only if no earlier lease can have trained the records: so a
record counts once at most. A window ends with the report that brings it to its number of records,
or with training. Then it is a round without tasks of its own. No I/O, no clock.
"""

from __future__ import annotations

from shoal.master.work.evaluation.evaluation import Evaluations, MergedStates, Round
from shoal.master.work.units import Task, TaskIds, TaskQueue
from shoal.proto import shoal_pb2 as pb

PROGRESSIVE = "progressive"
"""The data of the rounds, as their tasks call them."""

LEAST = 0.5
"""Of a window, to be had by the last one, unless it is the only one: rules look at its numbers."""


class Windows(Evaluations):
    """The windows of a job: what is gathered, and at most one that is turned into numbers.

    window: records with a prediction after which a window ends.
    """

    def __init__(self, window: int, next_id: TaskIds) -> None:
        super().__init__(
            (), records_per_task=1, every_versions=0, next_id=next_id, data=PROGRESSIVE
        )
        self._window = window
        self._gathered, self._records = MergedStates(), 0

    def add(
        self,
        task: Task,
        states: pb.MetricStates,
        records: int,
        worker: str,
        version: int,
        epoch: int,
    ) -> None:
        """Add what came with the report of a TRAIN task, returned by `worker`.

        states: of `records` records of the task. version, epoch: of the model now.
        Raises as `MergedStates.add`.
        """
        if task.again or task.trained_before:
            return
        self._gathered.add(states, worker)
        self._records += records
        if self._records >= self._window:
            self.request(version, epoch)

    def request(self, version: int, epoch: int) -> None:
        """End the window under way, or let it end after the one that is turned into numbers.

        One with few records stays open, which only the last can have.
        """
        if self._round is not None:
            self._due = True
            return
        few = self._records < self._window * LEAST and bool(self.results)
        if self._gathered.empty or few:
            return
        self._rounds += 1
        none = TaskQueue([], self._next_id)
        ended = Round(self._rounds, version, epoch, none, self._gathered, predicted=self._records)
        self._gathered, self._records = MergedStates(), 0
        self._round = ended
        self._finish(ended)

    def resume(self, version: int) -> None:
        """See Evaluations; the window under way is given up too, and those after the model.

        Their records are trained again, and predicted before that.
        """
        super().resume(version)
        self.results = [each for each in self.results if each.version <= version]
        self._gathered, self._records = MergedStates(), 0
