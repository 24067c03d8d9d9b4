"""Who may call what: the roles of each method's callers, and for whom their requests speak.

The two tables of it. Who serves with certificates refuses a call of another role before a byte of
its request is read, and a request that speaks for another process before its handler sees it
(serving.py). Tests hold the tables against methods.py and shoal.proto.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from shoal.proto import frames, methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.identity import CLIENT, MASTER, SERVER, WORKER, Caller
from shoal.proto.methods import Method

CALLERS: dict[Method[Any, Any], frozenset[str]] = {
    method: frozenset(roles)
    for roles, called in {
        # The model.
        (WORKER,): (
            methods.REGISTER,
            methods.INITIALIZE_DENSE,
            methods.PULL,
            methods.PUSH,
            methods.READ_TABLE,
            methods.ASSIGN_ROWS,
            methods.READY,
            # The master's tasks and clocks.
            methods.REGISTER_WORKER,
            methods.GET_TASK,
            methods.REPORT_CLOCK,
            methods.JOIN_UPDATE,
            methods.OFFER_GRADIENT,
            methods.HEARTBEAT,
            methods.REPORT_TASK,
        ),
        (MASTER,): (
            methods.FENCE,
            methods.BEGIN_CHECKPOINT,
            methods.WRITE_SHARD,
            methods.DROP_CHECKPOINT,
            methods.COMPLETE_CHECKPOINT,
            methods.APPLY_UPDATE,
            methods.SET_ROUTING,
            methods.SHUTDOWN,
        ),
        (SERVER,): (
            methods.BEGIN_LOG,
            methods.APPEND_LOG,
            methods.DROP_LOG,
            methods.TAKE_LOG,
            methods.GET_RESTORE,
            methods.REPORT_PROGRESS,
            methods.REGISTER_SERVER,
            methods.WORKER_MET,
            methods.DRAIN,
        ),
        (CLIENT,): (
            methods.GET_JOB_STATUS,
            methods.STOP_JOB,
            methods.AUDIT_JOB,
            methods.SCALE_JOB,
        ),
        (SERVER, WORKER): (methods.REPORT_FAILURE,),
        # Those who look on, as `shoal chaos` does, change nothing.
        (SERVER, WORKER, CLIENT): (methods.GET_ROUTING,),
        (MASTER, CLIENT): (methods.STATUS,),
    }.items()
    for method in called
}


def permitted(method: Method[Any, Any], role: str) -> bool:
    """Whether a process of this role may call `method`."""
    return role in CALLERS[method]


Speakers = Iterable[tuple[str, int]]


def _worker(request: Any) -> Speakers:
    return ((WORKER, request.worker),)


def _server(request: Any) -> Speakers:
    return ((SERVER, request.server),)


SPEAKERS: dict[Method[Any, Any], Callable[[Any], Speakers]] = {
    methods.REGISTER: lambda request: _worker(request.caller),
    methods.PULL: lambda frame: _worker(frames.header_of(frame, pb.PullRequest).caller),
    methods.PUSH: lambda frame: _worker(frames.header_of(frame, pb.PushRequest).identity),
    methods.REGISTER_WORKER: _worker,
    methods.GET_TASK: _worker,
    methods.REPORT_CLOCK: _worker,
    methods.JOIN_UPDATE: _worker,
    methods.OFFER_GRADIENT: _worker,
    methods.HEARTBEAT: _worker,
    methods.REPORT_TASK: _worker,
    methods.BEGIN_LOG: lambda request: _server(request.base),
    methods.APPEND_LOG: lambda group: ((SERVER, entry.server) for entry in group.entries),
    methods.DROP_LOG: _server,
    methods.TAKE_LOG: _server,
    methods.GET_RESTORE: _server,
    methods.REPORT_PROGRESS: _server,
    methods.REGISTER_SERVER: _server,
    methods.WORKER_MET: _server,
    methods.DRAIN: _server,
    methods.REPORT_FAILURE: lambda request: ((request.role, request.index),),
}
"""The (role, index) of each process for which a request speaks, or its label where it has one.
Requests that name no process are not here."""


def spoken_for(method: Method[Any, Any], caller: Caller, request: Any) -> str:
    """Another process for which `caller` speaks in this request, such as worker-5; "" if none.

    request: as the handler gets it, or its label. Raises WireError(BAD_REQUEST) if it is no frame.
    """
    speakers = SPEAKERS.get(method)
    for role, index in speakers(request) if speakers is not None else ():
        if (role, index) != (caller.role, caller.index):
            return f"{role}-{index}"
    return ""
