"""Evaluation rounds: when one starts, its tasks, and the exact merge of metric states.

A round is every validation record once. Each task returns metric states, which are
added in float64, or whose rows are appended. The whole goes back to a worker, which
turns it into numbers. What a state means is the worker's affair. No I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.base.slices import KeyedRows
from shoal.errors import Error
from shoal.master.work.tasks import poison
from shoal.master.work.tasks.cutting import cut
from shoal.master.work.units import ANYBODY, Requester, Source, Task, TaskIds, TaskQueue
from shoal.proto import shoal_pb2 as pb
from shoal.proto.values.metric_states import check_size, tell_rows

Floats = npt.NDArray[np.float64]


class MetricMismatchError(Error):
    """Two workers returned metric states that cannot be added; the text names both."""


class MergedStates:
    """A sum of metric states."""

    def __init__(self) -> None:
        self._sums: dict[str, list[Floats]] | None = None
        # Of metrics whose rows are appended: what each task gave. `_sums` has them without rows.
        self._appended: dict[str, list[list[Floats]]] = {}
        self._rows: dict[str, KeyedRows] = {}
        self._sizes: dict[str, int] = {}
        self._first = ""

    def __getstate__(self) -> dict[str, Any]:
        sums = self.to_message() if self._sums is not None else None
        return {"sums": sums, "first": self._first}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._sums, self._appended, self._sizes, self._first = None, {}, {}, state["first"]
        self._rows = {}
        if state["sums"] is not None:
            self.add(state["sums"], self._first)

    def add(self, states: pb.MetricStates, worker: str) -> None:
        """Add one task's states, returned by `worker`.

        Raises MetricMismatchError if names or shapes differ from those before, UserError if the
        sum is larger than a message to a worker may be.
        """
        try:
            arrays = _arrays(states)
            sizes = {name: sum(each.nbytes for each in arrays[name]) for name in arrays}
            appended = {each.name: arrays[each.name] for each in states.metrics if each.appended}
            arrays |= {
                name: [each[:0] for each in variables] for name, variables in appended.items()
            }
            keyed = {each.name: each.rows for each in states.metrics if each.HasField("rows")}
            if self._sums is None:
                self._rows = {name: KeyedRows() for name in keyed}
            if keyed.keys() != self._rows.keys():
                raise ValueError(f"rows of {[*keyed]} do not fit those of {[*self._rows]}")
            for name, rows in keyed.items():
                self._rows[name].add(rows.keys, rows.positions, rows.values, rows.width)
                sizes[name] = 0
        except (ValueError, IndexError) as error:
            raise MetricMismatchError(
                f"{worker} returned a damaged metric state: {error}"
            ) from error
        self._sizes |= {name: rows.nbytes for name, rows in self._rows.items()}
        if self._sums is None:
            self._sums, self._first = arrays, worker
            self._appended = {name: [variables] for name, variables in appended.items()}
            self._sizes = sizes | self._sizes
            check_size(self._sizes)
            return
        if _shapes(arrays) != _shapes(self._sums) or appended.keys() != self._appended.keys():
            raise MetricMismatchError(
                "two workers returned metric states that do not match: "
                f"{self._first} {_shapes(self._sums)}, {worker} {_shapes(arrays)}"
            )
        for name, variables in arrays.items():
            for total, addend in zip(self._sums[name], variables, strict=True):
                total += addend
        for name, variables in appended.items():
            self._appended[name].append(variables)
            self._sizes[name] += sizes[name]
        check_size(self._sizes)

    @property
    def empty(self) -> bool:
        """True if nothing was added."""
        return self._sums is None

    def to_message(self) -> pb.MetricStates:
        """The sum for the wire."""
        states = pb.MetricStates()
        for name, arrays in (self._sums or {}).items():
            state = states.metrics.add(
                name=name,
                variables=[
                    pb.DoubleArray(shape=array.shape, values=array.ravel())
                    for array in self._whole(name, arrays)
                ],
                appended=name in self._appended,
            )
            if name in self._rows:
                tell_rows(state, self._rows[name].sparse())
        return states

    def _whole(self, name: str, arrays: list[Floats]) -> list[Floats]:
        if name not in self._appended:
            return arrays
        return [np.concatenate(pieces) for pieces in zip(*self._appended[name], strict=True)]


def _arrays(states: pb.MetricStates) -> dict[str, list[Floats]]:
    return {
        metric.name: [
            np.array(variable.values, np.float64).reshape(tuple(variable.shape))
            for variable in metric.variables
        ]
        for metric in states.metrics
    }


def _shapes(arrays: dict[str, list[Floats]]) -> dict[str, list[tuple[int, ...]]]:
    return {name: [array.shape for array in arrays[name]] for name in sorted(arrays)}


@dataclass(frozen=True)
class EvaluationResult:
    """The numbers of one round.

    version: model version at the round's start; of a window (progressive.py), at its end.
    epoch: training epoch then, from 0.
    loss: in training since the round before, on average; None if that is no number.
    """

    version: int
    epoch: int
    metrics: dict[str, float]
    records: int
    loss: float | None = None


@dataclass
class Round:
    """A round under way. predicted: records of a window, which has no tasks (progressive.py)."""

    number: int
    version: int
    epoch: int
    tasks: TaskQueue
    merged: MergedStates = field(default_factory=MergedStates)
    finish: TaskQueue | None = None
    predicted: int = 0

    @property
    def records(self) -> int:
        """Records that it is of."""
        return self.tasks.records_total + self.predicted

    @property
    def open(self) -> TaskQueue:
        """The tasks to do now."""
        return self.finish or self.tasks


class Evaluations:
    """The rounds of a job: at most one at a time.

    sources: validation data. data: "validation"; "training" for the earlier model's on new records.
    complete: whether these are all there are; without, rounds wait.
    every_versions: a round is due whenever the model version passes a multiple of
        this; 0 for never.

    slices: of the newest of them, the worst ones.
    results: of all rounds that have ended. course: those of them whose model the present one has
    grown from, which rules are to look at: not of what a resumption has lost.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        *,
        records_per_task: int,
        every_versions: int,
        next_id: TaskIds,
        batch_size: int = 1,
        complete: bool = True,
        data: str = "validation",
    ) -> None:
        self._data = data
        self._sources = tuple(sources)
        self._length = records_per_task, batch_size
        self._complete = complete
        self._spans = cut(self._sources, *self._length) if complete else []
        self._bad: dict[str, set[int]] = {}
        self._every = every_versions
        self._next_id = next_id
        self._multiples = 0
        self._round: Round | None = None
        self._due = False
        self._rounds = 0
        self.slices: tuple[pb.SliceMetrics, ...] = ()
        self.results: list[EvaluationResult] = []
        self.course: list[EvaluationResult] = []

    def extend(
        self, sources: Sequence[Source], *, complete: bool, version: int, epoch: int
    ) -> None:
        """There are more sources. complete: these are the last, and a round that is due begins.

        version, epoch: of the model now.
        """
        self._sources += tuple(sources)
        self._complete = complete
        if complete:
            self._spans = cut(self._sources, *self._length)
            if self._due and self._round is None:
                self._due = False
                self.request(version, epoch)

    def resume(self, version: int) -> None:
        """The job goes on with the model at `version`; a round under way is given up."""
        self._round = None
        self._due = False
        self.course = [each for each in self.course if each.version <= version]
        self._bad.clear()
        self._multiples = version // self._every if self._every else 0

    @property
    def idle(self) -> bool:
        """True if no round is under way or due."""
        return self._round is None and not self._due

    @property
    def tasks_left(self) -> int:
        """Tasks that are not done of the round under way, and of the one that is due."""
        left = 0 if self._round is None else self._round.open.left
        return left + len(self._spans) * self._due

    @property
    def records_total(self) -> int:
        """Records in a round, but for those given up."""
        return sum(map(len, self._spans)) - sum(map(len, self._bad.values()))

    @property
    def records_done(self) -> int:
        """Records evaluated in the round under way; all of them after the last."""
        if self._round is None:
            return self.records_total if self.results else 0
        return self._round.tasks.records_done

    def due_at(self, version: int) -> bool:
        """True if a multiple was passed since the last round of its own."""
        return self._every > 0 and version // self._every > self._multiples

    def version_reached(self, version: int, epoch: int) -> None:
        """The model is at `version`: start a round if a multiple was passed."""
        if self.due_at(version):
            self._multiples = version // self._every
            self.request(version, epoch)

    def request(self, version: int, epoch: int) -> None:
        """Start a round, or let one follow the round under way.

        Requests that come during a round become a single one: several rounds of the
        same model would say nothing new.
        """
        if self._round is not None or not self._complete:
            self._due = True
            return
        if not self._spans:
            return  # without records there is nothing to say
        self._rounds += 1
        tasks = [
            Task(self._next_id(), pb.EVALUATE, span, epoch, self._rounds, data=self._data)
            for whole in self._spans
            for span in poison.without_bad(whole, self._bad.get(whole.source, ()))
        ]
        self._round = Round(self._rounds, version, epoch, TaskQueue(tasks, self._next_id))

    def take(self, requester: Requester = ANYBODY) -> Task | None:
        """Lease the next task of the round under way; None while there is none."""
        return None if self._round is None else self._round.open.take(requester)

    def retry(self, task: Task, pieces: Sequence[Task]) -> None:
        """Give out these pieces of a leased EVALUATE task that failed."""
        self._current().tasks.retry(task.id, pieces)

    def give_up(self, task: Task) -> bool:
        """Give up a leased EVALUATE task of one record, in later rounds too.

        Returns whether the round is left with no record at all: it has no metrics then.
        """
        span, current = task.span, self._current()
        assert span is not None
        self._bad.setdefault(span.source, set()).add(span.start)
        current.tasks.give_up(task.id)
        if current.tasks.finished:
            if current.merged.empty:
                return True
            self._finish(current)
        return False

    def give_back(self, task: Task) -> None:
        """Take a leased task from a dead worker. Raises KeyError if not leased."""
        current = self._current()
        queue = current.tasks if task.kind == pb.EVALUATE else current.finish
        assert queue is not None
        queue.give_back(task.id)

    def _current(self) -> Round:
        # A leased task keeps its round open, so whoever holds one finds it.
        assert self._round is not None
        return self._round

    def states_in(self, task: Task, states: pb.MetricStates, worker: str) -> None:
        """Count the states of a leased EVALUATE task, once.

        Raises as `MergedStates.add`, and KeyError if not leased.
        """
        current = self._current()
        current.tasks.complete(task.id)
        current.merged.add(states, worker)
        if current.tasks.finished:
            self._finish(current)

    def _finish(self, current: Round) -> None:
        finish = Task(
            self._next_id(),
            pb.FINISH_EVALUATION,
            epoch=current.epoch,
            evaluation=current.number,
            data=self._data,
            states=current.merged.to_message(),
        )
        current.finish = TaskQueue([finish], self._next_id)
        current.merged = MergedStates()  # the task has them now, and a state of the job has it

    def metrics_in(
        self,
        task: Task,
        metrics: dict[str, float],
        version: int,
        epoch: int,
        loss: float | None = None,
        slices: Sequence[pb.SliceMetrics] = (),
    ) -> EvaluationResult:
        """End the round with its numbers, and start the next if one is due.

        version, epoch: of the model now, for the next round. loss: as of EvaluationResult.

        Raises KeyError if the FINISH_EVALUATION task is not leased.
        """
        current = self._current()
        assert current.finish is not None
        current.finish.complete(task.id)
        result = EvaluationResult(current.version, current.epoch, metrics, current.records, loss)
        self.results.append(result)
        self.slices = tuple(slices)
        self.course.append(result)
        self._round = None
        if self._due:
            self._due = False
            self.request(version, epoch)
        return result
