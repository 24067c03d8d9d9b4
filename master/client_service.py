"""The master's gRPC service for clients: status, stop, scale, audit, metrics, logs, stacks, ids.

Handlers convert between messages and the job's own types. The calls of the job's own processes are
in service.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from shoal.base.disk.job_folder import JobFolder
from shoal.base.disk.job_logs import log_of
from shoal.cluster.certificates import certified_servers, certified_workers
from shoal.errors import UserError
from shoal.master.calls.found_ids import FoundIds
from shoal.master.calls.slot_loads import SlotLoads
from shoal.master.calls.stacks import Stacks
from shoal.master.job.events import JobStopped, PublishingHeld, WorkersWanted
from shoal.master.job.view.status import status_message
from shoal.master.shared_job import SharedJob
from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError
from shoal.proto.methods import Method


class ClientService:
    """The handlers of clients' calls, over `job`.

    stacks: of the job's processes. found_ids, loads: of its servers. audit: returns the job's audit
    as JSON; raises UserError. trouble: as `Journal.trouble`. metrics: returns metrics.csv,
    shortened to fit into a reply.
    """

    def __init__(
        self,
        job: SharedJob,
        stacks: Stacks,
        found_ids: FoundIds,
        loads: SlotLoads,
        audit: Callable[[], str],
        trouble: Callable[[], tuple[float, str]],
        metrics: Callable[[], str],
    ) -> None:
        self._job = job
        self._stacks = stacks
        self._found_ids = found_ids
        self._loads = loads
        self._audit = audit
        self._trouble = trouble
        self._metrics = metrics

    def handlers(self) -> dict[Method[Any, Any], Callable[[Any], Any]]:
        """The table for serving.serve."""
        return {
            methods.GET_JOB_STATUS: self._get_job_status,
            methods.STOP_JOB: self._stop_job,
            methods.SCALE_JOB: self._scale_job,
            methods.HOLD_PUBLISHING: self._hold_publishing,
            methods.AUDIT_JOB: self._audit_job,
            methods.GET_JOB_METRICS: self._get_job_metrics,
            methods.GET_JOB_LOG: self._get_job_log,
            methods.GET_JOB_STACKS: self._get_job_stacks,
            methods.FIND_JOB_ID: self._found_ids.of,
        }

    def _get_job_status(self, request: pb.JobStatusRequest) -> pb.JobStatus:
        del request  # it has no fields
        # Without waiting for the disk: when that does not answer, this says so.
        return self._job.look(partial(status_message, trouble=self._trouble()))

    def _stop_job(self, request: pb.StopJobRequest) -> pb.StopJobReply:
        reason = request.reason or "asked to"
        self._job.answer(JobStopped(reason))
        return pb.StopJobReply()

    def _scale_job(self, request: pb.ScaleJobRequest) -> pb.ScaleJobReply:
        if request.rebalance:
            return self._rebalance()
        if request.num_servers:
            return self._scale_servers(request.num_servers)
        if request.num_workers < 1:
            raise WireError(pb.BAD_REQUEST, "a job needs at least one worker")
        most = certified_workers(self._job.config)
        self._check_certified(most, request.num_workers, "workers", "--workers")
        self._job.answer(WorkersWanted(request.num_workers))
        return pb.ScaleJobReply()

    def _scale_servers(self, servers: int) -> pb.ScaleJobReply:
        self._check_certified(certified_servers(self._job.config), servers, "servers", "--servers")
        self._job.answer(lambda job, now: job.scale_servers(servers, now))
        return pb.ScaleJobReply()

    def _check_certified(self, most: int | None, wanted: int, what: str, flag: str) -> None:
        """Raise WireError if more are wanted than have certificates; most: None for no limit."""
        name = self._job.config.job_name
        if most is not None and wanted > most:
            raise WireError(
                pb.BAD_REQUEST,
                f"job {name} has certificates for {most} {what}, made before it began. To have "
                f"more, stop it and continue it with: shoal train --resume {name} {flag} {wanted}",
            )

    def _rebalance(self) -> pb.ScaleJobReply:
        weights = self._loads.weights()
        moves = self._job.answer(lambda job, now: job.rebalance(weights, now))
        return pb.ScaleJobReply(moves=moves)

    def _hold_publishing(self, request: pb.HoldPublishingRequest) -> pb.HoldPublishingReply:
        config = self._job.config
        if not config.publish:
            raise WireError(pb.BAD_REQUEST, f"job {config.job_name} has no --publish")
        self._job.answer(PublishingHeld(request.held))
        return pb.HoldPublishingReply()

    def _audit_job(self, request: pb.AuditJobRequest) -> pb.AuditJobReply:
        del request  # it has no fields
        try:
            return pb.AuditJobReply(audit=self._audit())
        except UserError as error:
            raise WireError(pb.BAD_REQUEST, str(error)) from error

    def _get_job_metrics(self, request: pb.JobMetricsRequest) -> pb.JobMetrics:
        del request  # it has no fields
        return pb.JobMetrics(csv=self._metrics())

    def _get_job_log(self, request: pb.JobLogRequest) -> pb.JobLog:
        incarnation = request.incarnation if request.HasField("incarnation") else None
        folder = JobFolder(Path(self._job.config.job_dir))
        try:
            path = log_of(folder, request.role, request.index, incarnation)
            return pb.JobLog(text=path.read_text(errors="replace"))
        except (UserError, OSError) as error:
            raise WireError(pb.BAD_REQUEST, str(error)) from error

    def _get_job_stacks(self, request: pb.JobStacksRequest) -> pb.JobStacks:
        return pb.JobStacks(processes=self._stacks.of(request.role, request.index))
