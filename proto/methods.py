"""The calls of both services as typed values, one each.

`serving.serve` and `rpc.Connection.call` take these instead of generated stubs: the
types of request and reply follow from the value. Methods with a kind carry arrays and travel on
the data plane (plane/); a test holds the others against shoal.proto.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from google.protobuf.message import Message

from shoal.proto import shoal_pb2 as pb

Request = TypeVar("Request", bound=Message | bytes)
Reply = TypeVar("Reply", bound=Message | bytes)


class Threads(enum.Enum):
    """Which of a server's threads handle a call.

    Those for WORKERS may all be busy. So calls of logs have their own; so have questions for the
    STATE of a process, whose handlers never wait, since who does not answer them is taken for dead;
    and so have the calls that CONTROL a job, which may wait for pushes or for a disk.
    """

    WORKERS = "workers"
    LOG = "log"
    STATE = "state"
    CONTROL = "control"


THREADS = {
    Threads.LOG: 2,
    Threads.STATE: 2,
    Threads.CONTROL: 8,
}
"""How many there are, but for those for workers: whoever serves says their number."""


@dataclass(frozen=True)
class Method(Generic[Request, Reply]):
    """One call: its service and name, and the types of request and reply.

    kind: its number on the data plane; 0: it is a call of gRPC.
    streaming: the reply is a stream of `reply`, not a single one; only on the data plane.
    label: of a request of bytes, a small message that travels before them; the handler gets
        (label, bytes). So bytes that came from elsewhere are passed on as they are.
    threads: of gRPC's, which handle it.
    """

    service: str
    name: str
    request: type[Request]
    reply: type[Reply]
    streaming: bool = False
    label: type[Message] | None = None
    threads: Threads = Threads.WORKERS
    kind: int = 0

    @property
    def path(self) -> str:
        """The gRPC path, /package.Service/Name; on the data plane, a name for people."""
        return f"/{self.service}/{self.name}"


SERVER = "shoal.v1.ParameterServer"
MASTER = "shoal.v1.Master"

REGISTER = Method(SERVER, "Register", pb.RegisterRequest, pb.RegisterReply)
INITIALIZE_DENSE: Method[Any, bytes] = Method(SERVER, "InitializeDense", bytes, bytes, kind=1)
PULL: Method[Any, bytes] = Method(SERVER, "Pull", bytes, bytes, kind=2)
PUSH: Method[Any, bytes] = Method(SERVER, "Push", bytes, bytes, kind=3)
READ_TABLE = Method(SERVER, "ReadTable", pb.ReadTableRequest, bytes, streaming=True, kind=4)
ASSIGN_ROWS: Method[Any, bytes] = Method(SERVER, "AssignRows", bytes, bytes, kind=5)
FENCE = Method(SERVER, "Fence", pb.FenceRequest, pb.FenceReply, threads=Threads.CONTROL)
BEGIN_CHECKPOINT = Method(
    SERVER,
    "BeginCheckpoint",
    pb.BeginCheckpointRequest,
    pb.BeginCheckpointReply,
    threads=Threads.CONTROL,
)
WRITE_SHARD = Method(
    SERVER, "WriteShard", pb.WriteShardRequest, pb.WriteShardReply, threads=Threads.CONTROL
)
DROP_CHECKPOINT = Method(
    SERVER,
    "DropCheckpoint",
    pb.DropCheckpointRequest,
    pb.DropCheckpointReply,
    threads=Threads.CONTROL,
)
COMPLETE_CHECKPOINT = Method(
    SERVER,
    "CompleteCheckpoint",
    pb.CompleteCheckpointRequest,
    pb.CompleteCheckpointReply,
    threads=Threads.CONTROL,
)
PUBLISH = Method(SERVER, "Publish", pb.PublishRequest, pb.PublishReply, threads=Threads.CONTROL)
BEGIN_LOG = Method(SERVER, "BeginLog", pb.BeginLogRequest, pb.BeginLogReply, threads=Threads.LOG)
APPEND_LOG: Method[Any, pb.AppendLogReply] = Method(
    SERVER, "AppendLog", bytes, pb.AppendLogReply, label=pb.LogGroup, kind=6
)
DROP_LOG = Method(SERVER, "DropLog", pb.DropLogRequest, pb.DropLogReply, threads=Threads.LOG)
TAKE_LOG = Method(SERVER, "TakeLog", pb.TakeLogRequest, bytes, streaming=True, kind=7)
APPLY_UPDATE = Method(SERVER, "ApplyUpdate", pb.ApplyUpdateRequest, pb.ApplyUpdateReply, kind=9)
SET_ROUTING = Method(
    SERVER, "SetRouting", pb.RoutingTable, pb.SetRoutingReply, threads=Threads.CONTROL
)
BEGIN_MOVE = Method(
    SERVER, "BeginMove", pb.BeginMoveRequest, pb.BeginMoveReply, threads=Threads.CONTROL
)
SEND_ROWS = Method(
    SERVER, "SendRows", pb.SendRowsRequest, pb.SendRowsReply, threads=Threads.CONTROL
)
TAKE_ROWS: Method[Any, bytes] = Method(SERVER, "TakeRows", bytes, bytes, kind=8)
FREEZE = Method(SERVER, "Freeze", pb.FreezeRequest, pb.FreezeReply, threads=Threads.CONTROL)
JOIN = Method(SERVER, "Join", pb.JoinRequest, pb.JoinReply, threads=Threads.CONTROL)
END_MOVE = Method(SERVER, "EndMove", pb.EndMoveRequest, pb.EndMoveReply, threads=Threads.CONTROL)
READY = Method(SERVER, "Ready", pb.ReadyRequest, pb.ReadyReply, threads=Threads.STATE)
STATUS = Method(SERVER, "Status", pb.ServerStatusRequest, pb.ServerStatus, threads=Threads.STATE)
GET_STACKS = Method(SERVER, "GetStacks", pb.StacksRequest, pb.ProcessStacks, threads=Threads.STATE)
FIND_ID = Method(SERVER, "FindId", pb.FindIdRequest, pb.FoundId, threads=Threads.STATE)
SHUTDOWN = Method(SERVER, "Shutdown", pb.ShutdownRequest, pb.ShutdownReply, threads=Threads.STATE)

GET_RESTORE = Method(
    MASTER, "GetRestore", pb.RestoreRequest, pb.RestoreReply, threads=Threads.CONTROL
)
REPORT_PROGRESS = Method(
    MASTER,
    "ReportProgress",
    pb.ReportProgressRequest,
    pb.ReportProgressReply,
    threads=Threads.CONTROL,
)
REGISTER_SERVER = Method(
    MASTER,
    "RegisterServer",
    pb.RegisterServerRequest,
    pb.RegisterServerReply,
    threads=Threads.CONTROL,
)
WORKER_MET = Method(
    MASTER, "WorkerMet", pb.WorkerMetRequest, pb.WorkerMetReply, threads=Threads.CONTROL
)
DRAIN = Method(MASTER, "Drain", pb.DrainRequest, pb.DrainReply, threads=Threads.CONTROL)
REGISTER_WORKER = Method(MASTER, "RegisterWorker", pb.RegisterWorkerRequest, pb.RegisterWorkerReply)
GET_ROUTING = Method(
    MASTER, "GetRouting", pb.GetRoutingRequest, pb.RegisterWorkerReply, threads=Threads.CONTROL
)
GET_TASK = Method(MASTER, "GetTask", pb.GetTaskRequest, pb.GetTaskReply)
GET_INDEX = Method(MASTER, "GetIndex", pb.GetIndexRequest, pb.GetIndexReply)
REPORT_CLOCK = Method(MASTER, "ReportClock", pb.ClockRequest, pb.ClockReply)
JOIN_UPDATE = Method(MASTER, "JoinUpdate", pb.JoinUpdateRequest, pb.JoinUpdateReply, kind=10)
OFFER_GRADIENT = Method(
    MASTER, "OfferGradient", pb.OfferGradientRequest, pb.OfferGradientReply, kind=11
)
HEARTBEAT = Method(MASTER, "Heartbeat", pb.HeartbeatRequest, pb.HeartbeatReply)
REPORT_TASK = Method(MASTER, "ReportTask", pb.ReportTaskRequest, pb.ReportTaskReply)
REPORT_FAILURE = Method(MASTER, "ReportFailure", pb.ReportFailureRequest, pb.ReportFailureReply)
GET_JOB_STATUS = Method(
    MASTER, "GetJobStatus", pb.JobStatusRequest, pb.JobStatus, threads=Threads.STATE
)
STOP_JOB = Method(MASTER, "StopJob", pb.StopJobRequest, pb.StopJobReply, threads=Threads.CONTROL)
AUDIT_JOB = Method(
    MASTER, "AuditJob", pb.AuditJobRequest, pb.AuditJobReply, threads=Threads.CONTROL
)
HOLD_PUBLISHING = Method(
    MASTER,
    "HoldPublishing",
    pb.HoldPublishingRequest,
    pb.HoldPublishingReply,
    threads=Threads.CONTROL,
)
SCALE_JOB = Method(
    MASTER, "ScaleJob", pb.ScaleJobRequest, pb.ScaleJobReply, threads=Threads.CONTROL
)
GET_JOB_METRICS = Method(
    MASTER, "GetJobMetrics", pb.JobMetricsRequest, pb.JobMetrics, threads=Threads.CONTROL
)
GET_JOB_LOG = Method(MASTER, "GetJobLog", pb.JobLogRequest, pb.JobLog, threads=Threads.CONTROL)
GET_JOB_STACKS = Method(
    MASTER, "GetJobStacks", pb.JobStacksRequest, pb.JobStacks, threads=Threads.CONTROL
)
FIND_JOB_ID = Method(MASTER, "FindJobId", pb.FindIdRequest, pb.FoundId, threads=Threads.CONTROL)
