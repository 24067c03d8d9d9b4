"""The master's gRPC service for servers and workers: one table from call to handler.

Handlers convert between messages and the job's own types, and nothing else. The calls of clients
are in client_service.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, assert_never

from shoal.master.data_index import DataIndex
from shoal.master.job.assignments import WAIT_SECONDS
from shoal.master.job.instructions import Assignment, Finished, Wait
from shoal.master.job.job import Job
from shoal.master.job.updates import Gradient
from shoal.master.shared_job import SharedJob
from shoal.master.stacks import Stacks
from shoal.master.step_losses import StepLosses
from shoal.master.work import outcomes
from shoal.master.work.applied import LastPush
from shoal.master.work.failures import Failure
from shoal.master.work.ids import ServerId, Start, WorkerId
from shoal.master.work.units import FoundSource, Source
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
        index: DataIndex | None = None,
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
        server = ServerId(request.server)
        self._job.hear(Start(server, request.incarnation), request.journal)
        fences, table = self._job.answer(
            lambda job, now: _with_table(
                job.server_registered(
                    server,
                    request.incarnation,
                    request.address,
                    now,
                    request.restored,
                    request.replayed,
                    tuple(map(LastPush.from_message, request.has)),
                    request.checkpoint,
                    request.update,
                    tuple(
                        Gradient(WorkerId(each.worker), each.incarnation, each.number)
                        for each in request.held
                    ),
                ),
                job,
            )
        )
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
        offer = self._job.answer(
            lambda job, now: job.restore_wanted(server, request.incarnation, now)
        )
        return pb.RestoreReply(
            again=offer.again,
            checkpoints=[number for number, _ in offer.checkpoints],
            nonces=[nonce for _, nonce in offer.checkpoints],
            replay=offer.replay,
            holder=offer.holder,
            whole_job=offer.whole_job,
            routing=offer.routing,
            joins=offer.joins,
        )

    def _check_protocol(self, start: Start, theirs: pb.Protocol) -> None:
        """Fail the job, and refuse the call, of a process that speaks another protocol."""
        why = mismatch("the master", str(start.process), theirs)
        if not why:
            return
        failure = Failure.of_user(why)
        self._job.answer(lambda job, now: job.process_failed(start, failure, now))
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
        server, told = ServerId(request.server), LastPush.from_message(request.acknowledged)
        self._job.answer(lambda job, now: job.worker_met(server, request.incarnation, told, now))
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
        worker = WorkerId(request.worker)
        self._check_protocol(Start(worker, request.incarnation), request.protocol)
        self._job.hear(Start(worker, request.incarnation), request.journal)
        welcome, table = self._job.answer(
            lambda job, now: _with_table(
                job.worker_registered(worker, request.incarnation, now), job
            )
        )
        return pb.RegisterWorkerReply(
            routing=table, servers=welcome.servers, data_known=welcome.data_known
        )

    def _get_routing(self, request: pb.GetRoutingRequest) -> pb.RegisterWorkerReply:
        if request.addresses_only:  # asked again and again while a server is away
            addresses = self._job.answer(lambda job, now: job.server_addresses(now))
            return pb.RegisterWorkerReply(servers=addresses)
        addresses, table = self._job.answer(
            lambda job, now: _with_table(job.server_addresses(now), job)
        )
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
        answer = self._job.answer(
            lambda job, now: job.clock_reported(worker, request.incarnation, request.clock, now)
        )
        return pb.ClockReply(slowest=answer.slowest, next=answer.next_told)

    def _join_update(self, request: pb.JoinUpdateRequest) -> pb.JoinUpdateReply:
        worker = WorkerId(request.worker)
        update = self._job.answer(
            lambda job, now: job.update_wanted(worker, request.incarnation, now)
        )
        return pb.JoinUpdateReply(joined=update is not None, update=update or 0)

    def _offer_gradient(self, request: pb.OfferGradientRequest) -> pb.OfferGradientReply:
        gradient = Gradient(WorkerId(request.worker), request.incarnation, request.number)
        admitted = self._job.answer(
            lambda job, now: job.gradient_offered(
                gradient, request.update, request.task, request.records_done, now
            )
        )
        return pb.OfferGradientReply(admitted=admitted)

    def _heartbeat(self, request: pb.HeartbeatRequest) -> pb.HeartbeatReply:
        worker = WorkerId(request.worker)
        self._job.hear(Start(worker, request.incarnation), request.journal)
        beat = outcomes.Heartbeat(
            request.task,
            request.records_done,
            request.version,
            request.loss,
            request.loss_batches,
            dict(request.stage_seconds),
            request.acknowledged,
            request.busy_seconds,
            request.busy_with,
            request.longest_seconds,
            request.waits_for,
            request.left_out,
            request.left_out_records,
            request.left_out_why,
            request.steps_done,
            learning_rate=request.learning_rate,
            pipeline=(request.pipeline_depth, request.pipeline_why),
        )
        answer = self._job.answer(
            lambda job, now: job.heartbeat(worker, request.incarnation, beat, now)
        )
        if self._losses is not None:
            self._losses.add(request.worker, request.incarnation, request.steps)
        reply = pb.HeartbeatReply(
            stop=answer.stop,
            abandon_task=answer.abandon_task,
            step_limit_seconds=answer.step_limit,
            journal=self._job.position(),
        )
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
            name = f"{request.worker}.{request.incarnation}-{request.task}"
            self._index.put(name, request.data)
        outcome = _outcome(request)
        trained = outcomes.Trained()
        if isinstance(outcome, Failure):
            trained = outcomes.Trained(request.records_done, request.records_touched)
        # As in _get_task: none is given out before all have spoken.
        held = request.held if request.held and self._job.all_heard else 0
        answer = self._job.answer(
            lambda job, now: job.report_made(
                worker,
                request.incarnation,
                request.task,
                outcome,
                request.version,
                now,
                trained,
                request.acknowledged,
                held,
            )
        )
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
        if number and isinstance(process, ServerId):
            self._job.answer(
                lambda job, now: job.checkpoint_refused(
                    process, request.incarnation, number, failure.message, now
                )
            )
        else:
            self._job.answer(lambda job, now: job.process_failed(start, failure, now))
        return pb.ReportFailureReply()


def _with_table(answer: Answer, job: Job) -> tuple[Answer, pb.RoutingTable]:
    """An answer, and the routing table of the same moment."""
    return answer, job.moves.routing.to_message()


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


def _outcome(request: pb.ReportTaskRequest) -> outcomes.Outcome:
    match request.WhichOneof("outcome"):
        case "done":
            return outcomes.Done(request.stop_training)
        case "failure":
            return Failure.from_message(request.failure)
        case "data":
            found = (request.data.training, request.data.validation, request.data.prediction)
            sources = [tuple(map(Source.from_message, kind)) for kind in found]
            data = request.data
            more = (data.more_training, data.more_validation, data.more_prediction)
            left = [tuple(FoundSource(each.name, each.weight) for each in kind) for kind in more]
            return outcomes.DataDescribed(
                *(sources[0], sources[1], sources[2]),
                data.rules,
                tuple(data.notes),
                *(left[0], left[1], left[2]),
            )
        case "states":
            return outcomes.StatesComputed(request.states)
        case "metrics":
            return outcomes.MetricsComputed(dict(request.metrics.values), request.stop_training)
        case _:
            raise WireError(pb.BAD_REQUEST, "a report without an outcome")
