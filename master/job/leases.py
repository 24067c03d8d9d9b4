"""The holder of each task: a lease ends by a report (`end`) or by a death (`take_back`). No I/O."""

from __future__ import annotations

from shoal.master.work.ids import WorkerId
from shoal.master.work.units import Task


class Leases:
    """The task that each worker is at, and the training task that it may hold beside it.

    Nothing of the one beside is pushed before the one at work is reported. So of a dead
    worker's two tasks at most the first is begun.
    """

    def __init__(self) -> None:
        self._held: dict[WorkerId, Task] = {}
        self._ahead: dict[WorkerId, Task] = {}

    def held(self, worker: WorkerId) -> Task | None:
        """The task that a worker is at."""
        return self._held.get(worker)

    def ahead(self, worker: WorkerId) -> Task | None:
        """The training task that a worker holds beside that, and has not begun."""
        return self._ahead.get(worker)

    def of(self, worker: WorkerId, task_id: int) -> Task | None:
        """The task of this id if the worker holds it."""
        both = (self._held.get(worker), self._ahead.get(worker))
        return next((task for task in both if task is not None and task.id == task_id), None)

    def others_than(self, worker: WorkerId) -> bool:
        """True if other workers hold tasks too."""
        return any(each != worker for each in self._held)

    def hold(self, worker: WorkerId, task: Task) -> None:
        """A worker is at this task from now on."""
        self._held[worker] = task

    def hold_ahead(self, worker: WorkerId, task: Task) -> None:
        """A worker holds this training task beside the one that it is at."""
        self._ahead[worker] = task

    def end(self, worker: WorkerId) -> None:
        """A worker is through with the task that it was at, and goes on to the one beside."""
        del self._held[worker]
        if (ahead := self._ahead.pop(worker, None)) is not None:
            self._held[worker] = ahead

    def take_back(self, worker: WorkerId) -> tuple[Task | None, Task | None]:
        """A worker holds nothing any more; returns what it was at, and what beside."""
        return self._held.pop(worker, None), self._ahead.pop(worker, None)

    def clear(self) -> None:
        """Nobody holds anything any more."""
        self._held.clear()
        self._ahead.clear()
