"""The master's gRPC service for servers and workers: one table from call to handler.

Handlers convert between messages and the job's own types, and nothing else. The calls of clients
are in client_service.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar, assert_never

from shoal.files.described import DescribedSources
from shoal.master.calls.stacks import Stacks
from shoal.master.figures.step_losses import StepLosses
from shoal.master.job import events
from shoal.master.job.assignments import WAIT_SECONDS
from shoal.master.job.instructions import Assignment, Finished, Wait
from shoal.master.job.job import Job
from shoal.master.job.updates import Gradient
from shoal.master.shared_job import SharedJob
from shoal.master.work.accounts.applied import LastPush
from shoal.master.work.failures import Failure
from shoal.master.work.ids import ServerId, Start, WorkerId
from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError
from shoal.proto.methods import Method
from shoal.proto.protocol import mismatch

Answer = TypeVar("Answer")


class MasterService:
    """The handlers of servers' and workers' calls, over `job`.

    losses: takes the losses of steps that workers tell. stacks: takes the stacks that they tell.
    index: keeps what they tell of the data.
    """

    def __init__(
        self,
        job: SharedJob,
        losses: StepLosses | None = None,
        stacks: Stacks | None = None,
        index: DescribedSources | None = None,
    ) -> None:
        self._index = index
        self._job = job
        self._losses = losses
        self._stacks = stacks

    def handlers(self) -> dict[Method[Any, Any], Callable[[Any], Any]]:
        """The table for serving.serve."""
        return {
            methods.GET_RESTORE: self._get_restore,
            methods.REGISTER_SERVER: self._register_server,
            methods.REPORT_PROGRESS: self._report_progress,
            methods.WORKER_MET: self._worker_met,
            methods.DRAIN: self._drain,
            methods.REGISTER_WORKER: self._register_worker,
            methods.GET_ROUTING: self._get_routing,
            methods.GET_TASK: self._get_task,
            methods.GET_INDEX: self._get_index,
            methods.REPORT_CLOCK: self._report_clock,
            methods.JOIN_UPDATE: self._join_update,
            methods.OFFER_GRADIENT: self._offer_gradient,
            methods.HEARTBEAT: self._heartbeat,
            methods.REPORT_TASK: self._report_task,
            methods.REPORT_FAILURE: self._report_failure,
        }

    def _register_server(self, request: pb.RegisterServerRequest) -> pb.RegisterServerReply:
        event = events.ServerRegistered.from_message(request)
        self._job.hear(Start(event.server, event.incarnation), request.journal)
        fences, table = self._job.answer(partial(_with_table, event))
        return pb.RegisterServerReply(
            routing=table,
            fences=[
                pb.FenceRequest(
                    worker=each.worker.index, incarnation=each.incarnation, kept=each.kept
                )
                for each in fences
            ],
        )

    def _get_restore(self, request: pb.RestoreRequest) -> pb.RestoreReply:
        server = ServerId(request.server)
        self._check_protocol(Start(server, request.incarnation), request.protocol)
        return self._job.answer(
            lambda job, now: job.restore_wanted(server, request.incarnation, now)
        )

    def _check_protocol(self, start: Start, theirs: pb.Protocol) -> None:
        """Fail the job, and refuse the call, of a process that speaks another protocol."""
        why = mismatch("the master", str(start.process), theirs)
        if not why:
            return
        failure = Failure.of_user(why)
        self._job.answer(events.ProcessFailed(start, failure))
        raise WireError(pb.OTHER_PROTOCOL, why)

    def _report_progress(self, request: pb.ReportProgressRequest) -> pb.ReportProgressReply:
        server = ServerId(request.server)
        self._job.answer(
            lambda job, now: job.server_progressed(
                server, request.incarnation, request.progress, now
            )
        )
        return pb.ReportProgressReply()

    def _worker_met(self, request: pb.WorkerMetRequest) -> pb.WorkerMetReply:
        told = LastPush.from_message(request.acknowledged)
        self._job.answer(events.WorkerMet(ServerId(request.server), request.incarnation, told))
        return pb.WorkerMetReply()

    def _drain(self, request: pb.DrainRequest) -> pb.DrainReply:
        server = ServerId(request.server)
        drained = self._job.answer(
            lambda job, now: job.server_draining(
                server, request.incarnation, now, request.seconds, closed=request.closed
            )
        )
        outcome = drained.outcome
        return pb.DrainReply(wait=outcome is None, outcome=outcome or "", serve=drained.serves)

    def _register_worker(self, request: pb.RegisterWorkerRequest) -> pb.RegisterWorkerReply:
        event = events.WorkerRegistered(WorkerId(request.worker), request.incarnation)
        start = Start(event.worker, event.incarnation)
        self._check_protocol(start, request.protocol)
        self._job.hear(start, request.journal)
        reply, table = self._job.answer(partial(_with_table, event))
        reply.routing.CopyFrom(table)
        return reply

    def _get_routing(self, request: pb.GetRoutingRequest) -> pb.RegisterWorkerReply:
        if request.addresses_only:  # asked again and again while a server is away
            return pb.RegisterWorkerReply(servers=self._job.answer(Job.server_addresses))
        addresses, table = self._job.answer(partial(_with_table, Job.server_addresses))
        return pb.RegisterWorkerReply(routing=table, servers=addresses)

    def _get_task(self, request: pb.GetTaskRequest) -> pb.GetTaskReply:
        worker = WorkerId(request.worker)
        self._job.hear(Start(worker, request.incarnation), request.journal)
        if not self._job.all_heard:
            # Somebody may know of events that are missing: then no task is to be given out.
            if request.held:
                return pb.GetTaskReply(finished=True)
            return pb.GetTaskReply(wait_seconds=WAIT_SECONDS)
        answer = self._job.answer(
            lambda job, now: job.assignment_wanted(worker, request.incarnation, request.held, now)
        )
        reply = _task_reply(answer)
        if isinstance(answer, Assignment):
            reply.journal.CopyFrom(self._job.position())
        return reply

    def _report_clock(self, request: pb.ClockRequest) -> pb.ClockReply:
        worker = WorkerId(request.worker)
        return self._job.answer(
            lambda job, now: job.clock_reported(worker, request.incarnation, request.clock, now)
        )

    def _join_update(self, request: pb.JoinUpdateRequest) -> pb.JoinUpdateReply:
        worker = WorkerId(request.worker)
        update = self._job.answer(
            lambda job, now: job.update_wanted(worker, request.incarnation, now)
        )
        return pb.JoinUpdateReply(joined=update is not None, update=update or 0)

    def _offer_gradient(self, request: pb.OfferGradientRequest) -> pb.OfferGradientReply:
        gradient = Gradient(WorkerId(request.worker), request.incarnation, request.number)
        event = events.GradientOffered(gradient, request.update, request.task, request.records_done)

        def offer(job: Job, now: float) -> pb.OfferGradientReply:
            admitted = event(job, now)
            ahead = job.updates.join_ahead(gradient.worker) if request.ready else None
            return pb.OfferGradientReply(admitted=admitted, next=ahead or 0)

        return self._job.answer(offer)

    def _heartbeat(self, request: pb.HeartbeatRequest) -> pb.HeartbeatReply:
        worker = WorkerId(request.worker)
        self._job.hear(Start(worker, request.incarnation), request.journal)
        reply = self._job.answer(
            lambda job, now: job.heartbeat(worker, request.incarnation, request, now)
        )
        reply.journal.CopyFrom(self._job.position())
        if self._losses is not None:
            self._losses.add(request.worker, request.incarnation, request.steps)
        if self._stacks is not None:
            self._stacks.heard(Start(worker, request.incarnation), request, reply)
        return reply

    def _get_index(self, request: pb.GetIndexRequest) -> pb.GetIndexReply:
        found = None if self._index is None else self._index.get(request.data, request.source)
        return pb.GetIndexReply(known=found is not None, source=found)

    def _report_task(self, request: pb.ReportTaskRequest) -> pb.ReportTaskReply:
        worker = WorkerId(request.worker)
        self._job.hear(Start(worker, request.incarnation), request.journal)
        if self._index is not None and request.HasField("data"):
            # Before anybody is given a task of these sources.
            self._index.put(
                (kind, source)
                for kind in ("training", "validation", "prediction")
                for source in getattr(request.data, kind)
            )
        report = events.TaskReported.from_message(request)
        # As in _get_task: none is given out before all have spoken.
        held = request.held if request.held and self._job.all_heard else 0
        answer = self._job.answer(lambda job, now: job.report_made(report, held, now))
        if not request.held:
            return pb.ReportTaskReply()
        return pb.ReportTaskReply(next=_task_reply(answer), journal=self._job.position())

    def _report_failure(self, request: pb.ReportFailureRequest) -> pb.ReportFailureReply:
        process: WorkerId | ServerId
        if request.role == WorkerId.role:
            process = WorkerId(request.index)
        elif request.role == ServerId.role:
            process = ServerId(request.index)
        else:
            raise WireError(pb.BAD_REQUEST, f"role must be worker or ps, not {request.role!r}")
        start = Start(process, request.incarnation)
        failure = Failure.from_message(request.failure)
        number = request.refused_checkpoint
        event: events.Event[None] = events.ProcessFailed(start, failure)
        if number and isinstance(process, ServerId):
            event = events.CheckpointRefused(process, start.incarnation, number, failure.message)
        self._job.answer(event)
        return pb.ReportFailureReply()


def _with_table(
    change: Callable[[Job, float], Answer], job: Job, now: float
) -> tuple[Answer, pb.RoutingTable]:
    """The answer of a change, and the routing table of the same moment."""
    return change(job, now), job.moves.routing.to_message()


def _task_reply(answer: Assignment | Wait | Finished) -> pb.GetTaskReply:
    match answer:
        case Wait(seconds):
            return pb.GetTaskReply(wait_seconds=seconds)
        case Finished():
            return pb.GetTaskReply(finished=True)
        case Assignment(task, clock, rate_reductions):
            return pb.GetTaskReply(
                task=task.to_message(), clock=clock, rate_reductions=rate_reductions
            )
        case _:
            assert_never(answer)
