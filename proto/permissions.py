"""Permissions: the roles of each method's callers, and for whom their requests speak.

Owns their two tables. A process that serves with certificates refuses a call of another role before
a byte of its request is read, and a request that speaks for another process before its handler sees
it (serving.py). Tests compare the tables with methods.py and shoal.proto.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError
from shoal.proto.identity import CLIENT, MASTER, SERVER, WORKER, Caller, Identity
from shoal.proto.methods import Method
from shoal.proto.seldom import REFUSALS
from shoal.proto.wire import frames

logger = logging.getLogger(__name__)

_CALLED: dict[tuple[str, ...], tuple[Method[Any, Any], ...]] = {
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
        methods.GET_INDEX,
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
        methods.PUBLISH,
        methods.APPLY_UPDATE,
        methods.SET_ROUTING,
        methods.BEGIN_MOVE,
        methods.SEND_ROWS,
        methods.FREEZE,
        methods.JOIN,
        methods.END_MOVE,
        methods.SHUTDOWN,
        methods.GET_STACKS,
        methods.FIND_ID,
    ),
    (SERVER,): (
        methods.BEGIN_LOG,
        methods.APPEND_LOG,
        methods.DROP_LOG,
        methods.TAKE_LOG,
        methods.TAKE_ROWS,
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
        methods.HOLD_PUBLISHING,
        methods.GET_JOB_METRICS,
        methods.GET_JOB_LOG,
        methods.GET_JOB_STACKS,
        methods.FIND_JOB_ID,
    ),
    (SERVER, WORKER): (methods.REPORT_FAILURE,),
    # Those who look on, as `shoal chaos` does, change nothing.
    (SERVER, WORKER, CLIENT): (methods.GET_ROUTING,),
    (MASTER, CLIENT): (methods.STATUS,),
}

CALLERS: dict[Method[Any, Any], frozenset[str]] = {
    method: frozenset(roles) for roles, called in _CALLED.items() for method in called
}


def check_permitted(
    method: Method[Any, Any], identity: Identity | None, caller: Caller | None, where: str
) -> None:
    """Raises WireError(NOT_PERMITTED), which is logged, if the caller may not call `method`.

    identity: of this process; None: it does not know who calls, and takes every call. caller: by
    its certificate. where: it is, in words.
    """
    if is_permitted(method, identity, caller):
        return
    who = str(caller) if caller else "a caller without a certificate"
    may = " or ".join(sorted(CALLERS[method])) + " of the same job"
    if REFUSALS.due():
        logger.warning("refused %s of %s at %s", method.name, who, where)
    raise WireError(pb.NOT_PERMITTED, f"{who} may not call {method.name}, only a {may} may")


def is_permitted(
    method: Method[Any, Any], identity: Identity | None, caller: Caller | None
) -> bool:
    """True if `check_permitted` raises nothing."""
    if identity is None:
        return True
    own_job = caller is not None and caller.job == identity.caller.job
    return caller is not None and own_job and permitted(method, caller.role)


def permitted(method: Method[Any, Any], role: str) -> bool:
    """True if a process of this role may call `method`."""
    return role in CALLERS[method]


Speakers = Iterable[tuple[str, int]]


def _worker(request: Any) -> Speakers:
    return ((WORKER, request.worker),)


def _server(request: Any) -> Speakers:
    return ((SERVER, request.server),)


SPEAKERS: dict[Method[Any, Any], Callable[[Any], Speakers]] = {
    methods.REGISTER: lambda request: _worker(request.caller),
    methods.READY: lambda request: _worker(request.caller),
    methods.PULL: lambda frame: _worker(frames.header_of(frame, pb.PullRequest).caller),
    methods.PUSH: lambda frame: _worker(frames.header_of(frame, pb.PushRequest).identity),
    methods.REGISTER_WORKER: _worker,
    methods.GET_TASK: _worker,
    methods.GET_INDEX: _worker,
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


def check_speaker(
    method: Method[Any, Any], caller: Caller | None, request: Any, where: str
) -> None:
    """Raises WireError(NOT_PERMITTED), which is logged, if a request speaks for another process.

    caller: None where it is not known, as this process has no identity. request: as `spoken_for`
    takes it. where: the caller is, in words.
    """
    if caller is None or not (other := spoken_for(method, caller, request)):
        return
    if REFUSALS.due():
        what = "refused %s of %s at %s: it speaks for %s"
        logger.warning(what, method.name, caller, where, other)
    raise WireError(pb.NOT_PERMITTED, f"{caller} may not speak for {other} in {method.name}")


def spoken_for(method: Method[Any, Any], caller: Caller, request: Any) -> str:
    """Another process for which `caller` speaks in this request, such as worker-5; "" if none.

    request: as the handler gets it, or its label. Raises WireError(BAD_REQUEST) if it is no frame.
    """
    speakers = SPEAKERS.get(method)
    for role, index in speakers(request) if speakers is not None else ():
        if (role, index) != (caller.role, caller.index):
            return f"{role}-{index}"
    return ""
