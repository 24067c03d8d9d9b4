"""The calls of both services as typed values, one each.

`serving.serve` and `rpc.Connection.call` take these instead of generated stubs: the
types of request and reply follow from the value, and a method whose bytes are a
frame (proto/frames.py) is simply one of `bytes`. A test holds this table against
shoal.proto.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from google.protobuf.message import Message

from shoal.proto import shoal_pb2 as pb

Request = TypeVar("Request", bound=Message | bytes)
Reply = TypeVar("Reply", bound=Message | bytes)


@dataclass(frozen=True)
class Method(Generic[Request, Reply]):
    """One call: its service and name, and the types of request and reply.

    streaming: the reply is a stream of `reply`, not a single one.
    label: of a request of bytes, a small message that travels beside them; the handler gets
        (label, bytes). So bytes that came from elsewhere are passed on as they are.
    apart: handled by threads of its own, because handlers of other calls wait for it.
    """

    service: str
    name: str
    request: type[Request]
    reply: type[Reply]
    streaming: bool = False
    label: type[Message] | None = None
    apart: bool = False

    @property
    def path(self) -> str:
        """The gRPC path, /package.Service/Name."""
        return f"/{self.service}/{self.name}"


SERVER = "shoal.v1.ParameterServer"
MASTER = "shoal.v1.Master"

REGISTER = Method(SERVER, "Register", pb.RegisterRequest, pb.RegisterReply)
INITIALIZE_DENSE = Method(SERVER, "InitializeDense", bytes, bytes)
PULL = Method(SERVER, "Pull", bytes, bytes)
PUSH = Method(SERVER, "Push", bytes, bytes)
READ_TABLE = Method(SERVER, "ReadTable", pb.ReadTableRequest, bytes, streaming=True)
ASSIGN_ROWS = Method(SERVER, "AssignRows", bytes, bytes)
FENCE = Method(SERVER, "Fence", pb.FenceRequest, pb.FenceReply)
BEGIN_CHECKPOINT = Method(
    SERVER, "BeginCheckpoint", pb.BeginCheckpointRequest, pb.BeginCheckpointReply
)
WRITE_SHARE = Method(SERVER, "WriteShare", pb.WriteShareRequest, pb.WriteShareReply)
DROP_CHECKPOINT = Method(SERVER, "DropCheckpoint", pb.DropCheckpointRequest, pb.DropCheckpointReply)
COMPLETE_CHECKPOINT = Method(
    SERVER, "CompleteCheckpoint", pb.CompleteCheckpointRequest, pb.CompleteCheckpointReply
)
BEGIN_LOG = Method(SERVER, "BeginLog", pb.BeginLogRequest, pb.BeginLogReply, apart=True)
APPEND_LOG = Method(SERVER, "AppendLog", bytes, pb.AppendLogReply, label=pb.LogEntry, apart=True)
DROP_LOG = Method(SERVER, "DropLog", pb.DropLogRequest, pb.DropLogReply, apart=True)
TAKE_LOG = Method(SERVER, "TakeLog", pb.TakeLogRequest, bytes, streaming=True)
APPLY_UPDATE = Method(SERVER, "ApplyUpdate", pb.ApplyUpdateRequest, pb.ApplyUpdateReply)
SET_ROUTING = Method(SERVER, "SetRouting", pb.RoutingTable, pb.SetRoutingReply)
STATUS = Method(SERVER, "Status", pb.ServerStatusRequest, pb.ServerStatus)
SHUTDOWN = Method(SERVER, "Shutdown", pb.ShutdownRequest, pb.ShutdownReply)

GET_RESTORE = Method(MASTER, "GetRestore", pb.RestoreRequest, pb.RestoreReply)
REGISTER_SERVER = Method(MASTER, "RegisterServer", pb.RegisterServerRequest, pb.RegisterServerReply)
LEAVE = Method(MASTER, "Leave", pb.LeaveRequest, pb.LeaveReply)
REGISTER_WORKER = Method(MASTER, "RegisterWorker", pb.RegisterWorkerRequest, pb.RegisterWorkerReply)
GET_ROUTING = Method(MASTER, "GetRouting", pb.GetRoutingRequest, pb.RegisterWorkerReply)
GET_TASK = Method(MASTER, "GetTask", pb.GetTaskRequest, pb.GetTaskReply)
REPORT_CLOCK = Method(MASTER, "ReportClock", pb.ClockRequest, pb.ClockReply)
JOIN_UPDATE = Method(MASTER, "JoinUpdate", pb.JoinUpdateRequest, pb.JoinUpdateReply)
OFFER_GRADIENT = Method(MASTER, "OfferGradient", pb.OfferGradientRequest, pb.OfferGradientReply)
HEARTBEAT = Method(MASTER, "Heartbeat", pb.HeartbeatRequest, pb.HeartbeatReply)
REPORT_TASK = Method(MASTER, "ReportTask", pb.ReportTaskRequest, pb.ReportTaskReply)
REPORT_FAILURE = Method(MASTER, "ReportFailure", pb.ReportFailureRequest, pb.ReportFailureReply)
GET_JOB_STATUS = Method(MASTER, "GetJobStatus", pb.JobStatusRequest, pb.JobStatus)
STOP_JOB = Method(MASTER, "StopJob", pb.StopJobRequest, pb.StopJobReply)
AUDIT_JOB = Method(MASTER, "AuditJob", pb.AuditJobRequest, pb.AuditJobReply)
SCALE_JOB = Method(MASTER, "ScaleJob", pb.ScaleJobRequest, pb.ScaleJobReply)
