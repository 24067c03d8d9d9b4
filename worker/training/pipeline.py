"""The training pipeline: read and pull ahead, compute, push behind.

Owns the threads of training and the channels between them; steps.py has the parts of a step. There
are four stages, each in its own thread, joined by bounded channels:

    reading, feed  ->  ids, pull  ->  step  ->  push

While step t computes, batches up to t+depth are pulled, and gradients from t-depth on are pushed.
Batch t is pulled only when all pushes before t-depth are acknowledged, so a row is at most `depth`
of the worker's own pushes old. The rate of a schedule and the statistics of batch normalization
take these pushes into account (servers/in_flight.py). With --accumulate a push has several
batches. The next task is leased when the last batch of the present one has been read, and the
pipeline goes on into it. None of its pushes is sent before the present task is reported.

With --pipeline-depth 0, ids, pull, step and push follow one another in the caller's thread, and the
pipeline ends with the task: no row is older than the last push. Reading is ahead in any case; no
value depends on it. By need (depth.py) the depth begins at 0, and changes while the pipeline runs.

An exception in a stage ends the stages before it. The stages after it finish the earlier batches,
so that all of these count as trained; then the caller gets the exception.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any

from shoal.errors import Error
from shoal.proto import shoal_pb2 as pb
from shoal.worker.code.module import as_exception
from shoal.worker.input.batch import Batch
from shoal.worker.input.channel import READ_AHEAD, Channel, ChannelClosedError, read_ahead, taken
from shoal.worker.model.model import Prepared, ServedModel
from shoal.worker.reports.progress import Progress
from shoal.worker.training.depth import PipelineDepth
from shoal.worker.training.staleness import StalenessBound
from shoal.worker.training.steps import Step, Tasks, prepare, push, steps


@dataclass(frozen=True)
class Border:
    """Marks the end of one task and the beginning of the next in the channels."""

    before: pb.Task
    after: pb.Task


class TrainingPipeline:
    """Trains `model` on the batches of tasks.

    depth: a number of steps, or BY_NEED; see the module's text. progress: is told of every step
    that all servers have acknowledged, and ends the task early when it is interrupted. staleness:
    decides when the rows of a step may be pulled; None: at any time.
    """

    def __init__(
        self,
        model: ServedModel,
        depth: int,
        progress: Progress,
        tasks: Tasks,
        staleness: StalenessBound | None = None,
    ) -> None:
        self._model = model
        self._depth = PipelineDepth(depth, progress, lambda: model.servers.version)
        self._progress = progress
        self._tasks = tasks
        self._staleness = staleness

    def run(self, task: pb.Task) -> pb.Task:
        """Train on a task and on those leased ahead; return the last one, which is not reported.

        Every push is acknowledged when it returns, unless the progress is interrupted. Raises
        TaskError with the exception of a stage, at depth 0 the exception itself; an error about
        records names them. Every step before it is pushed then.
        """
        with self._progress.training():
            last = self._run(task)
            if self._staleness is not None and not self._progress.interrupted:
                self._staleness.end()
            return last

    def _run(self, task: pb.Task) -> pb.Task:
        self._depth.begin()
        if self._depth.most:
            return _Run(
                self._model, self._progress, self._staleness, self._tasks, task, self._depth
            ).run()
        self._tasks.begin(task)
        with closing(read_ahead(self._tasks.batches(task), self._progress)) as batches:
            prepared = self._prepared(batches)
            for step in steps(self._model, prepared, task, self._progress):
                push(self._model, self._progress, self._staleness, self._tasks, step)
                if self._progress.interrupted:
                    break
        return task

    def _prepared(self, batches: Iterator[Batch]) -> Iterator[Prepared]:
        for number, batch in enumerate(batches):
            begins = number % self._model.accumulated == 0
            if begins and self._staleness is not None and not self._staleness.wait():
                return
            yield prepare(self._model, batch, self._progress)


class TaskError(Error):
    """A stage raised `error` at `task`, one of those that a run had come to."""

    def __init__(self, task: pb.Task, error: Exception) -> None:
        super().__init__(task, error)
        self.task = task
        self.error = error


class _Run:
    """The four threads of a run, one for each stage.

    | thread   | stage        | takes from  | gives to    |
    | -------- | ------------ | ----------- | ----------- |
    | read     | `_reading`   | the tasks   | `_read`     |
    | pull     | `_pulling`   | `_read`     | `_pulled`   |
    | caller's | `_computing` | `_pulled`   | `_computed` |
    | push     | `_pushing`   | `_computed` | the servers |

    Two more channels hold nothing but places; the push thread frees them, others wait for one:

    - `_places`: one for each push whose batches are pulled and that is not acknowledged, which are
      the one that computes and as many before it as the depth is now. The pull thread takes them.
    - `_ahead`: one for the task leased ahead; the one after it is not asked for before it is at
      work. The read thread takes it.
    """

    def __init__(
        self,
        model: ServedModel,
        progress: Progress,
        staleness: StalenessBound | None,
        tasks: Tasks,
        first: pb.Task,
        depth: PipelineDepth,
    ) -> None:
        self._model = model
        self._progress = progress
        self._staleness = staleness
        self._tasks = tasks
        self._first = self._last = first
        self._depth = depth
        self._read: Channel[Batch | Border | TaskError] = Channel(max(depth.most, READ_AHEAD))
        self._pulled: Channel[Prepared | Border | TaskError] = Channel(depth.most)
        self._computed: Channel[Step | Border | TaskError] = Channel(depth.most)
        self._places: Channel[None] = Channel(depth.now + 1)
        self._ahead: Channel[None] = Channel(1)
        self._in_flight = model.servers.in_flight
        self._error: TaskError | None = None

    def run(self) -> pb.Task:
        self._in_flight.restart()
        stages: tuple[tuple[str, Callable[[_At], None], Channel[Any]], ...] = (
            ("read", self._reading, self._read),
            ("pull", self._pulling, self._pulled),
            ("step", self._computing, self._computed),
        )
        *others, (_, compute, computed) = stages
        threads = [
            threading.Thread(target=self._stage, args=(stage, out), name=name)
            for name, stage, out in others
        ]
        threads.append(threading.Thread(target=self._last_stage, name="push"))
        for thread in threads:
            thread.start()
        self._stage(compute, computed)
        for thread in threads:
            thread.join()
        if self._error is not None:
            raise self._error
        return self._last

    def _stage(self, stage: Callable[[_At], None], out: Channel[Any]) -> None:
        at = _At(self._first)
        with suppress(ChannelClosedError):  # another stage ended the run and said why
            try:
                stage(at)
            except ChannelClosedError:
                pass
            except BaseException as error:
                for channel in self._before(out):
                    channel.abort()
                out.put(TaskError(at.task, as_exception(error)))
            finally:
                out.finish()

    def _last_stage(self) -> None:
        at = _At(self._first)
        try:
            self._pushing(at)
        except TaskError as error:
            self._error = error
        except BaseException as error:
            self._error = TaskError(at.task, as_exception(error))
        finally:
            self._abort()

    def _before(self, out: Channel[Any]) -> list[Channel[Any]]:
        """The channels at which the stages before the one that fills `out` may wait."""
        order: list[Channel[Any]] = [self._read, self._pulled, self._computed]
        return [*order[: order.index(out)], self._ahead]

    def _abort(self) -> None:
        for channel in (self._read, self._pulled, self._computed, self._places, self._ahead):
            channel.abort()

    def _interrupted(self) -> bool:
        if self._progress.interrupted:
            self._abort()
            return True
        return False

    def _reading(self, at: _At) -> None:
        while True:
            for batch in self._tasks.batches(at.task):
                self._read.put(batch)
            if self._interrupted():
                return
            self._ahead.put(None)
            after = self._tasks.ahead(at.task)
            if after is None:
                break
            self._read.put(Border(at.task, after))
            self._last = at.task = after

    def _pulling(self, at: _At) -> None:
        number = 0
        for item in taken(self._read, self._progress, "wait for data"):
            if isinstance(item, TaskError):
                self._pulled.put(item)
                return
            if isinstance(item, Border):
                at.task, number = item.after, 0
                self._pulled.put(item)
                continue
            if number % self._model.accumulated == 0:
                with self._progress.stage("wait for push"):
                    self._places.put(None)
                if self._staleness is not None and not self._staleness.wait():
                    self._abort()
                    return
            number += 1
            self._pulled.put(prepare(self._model, item, self._progress))
            if self._interrupted():
                return

    def _computing(self, at: _At) -> None:
        self._tasks.begin(at.task)
        received = taken(self._pulled, self._progress, "wait for pull")
        while True:
            ends: list[Border | TaskError] = []
            batches = _until_end(received, ends)
            for step in steps(self._model, batches, at.task, self._progress, self._in_flight):
                self._computed.put(step)
            if not ends:
                return
            self._computed.put(ends[0])
            if isinstance(ends[0], TaskError):
                return
            at.task = ends[0].after
            self._tasks.begin(at.task)

    def _pushing(self, at: _At) -> None:
        for item in taken(self._computed):
            if isinstance(item, TaskError):
                raise item
            if isinstance(item, Step):
                push(self._model, self._progress, self._staleness, self._tasks, item)
                if self._depth.pushed():
                    self._places.resize(self._depth.now + 1)
                self._free(self._places)
                continue
            if self._interrupted():
                return
            self._tasks.done(item.before, item.after)
            at.task = item.after
            self._free(self._ahead)

    @staticmethod
    def _free(places: Channel[None]) -> None:
        with suppress(ChannelClosedError):  # no thread waits for one any more
            places.get()


@dataclass
class _At:
    """The task that a stage is at."""

    task: pb.Task


def _until_end(
    items: Iterator[Prepared | Border | TaskError], ends: list[Border | TaskError]
) -> Iterator[Prepared]:
    """The items before the next border or error, which is put into `ends`."""
    for item in items:
        if isinstance(item, Border | TaskError):
            ends.append(item)
            return
        yield item
