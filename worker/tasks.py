"""Asking the master for tasks, reporting them, and the training tasks of a worker.

Owns what the worker and the master say of tasks: the one at work, the one leased ahead, their
reports. What is done with the batches is training/pipeline.py's and training/synchronous.py's.
"""

from __future__ import annotations

from collections.abc import Iterator

from shoal.proto import faults, methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.rpc import Connection
from shoal.worker.heartbeat import Heartbeat, Progress
from shoal.worker.input import feed
from shoal.worker.input.data import JobData
from shoal.worker.input.feed import Batch
from shoal.worker.model.model import ServedModel
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

    def report(self, report: pb.ReportTaskRequest, after: int = 0) -> None:
        """Report a task. after: one leased ahead, which the worker goes on with; 0 for none."""
        if self._progress.untold:
            self._heartbeat.beat()  # what was left out is told before the task counts as done
        report.worker, report.incarnation = self._identity
        report.version = self._servers.version
        report.acknowledged = self._progress.acknowledged
        faults.point("task-done")
        self._master.call(methods.REPORT_TASK, report)
        self._progress.begin(after)


class TrainingTasks:
    """The training tasks and their batches, as the ways of training take them."""

    def __init__(self, client: TaskClient, data: JobData, model: ServedModel) -> None:
        self._client = client
        self._data = data
        self._model = model
        self._reductions: dict[int, int] = {}  # of the rate, by task leased ahead

    def batches(self, task: pb.Task) -> Iterator[Batch]:
        """The batches of a task."""
        return self._data.pipeline(feed.TRAINING).batches(task.range)

    def begin(self, task: pb.Task) -> None:
        """The first step of a task is about to be computed."""
        if task.id in self._reductions:
            self._model.callbacks.rate_reductions = self._reductions.pop(task.id)
        self._model.callbacks.begin(self._model.model, task.epoch)

    def ahead(self, task: pb.Task) -> pb.Task | None:
        """Lease the task after `task`, which is not done yet; None if there is none."""
        reply = self._client.lease(held=task.id)
        if reply.WhichOneof("answer") != "task":
            return None
        self._reductions[reply.task.id] = reply.rate_reductions
        return reply.task

    def fill(self, report: pb.ReportTaskRequest, task: pb.Task) -> None:
        """Say in a report that every push of a task is acknowledged."""
        report.task = task.id
        report.done = True
        report.stop_training = self._model.callbacks.stop_reason()
        report.records_done = task.range.end - task.range.start

    def done(self, task: pb.Task, after: pb.Task) -> None:
        """Report a task; the one `after` it, leased ahead, goes on."""
        report = pb.ReportTaskRequest()
        self.fill(report, task)
        self._client.report(report, after.id)
