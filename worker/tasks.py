"""Asking the master for tasks, reporting them, and the training tasks of a worker.

Owns what the worker and the master say of tasks: the one at work, the one leased ahead, their
reports. What is done with the batches is training/pipeline.py's and training/synchronous.py's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from shoal.data.places.index_store import Known
from shoal.data.reader import Source
from shoal.proto import faults, methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.channels.rpc import Connection
from shoal.worker.input import modes
from shoal.worker.input.batch import Batch
from shoal.worker.input.data import JobData
from shoal.worker.model.evaluation import Evaluation
from shoal.worker.model.model import Predicted, ServedModel
from shoal.worker.reports.heartbeat import Heartbeat
from shoal.worker.reports.progress import Progress
from shoal.worker.servers.group import ServerGroup


class TaskClient:
    """Leases tasks for one worker and reports them."""

    def __init__(
        self,
        master: Connection,
        worker: int,
        incarnation: int,
        servers: ServerGroup,
        progress: Progress,
        heartbeat: Heartbeat,
    ) -> None:
        self._master = master
        self._identity = (worker, incarnation)
        self._servers = servers
        self._progress = progress
        self._heartbeat = heartbeat

    def lease(self, held: int = 0) -> pb.GetTaskReply:
        """Ask for a task. held: one that is at work and not reported yet; 0 for none."""
        worker, incarnation = self._identity
        request = pb.GetTaskRequest(worker=worker, incarnation=incarnation, held=held)
        return self._master.call(methods.GET_TASK, request)

    def index_of(self, data: str, source: str) -> Known | None:
        """The description of a source that another worker told; None if none has."""
        worker, incarnation = self._identity
        request = pb.GetIndexRequest(
            worker=worker, incarnation=incarnation, data=data, source=source
        )
        reply = self._master.call(methods.GET_INDEX, request)
        if not reply.known:
            return None
        found = reply.source
        units = tuple(zip(found.units[::2], found.units[1::2], strict=True))
        return Known(Source(found.name, found.records, units), found.stamp, found.index)

    def report(
        self, report: pb.ReportTaskRequest, after: int = 0, *, next_wanted: bool = False
    ) -> pb.GetTaskReply:
        """Report a task. after: one leased ahead, which the worker goes on with; 0 for none.

        next_wanted: lease the task after that one too, as `lease(held=after)` does; returns the
        answer to that.
        """
        if self._progress.untold or report.HasField("metrics"):
            # What was left out is told before the task counts as done, the loss with an evaluation.
            self._heartbeat.beat()
        report.worker, report.incarnation = self._identity
        report.version = self._servers.version
        report.acknowledged = self._progress.acknowledged
        report.held = after if next_wanted else 0
        faults.point("task-done")
        reply = self._master.call(methods.REPORT_TASK, report)
        self._progress.begin(after)
        return reply.next


class TrainingTasks:
    """The training tasks and their batches, as the ways of training take them."""

    def __init__(
        self,
        client: TaskClient,
        data: JobData,
        model: ServedModel,
        evaluation: Callable[[], Evaluation],
    ) -> None:
        """evaluation: of the worker's metrics, which nothing else uses while it trains."""
        self._client = client
        self._data = data
        self._model = model
        self._evaluation = evaluation
        self._predicted = 0  # records in the states, of the task at work
        self._reductions: dict[int, int] = {}  # of the rate, by task leased ahead
        self._read = 0  # the last task that was read to its end
        self._answer: tuple[int, pb.GetTaskReply] | None = None  # what comes after which task

    def batches(self, task: pb.Task) -> Iterator[Batch]:
        """The batches of a task."""
        yield from self._data.pipeline(modes.TRAINING).batches(task.range, self._data.order(task))
        self._read = task.id

    def begin(self, task: pb.Task) -> None:
        """The first step of a task is about to be computed."""
        if task.id in self._reductions:
            self._model.callbacks.rate_reductions = self._reductions.pop(task.id)
        self._model.callbacks.begin(self._model.model, task.epoch)

    def ahead(self, task: pb.Task) -> pb.Task | None:
        """Lease the task after `task`, which is not done yet; None if there is none."""
        answer, self._answer = self._answer, None
        if answer is not None and answer[0] == task.id:
            reply = answer[1]
        else:
            reply = self._client.lease(held=task.id)
        if reply.WhichOneof("answer") != "task":
            return None
        self._reductions[reply.task.id] = reply.rate_reductions
        return reply.task

    def forget_predicted(self) -> None:
        """Let the predictions for a task that is not done count for no other."""
        self._predicted = 0

    def predicted(self, predicted: Predicted) -> None:
        """Add a batch's predictions to the metrics of the task at work."""
        evaluation = self._evaluation()
        if not self._predicted:
            evaluation.reset()
        evaluation.add_predictions(predicted.batch, predicted.outputs, predicted.of_layers)
        self._predicted += predicted.batch.size

    def fill(self, report: pb.ReportTaskRequest, task: pb.Task) -> None:
        """Say in a report that every push of a task is acknowledged."""
        report.task = task.id
        report.done = True
        report.stop_training = self._model.callbacks.stop_reason()
        report.records_done = task.range.end - task.range.start
        if self._predicted:
            report.progressive.CopyFrom(self._evaluation().states())
            report.progressive_records = self._predicted
            self.forget_predicted()

    def done(self, task: pb.Task, after: pb.Task) -> None:
        """Report a task; the one `after` it, leased ahead, goes on.

        Where all of that is read, `ahead` is called next: its answer comes with the report's.
        """
        report = pb.ReportTaskRequest()
        self.fill(report, task)
        wanted = self._read == after.id
        reply = self._client.report(report, after.id, next_wanted=wanted)
        if wanted:
            self._answer = after.id, reply
